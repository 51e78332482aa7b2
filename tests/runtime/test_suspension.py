"""A stop of the process is told from a rest and from a blocked loop."""

import pytest

from lbg_runtime.runtime.suspension import STOPPED_FOR_NS, Suspension

SECOND_NS = 1_000_000_000
STOP_NS = STOPPED_FOR_NS + SECOND_NS


def looked_at_for(seconds: int) -> Suspension:
    suspension = Suspension(0)
    for second in range(1, seconds + 1):
        suspension.look(second * SECOND_NS)
    return suspension


def test_who_looks_every_second_sees_no_stop_however_long_the_loop_was_blocked() -> None:
    suspension = looked_at_for(100)
    assert not suspension.was_since(10 * SECOND_NS, 100 * SECOND_NS)
    assert not suspension.was_since(10 * SECOND_NS, 101 * SECOND_NS)


@pytest.mark.parametrize("watcher_goes_first", [True, False])
def test_a_stop_is_seen_whoever_goes_on_first(watcher_goes_first: bool) -> None:
    suspension = looked_at_for(10)
    now_ns = 10 * SECOND_NS + STOP_NS
    if watcher_goes_first:
        suspension.look(now_ns - 1)
    assert suspension.was_since(10 * SECOND_NS, now_ns)


def test_a_stop_counts_for_those_who_have_not_been_seen_since() -> None:
    suspension = looked_at_for(10)
    resumed_ns = 10 * SECOND_NS + STOP_NS
    suspension.look(resumed_ns)
    assert suspension.was_since(resumed_ns - 1, resumed_ns + SECOND_NS)
    assert not suspension.was_since(resumed_ns, resumed_ns + SECOND_NS)
