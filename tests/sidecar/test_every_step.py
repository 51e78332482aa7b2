"""Whatever happens to a member with a sidecar or to its application, and whenever: nothing is lost, kept back, or begun
too late.

A few steps of each story are tried; `python -m tests.sidecar.test_every_step` tries them all, and pairs of mishaps.
"""

import pytest

from lbg_runtime.runtime.runners.attempts import AttemptWatches, RunningAttempts
from lbg_runtime.sidecar.bulk_sender import BulkSender
from lbg_runtime.sidecar.pull import PulledEvents
from tests.runtime.every_step import play
from tests.runtime.mishaps import MISHAPS, faults, steps_of, try_everything
from tests.sidecar.sidecar_worlds import BulkWorld, PulledWorld, PushedWorld

WORLDS = (PushedWorld, BulkWorld, PulledWorld)


@pytest.mark.parametrize("world_class", WORLDS)
def test_nothing_is_wrong_if_nothing_happens(world_class):
    world = play(world_class)
    assert world.found == world.repeated == []
    assert world.members["a"].end.is_clean


@pytest.mark.parametrize(
    ("world_class", "name"), [(world_class, name) for world_class in WORLDS for name in MISHAPS | world_class.MISHAPS]
)
def test_a_mishap_at_whatever_step_loses_nothing_and_leaves_nothing_behind(world_class, name):
    # Each mishap has a step of its own.
    step = 1 + 47 * list(MISHAPS | world_class.MISHAPS).index(name) % (steps_of(world_class) - 1)
    assert faults(world_class, [(step, name)]) == []


@pytest.mark.parametrize(
    ("world_class", "answer"),
    [(PushedWorld, each) for each in ("DROP", "404", "late", "reset", "500", "cut off")]
    + [(PulledWorld, each) for each in ("DROP", "never", "late", "twice")],
)
def test_whatever_an_application_answers_once_its_event_comes_again_or_not_and_no_other(world_class, answer):
    for identity in (("a", 1), ("b", 2)):
        assert faults(world_class, outcomes={identity: answer}) == []


def _all_of(sender, numbers):
    return {str(number): sender._waiting[number] for number in numbers if number in sender._waiting}


def _always(*_):
    return True


STOPPED, UNFED = "the process is stopped, and goes on", "the flows are not fed any more"
PLANTED = {
    "what waits for room on a lost flow is given out": (PulledWorld, UNFED, AttemptWatches, "recall_put_off"),
    "what waits for a bulk on a lost flow is sent": (BulkWorld, UNFED, AttemptWatches, "recall_put_off"),
    "what was taken back as its bulk fell due is sent": (BulkWorld, UNFED, BulkSender, "_begun", _all_of),
    "what waits for room is given out after a stop": (PulledWorld, STOPPED, RunningAttempts, "look_before_begin"),
    "what waits for a connection is sent after a stop": (PushedWorld, STOPPED, RunningAttempts, "may_begin", _always),
    "a bulk that waits for one is sent after a stop": (BulkWorld, STOPPED, RunningAttempts, "may_begin", _always),
    "room goes to nobody": (PulledWorld, UNFED, PulledEvents, "_wake"),
}
"""What is not done, or done instead, to show that it would be found: in which world, and by which mishap."""


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_would_be_found(mistake, monkeypatch):
    world_class, name, owner, method, *instead = PLANTED[mistake]
    steps = steps_of(world_class)
    monkeypatch.setattr(owner, method, *(instead or [lambda *_: None]))
    assert any(faults(world_class, [(step, name)]) for step in range(29, steps, 3))


if __name__ == "__main__":
    try_everything(*WORLDS)
