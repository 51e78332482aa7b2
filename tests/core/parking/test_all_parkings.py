"""All histories of a small queue with its parking queue: whatever may happen, at whatever moment, nothing is lost or
overtaken, and all is replayed in the end.

A few are part of the tests; run as a script, it tries each pair of mishaps, which takes minutes. More is searched with
other values of `Setup`; with two mishaps and no step `at_once` it takes seconds to minutes.
"""

from collections.abc import Callable
from itertools import combinations_with_replacement

import pytest

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.core.parking import ledger as ledger_module
from lbg_runtime.core.parking.ledger import ParkingLedger, Verdict
from lbg_runtime.core.parking.orders import LedgerOrder, PublishFence, SettleParked
from lbg_runtime.core.parking.records import DropAsked, LedgerEntry, ParkedMessage, ParkingOwner, UnparkAsked
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Message
from tests.core.histories import Histories, tell_of
from tests.core.parking.small_parking import SmallParking
from tests.core.parking.small_parking_parts import Name, Setup, mark

PROMPT = ("deliver", "arrive", "notice")
"""Nothing is late but what is read, handled, or settled by the timer; messages and mishaps come at any moment."""
READ = (*PROMPT, "read")
"""Nor what is read of the parking queue."""
MISHAPS = (
    *("unpark", "unpark unmended", "drop", "refuse", "doubt", "leave", "stay", "die", "cut", "fence again"),
    *("lose for a moment", "lose the queue", "lose the parking queue"),
)
WRONG_CLOCKS = (30, 10, 20)
FIRST: tuple[Name, ...] = (("a", 1),)
SECOND: tuple[Name, ...] = (("a", 2),)


def histories_of(setup: Setup) -> Histories[SmallParking]:
    """All of them, from the moment at which the first owner is fed."""
    return Histories(SmallParking(setup), SmallParking.twin, mark, "at last")


@pytest.mark.parametrize(
    ("setup", "fewest"),
    [
        (Setup("aa", FIRST), 45),
        (Setup("ab", (*FIRST, ("b", 1)), at_once=READ), 120),
        (Setup("aa", FIRST, ("unpark", "unpark unmended"), READ), 600),
        (Setup("aa", FIRST, ("unpark", "drop"), PROMPT), 1_000),
        (Setup("aa", FIRST, ("unpark", "refuse"), PROMPT), 350),
        (Setup("aa", FIRST, ("unpark", "doubt"), PROMPT), 900),
        (Setup("pp", (("p", 1),), ("unpark", "swallow"), PROMPT), 500),
        (Setup("aa", FIRST, ("leave", "stay"), READ), 400),
        (Setup("aa", FIRST, ("leave", "unpark"), READ), 1_200),
        (Setup("aa", SECOND, ("die", "unpark"), READ), 600),
        (Setup("pp", (("p", 1),), ("die",), READ), 450),
        (Setup("aa", FIRST, ("cut",), READ), 1_000),
        (Setup("aa", FIRST, ("cut",), READ, WRONG_CLOCKS), 1_300),
        (Setup("aa", SECOND, ("cut", "unpark"), READ), 1_400),
        (Setup("aa", FIRST, ("fence again",), READ, WRONG_CLOCKS), 130),
        (Setup("aa", FIRST, ("lose for a moment",), READ), 450),
        (Setup("aa", SECOND, ("lose for a moment", "unpark"), READ), 600),
        (Setup("aaa", SECOND, ("lose the queue",), READ), 1_100),
        (Setup("aa", SECOND, ("lose the parking queue", "unpark"), READ), 600),
    ],
    ids=lambda value: "+".join((value.keys, *value.may_happen)) if isinstance(value, Setup) else str(value),
)
def test_every_history_keeps_what_is_promised_and_ends_well(setup: Setup, fewest: int) -> None:
    histories = histories_of(setup)
    assert histories.problem == ""
    assert len(histories) > fewest, "there were more states: what has become impossible?"


def _judge_without_memory(ledger: ParkingLedger, lane: LaneKey, message: Message, *, redelivered: bool) -> Verdict:
    ledger._gone.clear()
    return JUDGE(ledger, lane, message, redelivered=redelivered)


def _handle_whatever_is_parked(ledger: ParkingLedger, lane: LaneKey, message: Message, *, redelivered: bool) -> Verdict:
    return Verdict.HANDLE


def _count_late_ones(ledger: ParkingLedger, delivery_id: DeliveryId, entry: ParkedMessage) -> list[LedgerOrder]:
    if entry.owner == ledger.owner:
        return TAKE_MESSAGE(ledger, delivery_id, entry)
    fenced, ledger._current = ledger._current, None
    orders = TAKE_MESSAGE(ledger, delivery_id, entry)
    ledger._current = fenced
    return orders


def _count_each_copy(ledger: ParkingLedger, delivery_id: DeliveryId, entry: ParkedMessage) -> list[LedgerOrder]:
    if entry.owner == ledger.owner:
        ledger._sent.setdefault(entry.number, entry.lane)
    return TAKE_MESSAGE(ledger, delivery_id, entry)


