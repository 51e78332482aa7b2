"""Files that this process has open."""

import os
from contextlib import suppress
from pathlib import Path


def open_below(folder: Path) -> list[Path]:
    """Those below a folder: what else is open may be closed at any time, as by threads of earlier tests."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        # Such as the one of this look.
        with suppress(OSError):
            found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
    return sorted(each for each in found if each.is_relative_to(folder.resolve()))
