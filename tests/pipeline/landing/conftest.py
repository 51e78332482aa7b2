"""A log for each test that asks for one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chance import seed_members
from tests.pipeline.landing.landed import LogOnDisk
from tests.pipeline.landing.trial import Trial


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs nothing: tests pull no plug, but for those with a `Disk`, which they put in its place."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def log_on_disk(tmp_path: Path) -> Iterator[LogOnDisk]:
    """Empty; its lanes are closed after the test."""
    log = LogOnDisk(tmp_path / "log")
    yield log
    log.close()


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """Without a member yet."""
    seed_members(monkeypatch)
    return Trial(tmp_path / "log")