def _end_without_what_was_sent(ledger: ParkingLedger, lane: LaneKey) -> list[LedgerOrder]:
    sent, ledger._sent = ledger._sent, {}
    orders = END_IF_EMPTY(ledger, lane)
    ledger._sent = sent
    return orders


def _settle_requests_at_once(ledger: ParkingLedger, delivery_id: DeliveryId, entry: LedgerEntry) -> list[LedgerOrder]:
    orders = TAKE(ledger, delivery_id, entry)
    return [*orders, SettleParked(delivery_id)] if isinstance(entry, UnparkAsked) else orders


def _drop_what_is_handled(ledger: ParkingLedger, delivery_id: DeliveryId, asked: DropAsked) -> list[LedgerOrder]:
    if (parked := ledger._lanes.get(asked.lane)) is not None:
        parked.is_offered = False
    return TAKE_DROP(ledger, delivery_id, asked)


def _keep_the_fence_before(ledger: ParkingLedger, delivery_id: DeliveryId, owner: ParkingOwner) -> list[LedgerOrder]:
    ledger._fence = None
    return TAKE_FENCE(ledger, delivery_id, owner)


def _fail_and_forget_nothing(ledger: ParkingLedger, lane: LaneKey) -> list[LedgerOrder]:
    ledger._offered(lane).is_offered = False
    return []


JUDGE, TAKE, END_IF_EMPTY = ParkingLedger.judge, ParkingLedger._take, ParkingLedger._end_if_empty
TAKE_MESSAGE, TAKE_FENCE = ParkingLedger._take_message, ParkingLedger._take_fence
TAKE_DROP = ParkingLedger._take_drop


@pytest.mark.parametrize(
    ("name", "broken", "setup", "problem"),
    [
        ("judge", _judge_without_memory, Setup("a", FIRST, ("die", "unpark"), READ), "is handled twice by one owner"),
        ("judge", _handle_whatever_is_parked, Setup("aa", FIRST), "is handled before"),
        ("_take_message", _count_late_ones, Setup("aa", FIRST, ("cut", "unpark"), READ), "is handled again"),
        ("_take_message", _count_each_copy, Setup("aa", FIRST, ("doubt", "unpark"), PROMPT), "is lost"),
        ("_has", lambda *_: False, Setup("a", FIRST, ("doubt", "die"), PROMPT), "is handled twice by one owner"),
        (
            "_end_if_empty",
            _end_without_what_was_sent,
            Setup("aa", FIRST, ("doubt", "unpark"), PROMPT),
            "is handled again",
        ),
        ("_drop_the_rest", lambda *_: [], Setup("a", FIRST, ("doubt", "leave", "unpark")), "is handled again"),
        ("_take", _settle_requests_at_once, Setup("a", FIRST, ("unpark",)), "is forgotten"),
        ("_take_drop", _drop_what_is_handled, Setup("a", FIRST, ("unpark", "drop")), "was not offered"),
        ("_take_fence", _keep_the_fence_before, Setup("a", FIRST, ("die",)), "nothing goes on"),
        (
            "_fence_above",
            lambda *_: PublishFence(),
            Setup("a", FIRST, ("die",), PROMPT, WRONG_CLOCKS),
            "nothing goes on",
        ),
        ("replay_failed", _fail_and_forget_nothing, Setup("a", FIRST, ("unpark unmended",)), "nothing goes on"),
        ("resume", lambda _: [], Setup("a", FIRST, ("leave", "stay")), "nothing goes on"),
        ("park_refused", lambda *_: [], Setup("a", FIRST, ("refuse",)), "nothing goes on"),
        ("_offer_all", lambda _: [], Setup("a", FIRST, ("die",)), "nothing goes on"),
    ],
)
def test_a_broken_rule_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., object], setup: Setup, problem: str
) -> None:
    monkeypatch.setattr(ParkingLedger, name, broken)
    assert problem in histories_of(setup).problem


def test_replaying_the_last_first_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_place", lambda *_: 0)
    assert "is handled before" in histories_of(Setup("aa", FIRST)).problem


def test_marks_know_all_that_changes_in_a_ledger() -> None:
    """A field that is new here belongs into `mark`, unless it never changes or follows from the others."""
    ledger = SmallParking(Setup("a", ())).owner.ledger
    names = {"owner", "is_open", "count", "is_paused", "parked_lanes", "_lanes", "_unread", "_withheld", "_current"}
    assert set(vars(ledger)) == names | {"_fence", "_last_number", "_sent", "_sent_again", "_gone"}
    names = {"entries", "identities", "last_numbers", "unparks", "is_offered", "unread"}
    assert set(ledger_module._ParkedLane.__slots__) == names


def _try_everything() -> None:
    for pair in combinations_with_replacement(MISHAPS, 2):
        setup = Setup("aa", FIRST, pair, READ)
        tell_of(pair, histories_of(setup))


if __name__ == "__main__":
    _try_everything()
