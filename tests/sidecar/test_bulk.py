"""Which events go together, and when."""

import json

from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.sidecar.bulk import BulkGathering, bulk_body
from lbg_runtime.sidecar.subscriptions import Bulk, Subscription
from tests.sidecar.events import make_event

BULK = Bulk(max_count=3, max_wait_ms=1_000)


def gathering(*numbers, now_ms=0):
    gathered = BulkGathering(BULK)
    for number in numbers:
        gathered.offer(number, now_ms)
    return gathered


def test_what_waits_goes_at_once_where_nothing_is_under_way():
    gathered = gathering(1, 2)
    assert gathered.take(0) == (1, 2)
    assert gathered.take(0) == ()
    assert gathered.deadline_ms is None


def test_where_nothing_waits_nothing_is_under_way_afterwards():
    gathered = gathering()
    assert gathered.take(0) == ()
    gathered.offer(1, 0)
    assert gathered.take(0) == (1,)


def test_what_comes_meanwhile_waits_for_the_answer():
    gathered = gathering(1)
    gathered.take(0)
    gathered.offer(2, 10)
    gathered.offer(3, 20)
    assert gathered.take(999) == ()
    gathered.answered()
    assert gathered.take(999) == (2, 3)


def test_a_full_bulk_waits_for_nothing():
    gathered = gathering(1)
    gathered.take(0)
    for number in range(2, 8):
        gathered.offer(number, 10)
    assert gathered.take(10) == (2, 3, 4)
    assert gathered.take(10) == (5, 6, 7)
    assert gathered.take(10) == ()


def test_nobody_waits_longer_than_the_application_allows():
    gathered = gathering(1)
    gathered.take(0)
    gathered.offer(2, 10)
    assert gathered.deadline_ms == 1_010
    assert gathered.take(1_009) == ()
    assert gathered.take(1_010) == (2,)


def test_an_event_in_a_hurry_waits_for_no_others_and_takes_those_before_it_along():
    gathered = gathering(1)
    gathered.take(0)
    for number in range(2, 6):
        gathered.offer(number, 10)
    assert gathered.take(10) == (2, 3, 4)
    gathered.offer(6, 10)
    gathered.hurry(6)
    assert gathered.take(10) == (5, 6)
    gathered.offer(7, 10)
    assert gathered.take(10) == ()


def test_a_hurry_of_what_does_not_wait_any_more_is_nobodys():
    gathered = gathering(1, 2)
    gathered.take(0)
    gathered.offer(3, 10)
    gathered.offer(4, 10)
    gathered.hurry(1)
    gathered.hurry(3)
    gathered.withdraw(3)
    assert gathered.take(10) == ()


def test_what_was_taken_back_is_not_sent():
    gathered = gathering(1, 2)
    gathered.withdraw(1)
    gathered.withdraw(1)
    assert gathered.take(0) == (2,)


@given(st.lists(st.sampled_from(["offer", "take", "answered", "withdraw"]), max_size=60))
def test_every_event_goes_once_in_order_and_no_bulk_is_too_large(steps):
    gathered, sent, withdrawn, under_way, number = BulkGathering(BULK), [], set(), 0, 0
    for now_ms, step in enumerate(steps):
        if step == "offer":
            number += 1
            gathered.offer(number, now_ms * 300)
        elif step == "withdraw" and number and number not in sent:
            gathered.withdraw(number)
            withdrawn.add(number)
        elif step == "answered" and under_way:
            under_way -= 1
            gathered.answered()
        elif step == "take":
            taken = gathered.take(now_ms * 300)
            under_way += bool(taken)
            assert len(taken) <= 3
            sent += taken
    assert sent == sorted(set(sent))
    assert not withdrawn & set(sent)


def test_the_request_is_as_dapr_has_it():
    subscription = Subscription("orders/>", "/bulk", "pubsub")
    told = json.loads(bulk_body(subscription, "b-1", [("1", make_event()), ("2", make_event(b"\xff", key="l"))]))
    entries = told.pop("entries")
    assert told == {
        "id": "b-1",
        "type": "com.dapr.event.sent.bulk",
        "topic": "orders/>",
        "pubsubname": "pubsub",
        "metadata": {"pubsubName": "pubsub"},
    }
    assert [entry["entryId"] for entry in entries] == ["1", "2"]
    assert [entry["event"]["partitionkey"] for entry in entries] == ["k", "l"]


def test_whoever_asks_for_raw_payloads_gets_them():
    subscription = Subscription("a", "/a", is_raw=True, bulk=BULK)
    [entry] = json.loads(bulk_body(subscription, "b1", [("1", make_event(b"{}"))]))["entries"]
    assert (entry["event"], entry["contentType"]) == ("e30=", "application/octet-stream")
