"""How many bytes a landing log holds."""

import os
from pathlib import Path

from lbg_runtime.pipeline.landing.layout import lane_names, queues_of


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
