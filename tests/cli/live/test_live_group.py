"""A group of processes whose steps do not come to their end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from lbg_runtime.cli.live import group as live
from lbg_runtime.cli.live.group import LiveGroup, StepStuck
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName


async def test_a_command_that_does_not_end_in_time_is_a_step_that_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a `TimeoutError`, which no command tells in one line."""

    @asynccontextmanager
    async def hanging(*_: object) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(process=SimpleNamespace(returncode=None))

    monkeypatch.setattr(live, "lbg_process", hanging)
    group = LiveGroup(tmp_path, GroupShape(GroupName("orders"), "lbg", 4, 2), {})
    async with group:
        with pytest.raises(StepStuck, match="waited 120 s for: `lbg group create` has ended"):
            await group.carry_out("group", "create")
