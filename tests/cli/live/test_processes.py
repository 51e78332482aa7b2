"""Processes of `lbg` that a command starts."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbg_runtime.cli.live.processes import Child, ProcessEnded, lbg_process

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize("leaves_with_us", [True, False])
async def test_only_who_takes_it_out_again_has_its_parent_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_with_us: bool
) -> None:
    """What the others start would take us for its parent, and leave at once."""
    stand_in, log = tmp_path / "python", tmp_path / "log"
    stand_in.write_text('#!/bin/sh\necho "parent=$LBG_PARENT_PID"\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    async with lbg_process("member", ["run", *["--exit-with-parent"] * leaves_with_us], log) as child:
        await child.process.wait()
    named = os.getpid() if leaves_with_us else ""
    assert log.read_text() == f"parent={named}\n"


@pytest.mark.parametrize(
    ("program", "last"), [("echo it begins; echo no such queue >&2", "no such queue"), ("", "it said nothing")]
)
async def test_a_process_that_fails_is_told_with_its_last_line_and_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, last: str
) -> None:
    stand_in, log = tmp_path / "python", tmp_path / "member.log"
    stand_in.write_text(f"#!/bin/sh\n{program}\nexit 3\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    async with lbg_process("member", ["run"], log) as child:
        await child.process.wait()
        with pytest.raises(ProcessEnded) as ended:
            child.ensure_running()
        with pytest.raises(ProcessEnded) as stopped:
            await child.stop()
    assert str(ended.value) == f"member ended with exit code 3: {last} (log: {log})"
    assert str(stopped.value) == f"member left with exit code 3: {last} (log: {log})"
    assert (ended.value.name, ended.value.log) == ("member", log)


@pytest.fixture
def watched_by_the_loop() -> Iterator[None]:
    """Ends of processes are heard of on the loop itself, as they always are from Python 3.12 on."""
    if sys.version_info >= (3, 12):
        yield
        return
    before = asyncio.get_child_watcher()
    asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    yield
    asyncio.set_child_watcher(before)


@pytest.mark.usefixtures("watched_by_the_loop")
@pytest.mark.parametrize("how", ["stop", "kill", "nothing"])
async def test_a_process_that_ends_by_itself_just_before_it_is_ended_keeps_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """It counted as one that had left with 255, and a warning told of an unknown process; so it did at Ctrl-C."""
    stand_in, told = tmp_path / "python", tmp_path / "told"
    stand_in.write_text(f"#!/bin/sh\nread told < {told}\n")
    stand_in.chmod(0o755)
    os.mkfifo(told)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    async with lbg_process("member", ["run"], tmp_path / "log") as child:
        told.write_text("to end\n")
        # The loop is kept from hearing of it.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        if how != "nothing":
            await getattr(Child, how)(child)
    assert child.process.returncode == 0
    assert caplog.messages == []
