"""What is acknowledged is on the disk, with every name that leads to it."""

import os
import stat
from pathlib import Path

import pytest

from lbg_runtime.pipeline.landing.lane import LaneWriter
from lbg_runtime.pipeline.landing.layout import claim_folder
from tests.pipeline.landing.landed import SHAPE, id_of, rows


class Disk:
    """Remembers what a power cut leaves: of a folder the names, and of a file the bytes, that it had when it was last
    synced."""

    def __init__(self) -> None:
        self._names: dict[int, set[str]] = {}
        self._sizes: dict[int, int] = {}

    def sync(self, file: int) -> None:
        found = os.fstat(file)
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = set(os.listdir(file))
        else:
            self._sizes[found.st_ino] = found.st_size

    def lost(self, top: Path) -> list[str]:
        """What lies below and would be gone, or cut."""
        lost = []
        for folder, folders, files in os.walk(top):
            kept = self._names.get(os.stat(folder).st_ino, set())
            lost += [f"{folder}/{name}" for name in (*folders, *files) if name not in kept]
            for path in (Path(folder, name) for name in files):
                if self._sizes.get(path.stat().st_ino, 0) < path.stat().st_size:
                    lost.append(f"{path} to its end")
        return lost


def test_a_power_cut_takes_nothing_that_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the folder of the log was made just before: its name, and those above it, were not synced."""
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.sync)
    monkeypatch.setattr(os, "fdatasync", disk.sync)
    root = tmp_path / "new" / "log"
    claim_folder(root, SHAPE)
    # Each flush begins a segment.
    lane = LaneWriter(root, 3, "m", 1, clock_us=lambda: 1, segment_bytes=1)
    for number in (1, 2):
        lane.append(rows([id_of("k", number)]))
        assert disk.lost(tmp_path) == []
    lane.close()
