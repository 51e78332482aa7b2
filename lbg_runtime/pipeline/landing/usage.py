"""How many bytes a landing log holds, and how many its disk still takes."""

import os
from pathlib import Path

from lbg_runtime.pipeline.landing.layout import lane_names, queues_of

RESERVE_BYTES = 256 << 20
"""What a lander leaves of its disk, or a twentieth of it where that is less: old rows could not be pruned without."""


def free_bytes(root: Path) -> int | None:
    """What may still be written before the disk has nothing left but the reserve; below 0 where that is touched. None
    where the file system does not say. Raises `OSError`."""
    disk = os.statvfs(root)
    if not disk.f_blocks:
        return None
    return disk.f_frsize * disk.f_bavail - min(RESERVE_BYTES, disk.f_frsize * disk.f_blocks // 20)


def used_bytes(root: Path) -> int:
    """Of all lanes, as the files are long. One look at each file; what goes away meanwhile is not counted."""
    total = 0
    for queue in queues_of(root):
        for lane in lane_names(root, queue):
            total += lane_bytes(root / lane)
    return total


def lane_bytes(folder: Path) -> int:
    """Of one lane; 0 where it is gone."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for each in entries:
                total += each.stat().st_size
    except FileNotFoundError:
        pass
    return total
