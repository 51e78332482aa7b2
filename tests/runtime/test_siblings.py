"""Processes side by side: started, started again, asked to leave together."""

import asyncio
import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import UserError
from lbg_runtime.runtime import siblings
from lbg_runtime.runtime.shutdown import USER_MISTAKE
from lbg_runtime.runtime.siblings import Siblings
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

DRAIN_TIMEOUT_MS = 30_000

MEMBER = """
import pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
name, folder, ends = sys.argv[1], pathlib.Path(sys.argv[2]), [int(end) for end in sys.argv[3].split()]
starts = folder / name
with starts.open("a") as log:
    log.write("start\\n")
start_count = len(starts.read_text().splitlines())
if start_count <= len(ends):
    sys.exit(ends[start_count - 1])
signal.sigtimedwait({signal.SIGTERM}, 600)
"""
"""Has its signal blocked and waits for it, as one that came just before a sleep would not end the sleep."""

KILLS_ITSELF = f"{MEMBER}signal.raise_signal(signal.SIGKILL)"
"""When it is asked to leave."""


def command(folder: Path, name: str, *ends: int) -> list[str]:
    """One whose first lives end at once, with these exit codes."""
    return [sys.executable, "-c", MEMBER, name, str(folder), " ".join(str(end) for end in ends)]


def starts_of(folder: Path, name: str) -> int:
    return len((folder / name).read_text().splitlines()) if (folder / name).exists() else 0


