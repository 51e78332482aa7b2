"""How many bytes a landing log may still get."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lbg_runtime.pipeline.landing.usage import RESERVE_BYTES, free_bytes

MB = 1 << 20


@pytest.mark.parametrize(
    ("blocks", "available", "free"),
    [
        # A small disk: a twentieth of it is left.
        (2_000, 1_000, 900 * MB),
        (2_000, 100, 0),
        (2_000, 0, -100 * MB),
        # A large one.
        (1_000_000, 1_000, 1_000 * MB - RESERVE_BYTES),
        # The file system does not say.
        (0, 0, None),
    ],
)
def test_a_reserve_of_the_disk_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, available: int, free: int | None
) -> None:
    disk = SimpleNamespace(f_frsize=MB, f_blocks=blocks, f_bavail=available)
    monkeypatch.setattr(os, "statvfs", {tmp_path: disk}.__getitem__)
    assert free_bytes(tmp_path) == free
