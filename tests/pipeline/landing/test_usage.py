"""How many bytes a landing log may still get."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lbg_runtime.pipeline.landing.usage import RESERVE_BYTES, DiskSpace, disk_space

MB = 1 << 20


@pytest.mark.parametrize(
    ("blocks", "space"),
    [
        # Of a small disk, a twentieth.
        (2_000, DiskSpace(1_000 * MB, 100 * MB)),
        (1_000_000, DiskSpace(1_000 * MB, RESERVE_BYTES)),
        # The file system does not say.
        (0, None),
    ],
    ids=["small", "large", "unknown"],
)
def test_a_reserve_of_the_disk_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, space: DiskSpace | None
) -> None:
    disk = SimpleNamespace(f_frsize=MB, f_blocks=blocks, f_bavail=1_000)
    monkeypatch.setattr(os, "statvfs", {tmp_path: disk}.__getitem__)
    assert disk_space(tmp_path) == space
