"""Processes of `lbg` that a command starts."""

import os
import sys
from pathlib import Path

import pytest

from lbg_runtime.cli.live.processes import lbg_process

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
