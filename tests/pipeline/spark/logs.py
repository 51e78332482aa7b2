"""Landing logs for the tests of Spark, and what a stream has made of them."""

from collections import Counter
from pathlib import Path

from tests.pipeline.landing.landed import LogOnDisk, id_of, rows

KEYS = 5


def ids(queue: int, first: int, last: int) -> list[str]:
    """Of messages `first` to before `last` of a queue, dealt out to its keys in turn."""
    return [id_of(f"q{queue}-{number % KEYS}", number + 1) for number in range(first, last)]


def fill(root: Path, queues: int, count: int, *, flush: int = 50) -> int:
    """Make a log in which each queue moved to another member halfway; returns the number of its messages.

    The new owner landed again what the old one had not yet acknowledged, as it does after a crash.
    """
    log = LogOnDisk(root)
    half, again = count // 2, count // 10
    for queue in range(queues):
        for member, first, last in (("a", 0, half), ("b", half - again, count)):
            lane = log.lane(member, 1, queue)
            for start in range(first, last, flush):
                lane.append(rows(ids(queue, start, min(start + flush, last)), queue=queue, t_land=start + 1))
    log.close()
    return queues * count


def not_once(found: Counter[str], queues: int, count: int) -> list[str]:
    """The ids that are not there exactly once, and those that should not be there; empty where all is well."""
    expected = [each for queue in range(queues) for each in ids(queue, 0, count)]
    return [each for each in expected if found[each] != 1] + sorted(found.keys() - set(expected))
