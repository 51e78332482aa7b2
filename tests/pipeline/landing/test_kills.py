"""Processes that land under load and are killed, torn and denied the disk; `lbg bench landing` does more of it."""

from pathlib import Path

import pytest

from lbg_runtime.cli.bench.landing_trial import Blow, landing_trial


@pytest.mark.real_time
@pytest.mark.end_to_end
async def test_whatever_happens_to_members_each_message_is_read_once_and_in_order(tmp_path: Path) -> None:
    trial = await landing_trial(tmp_path / "group", [Blow.TEAR, Blow.FULL], rate=800, seed=1, members=2)
    assert trial.wrong == []
    assert trial.rows == trial.published > 0
