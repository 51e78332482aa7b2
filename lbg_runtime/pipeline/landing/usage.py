"""How many bytes a landing log holds, and how many are free on its disk."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lbg_runtime.pipeline.landing.layout import lane_names, queues_of

RESERVE_BYTES = 256 << 20
"""What a lander leaves free on its disk, or a twentieth of the disk if that is less: pruning old rows needs room."""


class DiskSpace(NamedTuple):
    """The room that is left on a disk."""

    free_bytes: int
    reserve_bytes: int
    """How many of these a lander leaves free."""


def disk_space(root: Path) -> DiskSpace | None:
    """None if the file system does not say. Raises `OSError`."""
    disk = os.statvfs(root)
    if not disk.f_blocks:
        return None
    return DiskSpace(disk.f_frsize * disk.f_bavail, min(RESERVE_BYTES, disk.f_frsize * disk.f_blocks // 20))


def used_bytes(root: Path) -> int:
    """Total length of the files of all lanes. One look at each file; what is removed meanwhile is not counted."""
    total = 0
    for queue in queues_of(root):
        for lane in lane_names(root, queue):
            total += lane_bytes(root / lane)
    return total


def lane_bytes(folder: Path) -> int:
    """The same for one lane; 0 if it is gone."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for each in entries:
            # Those behind one that is pruned meanwhile count all the same.
            with suppress(FileNotFoundError):
                total += each.stat().st_size
    return total
