"""The broker and the owner of a small queue with its parking queue: what steps of `SmallParking` are made of."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from lbg_runtime.core.parking.ledger import ParkingLedger, Verdict
from lbg_runtime.core.parking.orders import (
    LedgerOrder,
    ParkedSeen,
    ParkingOpened,
    PublishDrop,
    PublishFence,
    Replay,
    SettleParked,
)
from lbg_runtime.core.parking.records import LedgerEntry, OwnerFence, ParkedMessage, UnparkAsked
from lbg_runtime.model.ids import DeliveryId
from tests.core.histories import Breach
from tests.core.parking.small_parking_parts import (
    Item,
    Name,
    Owner,
    Settled,
    Setup,
    Spooled,
    message,
    name_of,
    owner_of,
    owner_twin,
    sign_all,
)


class ParkedWorld:
    """A state, what its owner may do in it, and what follows."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.may_happen = setup.may_happen
        self.spool: tuple[Spooled, ...] = ()
        self.unpublished = tuple((key, setup.keys[: place + 1].count(key)) for place, key in enumerate(setup.keys))
        self.parking: dict[DeliveryId, LedgerEntry] = {}
        self.spooled = 0
        self.late: tuple[LedgerEntry, ...] = ()
        """Each is still to come, from owners that were cut off."""
        self.handled: frozenset[Name] = frozenset()
        self.dropped: frozenset[Name] = frozenset()
        self.done: frozenset[Name] = frozenset()
        """Nobody may handle them again."""
        self.failed: frozenset[str] = frozenset()
        """Keys of which a replay has failed: with it, all ends that was asked for until then."""
        self.is_uneven = False
        """Settlements were lost, and what was settled or sent behind them was not."""
        self.mended: frozenset[str] = frozenset()
        """Keys of which nothing fails any more."""
        self.owners = 0
        self.owner = self._new_owner()

    def twin(self) -> Self:
        """A copy to take a step in."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.parking, made.owner = self.parking.copy(), owner_twin(self.owner)
        return made

    def late_signs(self) -> tuple[object, ...]:
        """For marks."""
        return sign_all(self.late)

    def _new_owner(self) -> Owner:
        self.owners += 1
        name = owner_of(self.setup.clocks[self.owners - 1], self.owners)
        return Owner(ParkingLedger(name), line=(OwnerFence(name),))

    def _next_message(self) -> Spooled | None:
        return next((each for each in self.spool if each.name not in self.owner.shown), None)

    def _verdict(self, item: Item) -> Verdict:
        if item.has_failed or item.has_come:
            return Verdict.PARK
        judge = self.owner.ledger.judge
        return judge(item.name[0], message(item.name), redelivered=item.is_redelivered)

    def _replays_of(self, key: str) -> list[Item]:
        """Those that may be brought forward."""
        owner = self.owner
        return [item for item in owner.lanes[key] if item.parked_id is not None and owner.ledger.is_replaying(key)]

    def _has_turn(self, key: str) -> bool:
        owner = self.owner
        if key in owner.running or not owner.lanes[key]:
            return False
        head = owner.lanes[key][0]
        if head.is_awaited and not head.has_come:
            return False
        if head.parked_id is not None or self._verdict(head) is not Verdict.PARK:
            return True
        return head.has_come or owner.ledger.is_open or bool(self._replays_of(key))

    # -- the broker

    def _put(self, entry: LedgerEntry) -> None:
        self.spooled += 1
        self.parking[DeliveryId(self.spooled)] = entry

    def _take_away(self, delivery_id: DeliveryId) -> None:
        entry = self.parking.pop(delivery_id, None)
        if isinstance(entry, UnparkAsked) and entry.lane not in self.failed:
            before = [each for place, each in self.parking.items() if place < delivery_id]
            parked = [each for each in before if isinstance(each, ParkedMessage)]
            if left := [name_of(each) for each in parked if each.lane == entry.lane]:
                raise Breach(f"the replay of {left} is forgotten")

    def _arrive(self) -> None:
        first, self.owner.line = self.owner.line[0], self.owner.line[1:]
        if not isinstance(first, Settled):
            self._put(first)
        elif not isinstance(first.what, tuple):
            self._take_away(first.what)
        else:
            if first.is_handled and any(each.name == first.what for each in self.spool):
                self.done |= {first.what}
            self.spool = tuple(each for each in self.spool if each.name != first.what)

    def _check(self) -> None:
        parked = {name_of(each) for each in self.parking.values() if isinstance(each, ParkedMessage)}
        there = {each.name for each in self.spool} | parked | set(self.unpublished) | self.handled | self.dropped
        for place, key in enumerate(self.setup.keys):
            if (name := (key, self.setup.keys[: place + 1].count(key))) not in there:
                raise Breach(f"{name} is lost")

    # -- the owner's lanes

    def _queue_up(self, item: Item) -> None:
        key = item.name[0]
        self.owner.lanes[key] = (*self.owner.lanes.get(key, ()), item)

    def _start(self, item: Item) -> None:
        """The promises: an earlier message of the key comes first, and what is done stays done."""
        key, number = item.name
        if missing := {(key, each) for each in range(1, number)} - self.handled - self.dropped:
            raise Breach(f"{item.name} is handled before {missing}")
        if item.name in self.done:
            raise Breach(f"{item.name} is handled again")
        if key != "p" and item.name in self.owner.handled:
            raise Breach(f"{item.name} is handled twice by one owner")
        if key != "p" and item.name not in self.dropped and not self.is_uneven:
            for later in self.owner.handled | self._gone():
                if later[0] == key and later[1] > number:
                    raise Breach(f"{item.name} is handled again behind {later}")
        self.owner.running |= {key}
        self._renew_head(item)

    def _gone(self) -> frozenset[Name]:
        """What is handled, and lies nowhere."""
        parked = [*self.parking.values(), *self.late, *self.owner.line]
        there = {name_of(each) for each in parked if isinstance(each, ParkedMessage)}
        return self.handled - there - {each.name for each in self.spool}

    def _settle(self, head: Item, *, is_handled: bool = False) -> None:
        owner, key = self.owner, head.name[0]
        owner.lanes[key] = owner.lanes[key][1:]
        if "queue" not in owner.lost:
            owner.held = (*owner.held, Settled(head.name, is_handled))

    def _renew_head(self, head: Item) -> None:
        key = head.name[0]
        self.owner.lanes[key] = (head, *self.owner.lanes[key][1:])

    def _park(self, key: str) -> None:
        owner, head = self.owner, self.owner.lanes[key][0]
        ledger = owner.ledger
        if not ledger.is_open:
            return
        copy = head.copy
        if copy is None:
            number = ledger.begin_park(key)
            copy = ParkedMessage(key, ledger.owner, number, message(head.name), 1, "e", "s", "m", 0)
        copy = replace(copy, owner=ledger.owner)
        if head.was_sent:
            ledger.sent_again(copy.number)
        # What was handled before it is settled first.
        owner.line, owner.held = (*owner.line, *owner.held, copy), ()
        self._renew_head(replace(head, copy=copy, was_sent=True, is_awaited=True))

    def _timer(self) -> None:
        owner = self.owner
        owner.line, owner.held, owner.held_parked = (*owner.line, *owner.held, *owner.held_parked), (), ()

    def _fence_again(self) -> None:
        self.owner.line = (*self.owner.line, OwnerFence(self.owner.ledger.owner))

    # -- what the ledger orders

    def _obey(self, orders: list[LedgerOrder]) -> None:
        owner = self.owner
        for order in orders:
            match order:
                case SettleParked(delivery_id):
                    if "parking" not in owner.lost:
                        owner.held_parked = (*owner.held_parked, Settled(delivery_id))
                case ParkedSeen(number):
                    self._change_copies(lambda _, copy, n=number: copy.number == n, has_come=True)
                case Replay(_, delivery_id, original):
                    self._queue_up(Item((str(original.key), int(original.payload)), True, delivery_id))
                case PublishFence():
                    self._fence_again()
                case PublishDrop(asked):
                    owner.line = (*owner.line, asked)
                case ParkingOpened():
                    owner.is_open = True
                    self._change_copies(lambda item, _: not item.has_come, is_awaited=False, copy=None, was_sent=False)

    def _change_copies(self, is_meant: Callable[[Item, ParkedMessage], bool], **changes: Any) -> None:
        for key, lane in self.owner.lanes.items():
            self.owner.lanes[key] = tuple(
                replace(item, **changes) if item.copy is not None and is_meant(item, item.copy) else item
                for item in lane
            )
