"""Files that this process has open."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def open_below(folder: Path) -> list[Path]:
    """Those below a folder: what else is open may be closed at any time, as by threads of earlier tests."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        # Such as the one of this look.
        with suppress(OSError):
            found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
    return sorted(each for each in found if each.is_relative_to(folder.resolve()))


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """The limit is above what is open, so that the spare one of a loop is below it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1 + max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    gaps: list[int] = []
    try:
        with suppress(OSError):
            for _ in range(limit):
                gaps.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - kept, however many there are
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for gap in gaps:
            os.close(gap)
