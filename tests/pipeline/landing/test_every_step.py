"""Whatever happens to a lander or to its disk, and whenever: what is settled is in the log, once and in order.

A few steps of the story are tried; `python -m tests.pipeline.landing.test_every_step` tries them all, and pairs of
mishaps.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest

from lbg_runtime.model.errors import LandingWriteFailed
from lbg_runtime.pipeline.landing.lander import Lander, LandingOptions, lander_app
from lbg_runtime.pipeline.landing.lane import LaneWriter, is_being_written
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.open_lane import FlushLimits, OpenLane
from lbg_runtime.pipeline.landing.room import Room
from tests.runtime.every_step import World, play
from tests.runtime.mishaps import MISHAPS, Mishap, faults, steps_of, try_everything

DISK_S = 0.004
"""What everything takes that is done on a thread."""


def _trouble(what, seconds):
    def happen(world):
        world.until_s[what] = world.loop.time() + seconds

    return happen


class LandedWorld(World):
    """A message is done when its row is durable."""

    MISHAPS: ClassVar = {
        "the disk refuses": Mishap(_trouble("refuses", 0.05)),
        "the disk refuses for longer than a pause": Mishap(_trouble("refuses", 3)),
        "the disk refuses what it has": Mishap(_trouble("has and refuses", 0.05)),
        "the disk takes no new lane": Mishap(_trouble("takes no lane", 2)),
        "the disk hangs": Mishap(_trouble("hangs", 3)),
        "the disk hangs for longer than the way out": Mishap(_trouble("hangs", 25)),
    }

    def __init__(self, loop, trouble):
        super().__init__(loop, trouble)
        self.until_s = dict.fromkeys(("refuses", "has and refuses", "takes no lane", "hangs"), 0)
        self._folder = TemporaryDirectory()
        self._path = Path(self._folder.name) / "log"

    def app_of(self, member, settings):
        options = LandingOptions(self._path, FlushLimits(3, 5), is_synced=False)
        return lander_app(settings, options, session=member.session)[0]

    def changes(self):
        begin, append = LaneWriter.__init__, LaneWriter.append

        def begun(writer, *given, **options):
            self._refuse("takes no lane")
            begin(writer, *given, **options)

        def appended(writer, batch):
            self._refuse("refuses")
            append(writer, batch)
            self._refuse("has and refuses")
            for row in batch.to_pylist():
                self.done[row["key"], row["seq"]] += 1

        return [
            (LaneWriter, "__init__", begun),
            (LaneWriter, "append", appended),
            (self.loop, "run_in_executor", self._on_thread),
        ]

    def _refuse(self, what):
        if self.loop.time() < self.until_s[what]:
            raise LandingWriteFailed("the lane", what)

    def _on_thread(self, _, work, *given):
        """It is done although nobody waits for it any more, as on a thread."""
        answer = self.loop.create_future()

        def do():
            try:
                result = work(*given)
            except Exception as error:  # noqa: BLE001 - the caller's
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)

        self.loop.call_at(max(self.loop.time(), self.until_s["hangs"]) + DISK_S, do)
        return answer

    async def afterwards(self):
        await super().afterwards()
        log, found = LandingLog(self._path), {}
        for queue in log.queues():
            for batch in log.read_queue(queue, {}, {name: extent.rows for name, extent in log.lanes(queue).items()}):
                for row in batch.to_pylist():
                    found.setdefault(row["key"], []).append(row["seq"])
        for name in log.lanes():
            # What is killed here keeps its locks, as the process lives.
            if is_being_written(self._path / name) and not self.members["a"].is_killed:
                self.fault(f"{name} is left open")
        if found != {key: list(range(1, count + 1)) for key, count in self._published.items()}:
            self.fault(f"of {self._published}, the log has {found}")
        self._folder.cleanup()


def test_nothing_is_wrong_if_nothing_happens():
    world = play(LandedWorld)
    assert world.found == world.repeated == []
    assert world.members["a"].end.is_clean


@pytest.mark.parametrize("name", MISHAPS | LandedWorld.MISHAPS)
def test_a_mishap_at_whatever_step_loses_nothing_and_leaves_nothing_behind(name):
    stride = 71
    # The next mishap has other steps.
    first = 1 + 47 * list(MISHAPS | LandedWorld.MISHAPS).index(name) % stride
    found = {step: faults(LandedWorld, [(step, name)]) for step in range(first, steps_of(LandedWorld), stride)}
    assert {step: lines for step, lines in found.items() if lines} == {}


PLANTED = {
    "a flush is begun and not written": (OpenLane, "_write", lambda *_: 0),
    "nobody is let in": (Room, "_let_in", lambda _: None),
    "lanes stay open": (Lander, "_close_lanes", lambda *_: asyncio.sleep(0)),
}
"""Mistakes, to show that they would be found."""


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_would_be_found(mistake, monkeypatch):
    monkeypatch.setattr(*PLANTED[mistake])
    assert faults(LandedWorld) or any(faults(LandedWorld, [(60, name)]) for name in LandedWorld.MISHAPS)


if __name__ == "__main__":
    try_everything(LandedWorld)
