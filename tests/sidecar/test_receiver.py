"""What is said of an event that no subscription attracts."""

import pytest

from lbg_runtime.sidecar.receiver import EventUnwanted


@pytest.mark.parametrize(("count", "named", "more"), [(1, 1, ""), (10, 10, ""), (11, 10, ", ...")])
def test_an_unwanted_event_is_told_with_the_first_of_the_subscriptions_that_there_are(
    count: int, named: int, more: str
) -> None:
    unwanted = EventUnwanted("orders/new", [f"t{number}" for number in range(count)])
    names = ", ".join(f"'t{number}'" for number in range(named))
    assert str(unwanted) == f"no subscription of the application attracts 'orders/new'; it has {names}{more}"
    assert unwanted.topic == "orders/new"
