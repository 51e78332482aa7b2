"""Decides, from what is in a parking queue, which keys are parked and what to do with a message of the queue it serves.

A member has one ledger per stay as owner of a parking queue. The ledger is shown everything that is in the parking
queue, in order, and then everything that comes; so the next owner, whose ledger is shown the same, decides the same.
docs/failing.md has the protocol.

What counts. A fence says from where on an owner parks. The fence with the highest generation so far names the owner at
that point of the queue, and a parked message counts if that owner has sent it. So a message of a former owner that
comes late counts for nobody. Its original is still unsettled on its own queue, because an original is settled only by
an owner that has seen the parked message come back here, and count. Messages before the first fence count: those that
did not count were settled before the fence that said so was.

Order. A lane is replayed in the order of the queue, except for copies that came again after a crash: of two messages of
one publisher, the one with the lower number goes first.

What cannot be read stays where it is until an operator drops it: it may be a message of a later version. Until then its
lane stays parked, and nothing of that lane is replayed. If not even its lane can be read, the queue is not opened, or
is given up, and nothing behind it is settled.

More than 400 lines, as all decisions rest on the same few collections.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.core.parking.identity import MessageIdentity, identity_of, is_before
from lbg_runtime.core.parking.orders import (
    LedgerOrder,
    ParkedSeen,
    ParkingOpened,
    PublishDrop,
    PublishFence,
    Replay,
    SettleParked,
)
from lbg_runtime.core.parking.records import (
    UNREAD_LANE,
    DropAsked,
    LedgerEntry,
    OwnerFence,
    ParkedMessage,
    ParkingOwner,
    UnparkAsked,
    UnreadEntry,
)
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Message


class Verdict(Enum):
    """What to do with a message of the queue that is next in its lane."""

    HANDLE = "handle"
    PARK = "park"
    """Park it behind others of its key."""
    DROP = "drop"
    """Accept it: it has already been parked."""


@dataclass(slots=True, eq=False)
class _Parked:
    delivery_id: DeliveryId
    entry: ParkedMessage


@dataclass(slots=True, eq=False)
class _Unread:
    delivery_id: DeliveryId
    entry: UnreadEntry


@dataclass(slots=True)
class _ParkedLane:
    entries: list[_Parked] = field(default_factory=list)
    identities: set[MessageIdentity] = field(default_factory=set)
    last_numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    """The highest number ever parked here, by key and publisher."""
    unparks: list[DeliveryId] = field(default_factory=list)
    """Unsettled orders to replay the lane; while there are any it is replayed, to its end or the next failure."""
    is_offered: bool = False
    """The first entry is being handled."""
    unread: list[_Unread] = field(default_factory=list)
    """While there are any nothing more is replayed: nobody knows which messages they come before."""


class ParkingLedger:
    """Decides what is parked and replayed; does nothing itself. Called by the `ParkingStay` of a queue, on the member's
    loop."""

    def __init__(self, owner: ParkingOwner) -> None:
        self.owner = owner
        """The owner to park as; another one after `PublishFence`."""
        self.is_open = False
        self.count = 0
        """Number of parked messages, with those that cannot be read."""
        self.is_paused = False
        """Whether nothing is offered because the queue is being given up."""
        self._lanes: dict[LaneKey, _ParkedLane] = {}
        self.parked_lanes = self._lanes.keys()
        """The lanes that are parked now. A message of any other lane that is not redelivered need not be judged."""
        self._unread: list[_Unread] = []
        """What cannot be read, not even its lane."""
        self._withheld: list[LedgerOrder] = []
        """Settlements that are due, but of messages behind one that cannot be read: ordered once that is dropped."""
        self._current: ParkingOwner | None = None
        """The owner at the point of the queue that has been reached."""
        self._fence: DeliveryId | None = None
        """The fence of that owner: settled when the next one has come, so that the queue always has one."""
        self._last_number = owner.generation
        """Not from 0: operators identify messages by their numbers, and if the queue is empty, nobody knows how far an
        earlier owner counted. Generations are microseconds, and nobody parks as fast as that."""
        self._sent: dict[int, LaneKey] = {}
        """The lanes of messages that were sent and have not come back, by number."""
        self._sent_again: set[int] = set()
        """The numbers of messages that were sent more than once, and are on their way or parked."""
        self._gone: set[MessageIdentity] = set()
        """Messages of other owners that have been replayed or dropped: those owners may have died before they settled
        the originals, which then come again. No original of what this owner parked comes again while it is the
        owner."""

    # -- what is asked of it

    @property
    def lane_count(self) -> int:
        """Number of parked lanes."""
        return len(self._lanes)

    @property
    def is_idle(self) -> bool:
        """Whether every message would be handled."""
        return not self._lanes and not self._gone

    @property
    def is_fenced(self) -> bool:
        """Whether the last fence is that of the present owner."""
        return self._current == self.owner

    @property
    def obstacle(self) -> str | None:
        """Why an entry of ours that does not even say its lane cannot be read; None if there is none. With one, nobody
        may open the queue."""
        return next((one.entry.reason for one in self._unread if one.entry.is_ours), None)

    def judge(self, lane: LaneKey, message: Message, *, redelivered: bool) -> Verdict:
        """What to do with a message of the queue when it is first in its lane."""
        parked, identity = self._lanes.get(lane), identity_of(message)
        if redelivered and identity in self._gone:
            return Verdict.DROP
        if parked is None:
            return Verdict.HANDLE
        if identity is None:
            return Verdict.PARK
        if identity in parked.identities:
            return Verdict.DROP
        if parked.unread:
            return Verdict.PARK
        is_early = identity[2] < parked.last_numbers.get(identity[:2], 0)
        if redelivered and is_early and is_before(identity, parked.identities):
            # It was handled before those that are parked, but its settlement was lost: handle it again.
            return Verdict.HANDLE
        return Verdict.PARK

    def begin_park(self, lane: LaneKey) -> int:
        """Return a number for a message that is now sent to the parking queue; until it comes back, a replay of its
        lane waits for it."""
        self._last_number += 1
        self._sent[self._last_number] = lane
        return self._last_number

    def park_refused(self, number: int) -> list[LedgerOrder]:
        """What was sent under this number is not in the queue, and never will be."""
        lane = self._sent.pop(number, None)
        self._sent_again.discard(number)
        return [] if lane is None else self._end_if_empty(lane)

    def sent_again(self, number: int) -> None:
        """What was sent under this number has not come back, and is about to be sent once more."""
        self._sent_again.add(number)

    def contents(self) -> dict[LaneKey, tuple[ParkedMessage, ...]]:
        """The parked messages of each lane, in the order of their replay. Linear in the messages."""
        held = {lane: parked.entries for lane, parked in self._lanes.items() if parked.entries}
        return {lane: tuple(one.entry for one in entries) for lane, entries in held.items()}

    def unread(self) -> dict[LaneKey, tuple[UnreadEntry, ...]]:
        """What cannot be read, of each lane, and under `UNREAD_LANE` what does not even say its lane."""
        found = {lane: parked.unread for lane, parked in self._lanes.items()} | {UNREAD_LANE: self._unread}
        return {lane: tuple(one.entry for one in unread) for lane, unread in found.items() if unread}

    def count_of(self, lane: LaneKey) -> int:
        """Number of parked messages of a lane, with those that cannot be read."""
        parked = self._lanes.get(lane)
        return 0 if parked is None else len(parked.entries) + len(parked.unread)

    def is_replaying(self, lane: LaneKey) -> bool:
        """Whether somebody has asked for the replay of a lane, and the replay is not done."""
        parked = self._lanes.get(lane)
        return parked is not None and bool(parked.unparks)

    # -- what it is told

    def take(self, delivery_id: DeliveryId, entry: LedgerEntry) -> list[LedgerOrder]:
        """The next message of the parking queue."""
        clears_up = isinstance(entry, DropAsked) and entry.lane == UNREAD_LANE
        is_hidden = self.obstacle is not None and not clears_up
        orders = self._take(delivery_id, entry)
        if not is_hidden:
            return orders
        # What cannot be read may be a fence that decides what counts here, or the message that an order is about. A
        # member that can read it must find what lies behind it.
        self._withheld += [order for order in orders if isinstance(order, SettleParked)]
        return [order for order in orders if not isinstance(order, SettleParked)]

    def _take(self, delivery_id: DeliveryId, entry: LedgerEntry) -> list[LedgerOrder]:
        match entry:
            case OwnerFence(owner):
                return self._take_fence(delivery_id, owner)
            case ParkedMessage():
                return self._take_message(delivery_id, entry)
            case UnparkAsked(lane):
                parked = self._lanes.get(lane)
                if parked is None:
                    return [SettleParked(delivery_id)]
                parked.unparks.append(delivery_id)
                return self._offer(lane, parked)
            case DropAsked():
                return self._take_drop(delivery_id, entry)
            case UnreadEntry():
                return self._take_unread(_Unread(delivery_id, entry))
            case _:
                assert_never(entry)

    def replayed(self, lane: LaneKey) -> list[LedgerOrder]:
        """The message that was offered has been handled, or moved elsewhere."""
        parked = self._offered(lane)
        parked.is_offered = False
        return self._remove(lane, parked, [parked.entries[0]])

    def replay_failed(self, lane: LaneKey) -> list[LedgerOrder]:
        """The attempts of the offered message have failed again: the lane stays parked until its replay is requested
        again."""
        parked = self._offered(lane)
        parked.is_offered = False
        orders = [SettleParked(delivery_id) for delivery_id in parked.unparks]
        parked.unparks.clear()
        return [*orders]

    def replay_returned(self, lane: LaneKey) -> list[LedgerOrder]:
        """The offered message ended without an outcome; it is offered again, unless something prevents that."""
        parked = self._offered(lane)
        parked.is_offered = False
        return self._offer(lane, parked)

    def pause(self) -> None:
        """The queue is being given up: offer nothing more."""
        self.is_paused = True

    def resume(self) -> list[LedgerOrder]:
        """The queue is kept after all."""
        self.is_paused = False
        return self._offer_all()

    # -- reactions

    def _take_fence(self, delivery_id: DeliveryId, owner: ParkingOwner) -> list[LedgerOrder]:
        current = self._current
        if current is not None and owner.generation <= current.generation:
            if owner != self.owner or current == self.owner:
                return [SettleParked(delivery_id)]
            # Our clock is behind that of an earlier owner.
            return [SettleParked(delivery_id), self._fence_above(current)]
        orders: list[LedgerOrder] = [] if self._fence is None else [SettleParked(self._fence)]
        was_fenced = self.is_fenced
        self._current, self._fence = owner, delivery_id
        if owner == self.owner:
            return [*orders, *self._open()]
        if was_fenced:
            # A fence of an earlier owner that came late. Nothing of ours counts until the last fence is ours again.
            self.is_open = False
            orders.append(self._fence_above(owner))
        return orders

    def _open(self) -> list[LedgerOrder]:
        if self.is_open or not self.is_fenced or self.obstacle is not None:
            return []
        self.is_open = True
        lost, self._sent = self._sent, {}
        self._sent_again.difference_update(lost)
        orders = [order for lane in lost.values() for order in self._end_if_empty(lane)]
        return [*orders, ParkingOpened(), *self._offer_all()]

    def _fence_above(self, other: ParkingOwner) -> PublishFence:
        self.owner = ParkingOwner(other.generation + 1, self.owner.nonce)
        # The other owner counted from its own generation.
        self._last_number = max(self._last_number, self.owner.generation)
        return PublishFence()

    def _take_message(self, delivery_id: DeliveryId, entry: ParkedMessage) -> list[LedgerOrder]:
        self._infer_fence(entry.owner)
        if self._current is not None and entry.owner != self._current:
            return [SettleParked(delivery_id)]
        orders: list[LedgerOrder] = []
        if entry.owner == self.owner:
            if self.obstacle is not None:
                # Behind a fence that only others can read, say, it would not count for them.
                return []
            if self._sent.pop(entry.number, None) is None:
                # A second copy, sent because the first did not come in time. The first may have been replayed by now.
                return [SettleParked(delivery_id)]
            orders.append(ParkedSeen(entry.number))
        parked = self._lanes.setdefault(entry.lane, _ParkedLane())
        identity = identity_of(entry.original)
        if self._has(parked, entry, identity):
            return [*orders, SettleParked(delivery_id), *self._drop_the_rest(entry)]
        self._last_number = max(self._last_number, entry.number)
        parked.entries.insert(_place(parked, identity), _Parked(delivery_id, entry))
        if identity is not None:
            parked.identities.add(identity)
            publisher = identity[:2]
            parked.last_numbers[publisher] = max(identity[2], parked.last_numbers.get(publisher, 0))
        self.count += 1
        return [*orders, *self._offer(entry.lane, parked)]

    def _infer_fence(self, owner: ParkingOwner) -> None:
        # An owner parks only when its own fence has come. If we saw none, we could not read it, or it was dropped.
        is_above = self._current is not None and owner.generation > self._current.generation
        # Behind our own fence the message came late, and counts for nobody: its owner cannot have seen that fence.
        if is_above and not self.is_fenced:
            self._current = owner

    def _has(self, parked: _ParkedLane, entry: ParkedMessage, identity: MessageIdentity | None) -> bool:
        if identity is not None:
            return identity in parked.identities
        # Sent twice under one number, by an earlier owner: nothing of its lane was sent in between.
        return any(one.entry.owner == entry.owner and one.entry.number == entry.number for one in parked.entries[-1:])

    def _take_unread(self, one: _Unread) -> list[LedgerOrder]:
        lane, only = one.entry.lane, one.entry.only
        if lane is None:
            self._unread.append(one)
            self.is_open = self.is_open and self.obstacle is None
            return []
        if only is not None:
            self._infer_fence(only[0])
            if self._current is not None and only[0] != self._current:
                # It came late and does not count. If it were kept, it would count once the fences before it are gone.
                return [SettleParked(one.delivery_id)]
        self._lanes.setdefault(lane, _ParkedLane()).unread.append(one)
        self.count += 1
        return []

    def _take_drop(self, delivery_id: DeliveryId, asked: DropAsked) -> list[LedgerOrder]:
        if asked.lane == UNREAD_LANE:
            nameless, self._unread = self._unread, []
            withheld, self._withheld = self._withheld, []
            # Settled before any later fence settles the present one: without the fences before it, what did not count
            # would count.
            gone = [*(SettleParked(one.delivery_id) for one in nameless), *withheld]
            return [*gone, SettleParked(delivery_id), *self._open()]
        parked = self._lanes.get(asked.lane)
        orders: list[LedgerOrder] = []
        if parked is not None:
            for unread in [one for one in parked.unread if asked.only in (None, one.entry.only)]:
                parked.unread.remove(unread)
                self.count -= 1
                if (identity := identity_of(unread.entry.message)) is not None:
                    self._gone.add(identity)
                orders.append(SettleParked(unread.delivery_id))
            # A message that is being handled is not taken away from its handler.
            free = parked.entries[1:] if parked.is_offered else parked.entries
            meant = [one for one in free if asked.only in (None, (one.entry.owner, one.entry.number))]
            orders += self._remove(asked.lane, parked, meant)
        return [*orders, SettleParked(delivery_id)]

    def _remove(self, lane: LaneKey, parked: _ParkedLane, gone: Iterable[_Parked]) -> list[LedgerOrder]:
        orders: list[LedgerOrder] = []
        for one in list(gone):
            parked.entries.remove(one)
            identity = identity_of(one.entry.original)
            if identity is not None:
                parked.identities.discard(identity)
                if one.entry.owner != self.owner:
                    self._gone.add(identity)
            self.count -= 1
            orders += [SettleParked(one.delivery_id), *self._drop_the_rest(one.entry)]
        return [*orders, *(self._offer(lane, parked) if parked.entries else self._end_if_empty(lane))]

    def _drop_the_rest(self, entry: ParkedMessage) -> list[LedgerOrder]:
        # Every copy under this number was sent before the first one came, so the drop order comes after all of them.
        if entry.owner.nonce != self.owner.nonce or entry.number not in self._sent_again:
            return []
        self._sent_again.discard(entry.number)
        return [PublishDrop(DropAsked(entry.lane, (entry.owner, entry.number)))]

    def _end_if_empty(self, lane: LaneKey) -> list[LedgerOrder]:
        parked = self._lanes.get(lane)
        if parked is None or parked.entries or parked.unread or lane in self._sent.values():
            return []
        del self._lanes[lane]
        # After the messages: in the other order, a crash between the two would leave the rest parked.
        return [SettleParked(unpark) for unpark in parked.unparks]

    def _offer(self, lane: LaneKey, parked: _ParkedLane) -> list[LedgerOrder]:
        if not self.is_open or self.is_paused or parked.is_offered or not parked.unparks or not parked.entries:
            return []
        if parked.unread:
            return []
        parked.is_offered = True
        first = parked.entries[0]
        return [Replay(lane, first.delivery_id, first.entry.original)]

    def _offer_all(self) -> list[LedgerOrder]:
        return [order for lane, parked in self._lanes.items() for order in self._offer(lane, parked)]

    def _offered(self, lane: LaneKey) -> _ParkedLane:
        parked = self._lanes.get(lane)
        if parked is None or not parked.is_offered:
            raise InvariantViolated(f"a replay of lane {lane} ended and was not offered")
        return parked


def _place(parked: _ParkedLane, identity: MessageIdentity | None) -> int:
    """The index of a message in its lane: at the end, or before the first later one of its publisher."""
    if identity is not None and identity[2] < parked.last_numbers.get(identity[:2], 0):
        for index, one in enumerate(parked.entries):
            other = identity_of(one.entry.original)
            if other is not None and other[:2] == identity[:2] and other[2] > identity[2]:
                # Never before a message that is being handled.
                return max(index, 1) if parked.is_offered else index
    return len(parked.entries)