async def until_started(folder: Path, name: str, times: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while starts_of(folder, name) < times:  # noqa: ASYNC110  # a file of another process has no event to wait for
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("ends", "steady_s"),
    [
        pytest.param((70,), siblings.STEADY_S, id="after a failure"),
        pytest.param(
            (128 + signal.SIGKILL, USER_MISTAKE, USER_MISTAKE), siblings.STEADY_S, id="anew, without a broker"
        ),
        pytest.param((USER_MISTAKE,), 0.0, id="with what is called a mistake, after a steady life"),
    ],
)
async def test_one_that_ends_is_started_again_and_all_leave_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: tuple[int, ...], steady_s: float
) -> None:
    monkeypatch.setattr(siblings, "RESTART_MIN_S", 0.01)
    monkeypatch.setattr(siblings, "STEADY_S", steady_s)
    running = asyncio.create_task(
        Siblings([command(tmp_path, "a"), command(tmp_path, "b", *ends)], DRAIN_TIMEOUT_MS).run()
    )
    await until_started(tmp_path, "a", 1)
    await until_started(tmp_path, "b", len(ends) + 1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    assert (tmp_path / "a").read_text() == "start\n"


async def test_a_users_mistake_ends_everybody_and_counts_however_badly_others_leave(tmp_path: Path) -> None:
    code = f"""
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
sys.exit({USER_MISTAKE})
"""
    wrong = [sys.executable, "-c", code, str(tmp_path / "a")]
    killed = [sys.executable, "-c", KILLS_ITSELF, "a", str(tmp_path), ""]
    assert await Siblings([killed, wrong], DRAIN_TIMEOUT_MS).run() == USER_MISTAKE


async def test_a_signal_of_the_terminal_is_not_for_members_who_are_asked_by_us(tmp_path: Path) -> None:
    """They would be asked twice by one Ctrl-C, and drain nothing."""
    tells = (
        f"import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(str(os.getpgrp())); sys.exit({USER_MISTAKE})"
    )
    await Siblings([[sys.executable, "-c", tells, str(tmp_path / "group")]], DRAIN_TIMEOUT_MS).run()
    assert int((tmp_path / "group").read_text()) != os.getpgrp()


async def test_the_worst_exit_code_counts_and_a_signal_is_one(tmp_path: Path) -> None:
    killed = [sys.executable, "-c", KILLS_ITSELF, "a", str(tmp_path), ""]
    running = asyncio.create_task(Siblings([killed, command(tmp_path, "b")], DRAIN_TIMEOUT_MS).run())
    await until_started(tmp_path, "a", 1)
    await until_started(tmp_path, "b", 1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 128 + signal.SIGKILL


async def test_one_that_is_asked_to_leave_before_it_can_hear_it_has_left_nothing(tmp_path: Path) -> None:
    early = MEMBER.replace("{signal.SIGTERM}", "()")
    running = asyncio.create_task(
        Siblings([[sys.executable, "-c", early, "a", str(tmp_path), ""]], DRAIN_TIMEOUT_MS).run()
    )
    await until_started(tmp_path, "a", 1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


@pytest.fixture
def refused_starts(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers, from 1, of the starts that the system refuses."""
    refused: set[int] = set()
    start, number = asyncio.create_subprocess_exec, itertools.count(1)

    async def start_or_not(*command: str, **options: Any) -> asyncio.subprocess.Process:
        if next(number) in refused:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_or_not)
    return refused


async def test_one_that_cannot_be_started_again_is_tried_later_and_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_starts: set[int]
) -> None:
    monkeypatch.setattr(siblings, "RESTART_MIN_S", 0.01)
    refused_starts |= {3, 4}
    with capture_logs() as told:
        running = asyncio.create_task(
            Siblings([command(tmp_path, "a"), command(tmp_path, "b", 70)], DRAIN_TIMEOUT_MS).run()
        )
        await until_started(tmp_path, "a", 1)
        await until_started(tmp_path, "b", 2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0
    assert (tmp_path / "a").read_text() == "start\n"
    reasons = [(each["reason"], each["starts_again_in_s"]) for each in told if each["event"] == "sibling_not_started"]
    assert reasons == [("Too many open files", 0.02), ("Too many open files", 0.04)]


async def test_one_that_cannot_be_started_at_all_is_one_line_and_the_others_leave(
    tmp_path: Path, refused_starts: set[int]
) -> None:
    refused_starts.add(2)
    with pytest.raises(UserError) as refused:
        await Siblings([command(tmp_path, "a"), command(tmp_path, "b")], DRAIN_TIMEOUT_MS).run()
    assert str(refused.value).startswith(
        "--processes: 2, of which one cannot be started: Too many open files; expected"
    )


def test_once_all_have_left_no_signal_takes_the_place_of_the_exit_code() -> None:
    code = f"""
import asyncio, os, signal, sys
from lbg_runtime.runtime.siblings import Siblings
siblings = Siblings([[sys.executable, "-c", "raise SystemExit({USER_MISTAKE})"]], 0)
code = asyncio.run(siblings.run(ends_process=True))
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(code)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S).returncode == USER_MISTAKE


@pytest.mark.parametrize(("times", "drain_timeout_ms"), [(1, 0), (2, 3_600_000)])
async def test_one_that_is_stopped_is_killed_after_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, drain_timeout_ms: int
) -> None:
    monkeypatch.setattr(siblings, "HURRY_S", 0.5)
    stopped = MEMBER.replace("signal.sigtimedwait({signal.SIGTERM}, 600)", "signal.raise_signal(signal.SIGSTOP)")
    commands = [[sys.executable, "-c", stopped, "a", str(tmp_path), ""], command(tmp_path, "b")]
    with capture_logs() as told:
        running = asyncio.create_task(Siblings(commands, drain_timeout_ms).run())
        await until_started(tmp_path, "a", 1)
        await until_started(tmp_path, "b", 1)
        for number in range(1, times + 1):
            os.kill(os.getpid(), signal.SIGTERM)
            # Two signals of one kind that both wait become one.
            while sum(each["event"] == "stop_requested" for each in told) < number:  # noqa: ASYNC110  # the log has no event
                await asyncio.sleep(0)
        # The other one may be asked again while it is on its way out, when nothing of it listens any more.
        assert await running in (128 + signal.SIGKILL, 128 + signal.SIGTERM)
    # On a busy machine the other one may not be gone within this bound either.
    assert "sibling_killed" in [each["event"] for each in told]


def test_one_that_is_still_starting_when_its_parent_is_killed_leaves(tmp_path: Path) -> None:
    """It used to take whoever adopts it for its parent, and stayed with its queues and ports."""
    starting = f"""
import asyncio, os, pathlib, time
(pathlib.Path({str(tmp_path)!r}) / "starting").touch()
while os.getppid() == {{parent}}:
    time.sleep(0.01)
from lbg_runtime.runtime.stop import starting_parent, stop_requests
async def run():
    asked = asyncio.Event()
    with stop_requests(lambda cause: (print(cause.value, flush=True), asked.set()), parent_pid=starting_parent()):
        await asyncio.wait_for(asked.wait(), {PATIENCE_S})
asyncio.run(run())
"""
    parent = f"""
import asyncio, os, sys
from lbg_runtime.runtime.siblings import Siblings
command = [sys.executable, "-c", {starting!r}.format(parent=os.getpid())]
asyncio.run(Siblings([command], 1_000).run())
"""
    # The pipe is the child's standard output too, and ends when nobody holds it any more.
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as killed:
        while not (tmp_path / "starting").exists():
            time.sleep(0.01)
        killed.kill()
        assert killed.stdout is not None
        assert killed.stdout.read() == "parent gone\n"
