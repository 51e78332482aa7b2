"""What a member counts, from handlings and owner changes as its journal is told of them."""

from types import SimpleNamespace

import pytest

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.model.record import OwnerRecord
from lbg_runtime.runtime.meters import MemberMeters


def ended(*, received_ms=0, started_ms=0, done_ms=1_000, redelivered=False, attempts=1, outcome=Outcome.ACCEPTED):
    """As much of a handling as is counted."""
    delivery = SimpleNamespace(redelivered=redelivered, received_at_ns=received_ms * 1_000_000)
    return SimpleNamespace(
        delivery=delivery,
        attempts=attempts,
        outcome=outcome,
        start_mono_ns=started_ms * 1_000_000,
        done_mono_ns=done_ms * 1_000_000,
    )


def changed(event, cause, *, queue=0, drain_ms=None, mono_ns=0):
    return OwnerRecord(queue, 1, event, None, None, "a", cause, "broker", False, drain_ms, None, 0, 0, mono_ns)


def test_a_settled_message_is_counted_with_its_wait_and_its_duration() -> None:
    meters = MemberMeters()
    meters.ended(ended(received_ms=10, started_ms=14, done_ms=44), is_settled=True)
    read = meters.read()
    assert (read.waiting.sum_s, read.handling.sum_s) == (0.004, 0.03)
    assert (sum(read.waiting.counts), sum(read.handling.counts)) == (1, 1)
    assert (read.redelivered, read.retried, read.fenced, read.returned) == (0, 0, 0, 0)


def test_a_message_that_came_again_or_was_tried_again_is_counted_as_such() -> None:
    meters = MemberMeters()
    meters.ended(ended(redelivered=True), is_settled=True)
    meters.ended(ended(attempts=3), is_settled=True)
    assert (meters.redelivered, meters.retried) == (1, 1)


def test_what_is_not_settled_is_fenced_or_returned_and_has_no_duration() -> None:
    meters = MemberMeters()
    meters.ended(ended(), is_settled=False)
    meters.ended(ended(outcome=None), is_settled=False)
    meters.ended(ended(attempts=0, outcome=None), is_settled=False)
    read = meters.read()
    assert (read.fenced, read.returned, sum(read.handling.counts)) == (1, 2, 0)


def test_a_message_that_was_settled_unhandled_has_no_duration() -> None:
    meters = MemberMeters()
    meters.ended(ended(attempts=0, outcome=Outcome.REJECTED), is_settled=True)
    assert (meters.retried, sum(meters.read().handling.counts)) == (0, 0)


def test_owner_changes_are_counted_by_cause() -> None:
    meters = MemberMeters()
    for event, cause in (("taken", "elected"), ("given", "handback"), ("taken", "elected")):
        meters.owner_changed(changed(event, cause))
    counted = meters.read().owner_changes
    assert {change: count for change, count in counted.items() if count} == {
        ("taken", "elected"): 2,
        ("given", "handback"): 1,
    }


def test_every_kind_of_owner_change_is_counted_from_the_beginning_of_a_life() -> None:
    """The first takeover of a series that begins with it is no increase to Prometheus: the query of the docs is 0."""
    counted = MemberMeters().read().owner_changes
    given = {("given", cause.value) for cause in ReleaseCause}
    assert counted == dict.fromkeys({("taken", "elected"), ("taken", "handback"), *given}, 0)


@pytest.mark.parametrize(
    ("cause", "count"), [("handback", 1), ("rebind", 1), ("stop", 1), ("down", 0), ("inactive", 0)]
)
def test_a_drain_is_one_in_good_order(cause, count) -> None:
    meters = MemberMeters()
    meters.owner_changed(changed("given", cause, drain_ms=40))
    assert sum(meters.read().drains.counts) == count


def test_a_pause_ends_when_the_first_handling_begins_after_the_queue_came() -> None:
    meters = MemberMeters()
    meters.owner_changed(changed("taken", "elected", queue=3, mono_ns=100_000_000))
    meters.first_started(2, 120_000_000)
    assert sum(meters.read().first_handlings.counts) == 0, "of another queue"
    meters.first_started(3, 130_000_000)
    meters.first_started(3, 500_000_000)
    assert (sum(meters.read().first_handlings.counts), meters.read().first_handlings.sum_s) == (1, 0.03)


def test_a_queue_that_goes_untouched_had_no_pause() -> None:
    meters = MemberMeters()
    meters.owner_changed(changed("taken", "elected"))
    meters.owner_changed(changed("given", "handback", drain_ms=0))
    meters.first_started(0, 500_000_000)
    assert sum(meters.read().first_handlings.counts) == 0
