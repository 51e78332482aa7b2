"""A member's stay as the owner of a parking queue: shows its ledger what is in the queue, and carries out its orders.

First the parking queue is bound. Once it is fed to us, a fence is published into it. When the fence comes back, we have
been shown everything that is parked, and from then on this member parks. docs/failing.md says what each step leaves
behind if the process dies after it.

More than 400 lines, as all that can happen in a stay acts on the same handle.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import assert_never

import structlog

from lbg_runtime.core.flow.events import FlowActive, FlowDown, FlowEvent, FlowInactive, MessageReceived
from lbg_runtime.core.group.control_messages import ParkingWait
from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.core.parking.ledger import ParkingLedger
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
    ParkedMessage,
    ParkingOwner,
    RoomKept,
    UnreadEntry,
    decode_entry,
    encode_entry,
)
from lbg_runtime.core.parking.stay_state import HELD, OUT_OF_REACH, STAYING, STEPS, StayEvent, StayState
from lbg_runtime.model.errors import BindFailed, InvariantViolated, ParkingNotReady, PublishRefused
from lbg_runtime.model.failure import Then
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.clock import now_ms, wall_us
from lbg_runtime.runtime.parking.copies import Copies, Copy, CopyDrops
from lbg_runtime.runtime.parking.fence import StayFence
from lbg_runtime.runtime.parking.ports import ParkingPorts
from lbg_runtime.runtime.parking.room import ParkingRoom, with_remedy
from lbg_runtime.runtime.runners.failure_report import FailureReport
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.transport.base import BoundFlow

_log = structlog.get_logger(__name__)

MAX_PARKED = 9_000
"""The most messages in one parking queue. Less than `SHOWN_UNSETTLED`, as parked messages stay unsettled, and fences,
orders and fillers must be shown beside them."""

RETRY_S = 1.0
"""The time between two tries to bind a parking queue."""

TOLD_AGAIN_S = 10.0
"""While a parking queue cannot be bound, the log says so at once and then again, the first time after this."""

TOLD_AT_LEAST_S = 320.0
"""The time between two such log lines doubles up to this."""

COPY_PATIENCE_S = 10.0
"""How long a copy that was confirmed may take to come; after that, the next retry of its message sends it again."""


class ParkingStay:
    """Owns the parking queue of a queue for one epoch; made by `ParkedQueue`. `run` once, in a task of its own."""

    def __init__(
        self, parking: QueueName, epoch: Epoch, owner: ParkingOwner, ports: ParkingPorts, on_open: Callable[[], None]
    ) -> None:
        """`on_open` is called once, when everything parked is known."""
        self.epoch = epoch
        self.ledger = ParkingLedger(owner)
        """What it says remains true after the end of the stay, until another stay begins."""
        self.is_open = False
        self.is_unheard = False
        """Whether the broker left the unbind unanswered, so that what was settled here before may come again."""
        self.ended = asyncio.Event()
        """Set by its owner when `run` has ended."""
        self._parking = parking
        self._ports = ports
        self._on_open = on_open
        self._flow: BoundFlow | None = None
        self._events: deque[FlowEvent | Handling] = deque()
        self._wake_up = asyncio.Event()
        self._state = StayState.OWNING
        self._owed: list[DropAsked] = []
        """Drop orders that wait: they follow settlements that are repeated if this handle is bound again."""
        self._replays: dict[DeliveryId, LaneKey] = {}
        """Replays that were dispatched and have not ended."""
        self._copies = Copies(self.ledger)
        self._tasks: asyncio.TaskGroup | None = None
        self._where = {"queue": ports.queue, "parking": parking, "epoch": epoch}
        self._waits_since_ms = now_ms()
        self._refusal: str | None = None
        """Why there is no flow on the parking queue, if that is known; None while there is one."""
        self._fence = StayFence(ports.queue, parking, epoch, self.ledger, ports.session)
        self._drops = CopyDrops(parking, ports.session, self._wake_up.set)
        self._room = ParkingRoom(parking, ports.session, self._settle_at_once)

    # -- what the parked queue calls

    @property
    def wait(self) -> ParkingWait | None:
        """Why it is not known what is parked; None if it is."""
        if self.is_open:
            return None
        reason = self._refusal or self._fence.trouble or "what lies there has not been read yet"
        if (obstacle := self.ledger.obstacle) is not None:
            reason = f"something lies there that this version cannot read ({obstacle}): see `lbg parked list`"
        return ParkingWait(now_ms() - self._waits_since_ms, reason)

    def pause(self) -> None:
        """Start no further replays, as the queue is being given up.

        But a move to another queue is completed if the copy may have arrived there: otherwise the next owner would
        handle the message once more.
        """
        self.ledger.pause()
        self._ports.return_unstarted(self._parking, self.epoch, True)

    def resume(self) -> None:
        """Start replays again, as the queue is kept after all."""
        if self.is_open and self._state is StayState.OWNING:
            self._obey(self.ledger.resume())

    def give_up(self) -> None:
        """Count the parking queue as lost, as another member may have it by now."""
        if self._state in HELD:
            # Not left to the stay's own turn: before that, a runner may take its next turn, and a replay may end.
            self.ledger.pause()
            self._ports.return_unstarted(self._parking, self.epoch, False)
            self._take_event(FlowInactive(self.epoch))

    def end(self) -> None:
        """Give the parking queue up; `run` then ends. Idempotent."""
        self._move(StayEvent.LET_GO)
        self._wake_up.set()

    def finished(self, handling: Handling) -> None:
        """Take the end of a replay, from the dispatcher."""
        if handling.outcome is None:
            self._take_event(handling)
        else:
            # Not left to the stay's own turn: the next message of the key may be judged before that.
            self._take_end(handling)
            self._wake_up.set()

    def has(self, handling: Handling) -> bool:
        """Whether a message that could not be parked in time is or was here all the same, so that it must be
        accepted."""
        return self._copies.has_come(handling)

    def forget(self, handling: Handling) -> None:
        """Forget the copy of a message that is accepted."""
        self._copies.forget(handling)

    async def park(self, handling: Handling, lane: LaneKey, report: FailureReport) -> None:
        """Return when the message is in the parking queue, and counts; raises `ParkingNotReady` or `PublishFailed`.

        If this raises or is cancelled, the message may be there nevertheless; a second copy is then recognized.
        """
        if not self.has(handling):
            self._check_ready(handling)
            # Before any wait, as the verdict that brought the message here is true only now.
            await self._try_to_park(handling, self._copies.of(handling, lane), lane, report)
        self.forget(handling)

    async def _try_to_park(self, handling: Handling, copy: Copy, lane: LaneKey, report: FailureReport) -> None:
        was_sent = copy.was_sent
        try:
            async with self._room.kept():
                await self._send(handling, copy, lane, report)
        except PublishRefused as refusal:
            # Only if no earlier copy was sent: the fate of that would be unknown.
            if not was_sent:
                self._obey(self._copies.refused(handling))
            raise with_remedy(refusal) from None

    async def _send(self, handling: Handling, copy: Copy, lane: LaneKey, report: FailureReport) -> None:
        # Messages of its key that were handled must be settled before this one is elsewhere, or they could come back
        # after it. No bound: the flow runner answers in its next turn.
        await self._ports.flush()
        self._check_kept(copy)
        if copy.has_come:
            return
        self._check_ready(handling)
        entry = ParkedMessage(
            lane=lane,
            owner=self.ledger.owner,
            number=copy.number,
            original=handling.delivery.message,
            attempts=report.attempts,
            error=report.error,
            stack=report.stack,
            member=self._ports.member,
            parked_at_ms=wall_us() // 1_000,
        )
        self._copies.about_to_send(copy)
        try:
            await self._ports.session.send(encode_entry(entry, self._parking))
        except PublishRefused as refusal:
            if not (refusal.is_for_size and entry.error):
                raise
            # It is nowhere yet. The log has the error and its stack, so try without: otherwise the key would have to
            # wait until somebody raises the limit.
            await self._ports.session.send(encode_entry(replace(entry, error="", stack=""), self._parking))
        # The confirm alone proves nothing: brokers confirm even messages that no queue attracts.
        await asyncio.wait((copy.came,), timeout=COPY_PATIENCE_S)
        if not copy.came.done():
            self._room.doubt()
            reason = f"what was sent there has not come for {COPY_PATIENCE_S:g} s, though the broker has confirmed it"
            expected = f"expected a queue that subscribes to {self._parking}"
            raise ParkingNotReady(self._parking, f"{reason}; {expected}", was_sent=True)
        self._check_kept(copy)

    def _check_kept(self, copy: Copy) -> None:
        if copy.is_given_up:
            raise ParkingNotReady(self._parking, "it was given up meanwhile", was_sent=copy.was_sent)

    # -- the stay

    async def run(self) -> None:
        """Own the parking queue until `end`, or until it is lost."""
        self._flow = flow = await self._bind()
        if flow is None:
            self._move(StayEvent.UNBOUND)
            return
        self._fence.await_it()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    await self._read()
                finally:
                    self._fence.end()
                    self._drops.end()
        finally:
            if self.is_open:
                self.is_open, self._waits_since_ms = False, now_ms()
            self._refusal = "its flow there has ended, and the queue is being given up"
            self._room.end()
            self._move(StayEvent.UNBOUND)
            self._copies.give_up()
            self.is_unheard = not await flow.unbind()

    async def _read(self) -> None:
        while self._state is StayState.OWNING:
            # No bound: a member owns the parking queue until its queue goes.
            await self._take_turn()
        self.pause()
        while self._state in STAYING:
            # The queue's own handle may outlast an outage, and then repeats settlements of messages that follow those
            # replayed here. So this handle must outlast it too, to repeat its own. No bound: this ends with the outage,
            # or with the queue's handle.
            await self._take_turn()
        await self._wait_for_the_rest()

    async def _take_turn(self) -> None:
        await self._wake_up.wait()
        self._wake_up.clear()
        self._take_events()

    def _move(self, event: StayEvent) -> None:
        self._state = STEPS.get((self._state, event), self._state)

    async def _bind(self) -> BoundFlow | None:
        told_at_ms, pause_s = 0, TOLD_AGAIN_S
        while self._state is StayState.OWNING:
            try:
                flow = await self._ports.session.bind(self._parking, self.epoch, self._take_event)
            except BindFailed as refusal:
                # Events of a handle that was not obtained say nothing about the next one.
                self._events.clear()
                self._refusal = refusal.reason
                if now_ms() >= told_at_ms:
                    _log.error("parking_queue_not_bound", **self._where, reason=refusal.reason)
                    told_at_ms, pause_s = now_ms() + int(pause_s * 1_000), min(2 * pause_s, TOLD_AT_LEAST_S)
            else:
                self._refusal = None
                return flow
            try:
                async with asyncio.timeout(RETRY_S):
                    while self._state is StayState.OWNING:
                        await self._wake_up.wait()
                        self._wake_up.clear()
            except TimeoutError:
                pass
        return None

    async def _wait_for_the_rest(self) -> None:
        # Settlements of running replays must leave on this handle. And the next owner must not handle what is still
        # being handled here, nor read copies of handled messages before the orders that drop them.
        try:
            async with asyncio.timeout(self._ports.patience_s):
                while self._replays or not (self._drops.are_sent or self._state in OUT_OF_REACH):
                    await self._take_turn()
        except TimeoutError:
            if self._replays:
                _log.warning("replay_outlived_its_queue", parking=self._parking, epoch=self.epoch)
                self._ports.return_unstarted(self._parking, self.epoch, False)
            if not self._drops.are_sent:
                reason = "second copies of what is done may lie there: the next owner has their keys parked"
                _log.warning("parking_drops_given_up", parking=self._parking, epoch=self.epoch, reason=reason)

    def _take_event(self, event: FlowEvent | Handling) -> None:
        self._events.append(event)
        self._wake_up.set()

    def _take_events(self) -> None:
        while self._events:
            event = self._events.popleft()
            match event:
                case Handling():
                    self._take_end(event)
                case MessageReceived(delivery):
                    if self._state in HELD:
                        self._take_message(delivery)
                case FlowActive():
                    self._be_fed()
                case FlowInactive() | FlowDown():
                    self._give_up(StayEvent.LOST)
                case _:
                    assert_never(event)

    def _be_fed(self) -> None:
        self._move(StayEvent.FED)
        if self._state is StayState.OWNING:
            self._bound_flow().start_intake()
            self._publish_fence()
        else:
            for asked in self._owed:
                self._publish_drop(asked)
            self._owed.clear()

    def _give_up(self, why: StayEvent) -> None:
        was_owning = self._state is StayState.OWNING
        self._move(why)
        # What the broker feeds to this handle would be missing where it was fed last, with settlements to repeat.
        self._bound_flow().stop_intake()
        # Another owner may be handling it by now.
        self.ledger.pause()
        self._ports.return_unstarted(self._parking, self.epoch, False)
        if was_owning:
            _log.warning("parking_queue_lost", **self._where)
            self._copies.give_up()
            self._fence.end()
            self._ports.lost(self.epoch)

    def _take_message(self, delivery: Delivery) -> None:
        entry = decode_entry(delivery.message)
        if isinstance(entry, RoomKept):
            self._room.take(delivery.delivery_id, entry.size_bytes)
            return
        if isinstance(entry, UnreadEntry):
            facts = {"lane": entry.lane, "is_ours": entry.is_ours, "reason": entry.reason}
            _log.error("parking_entry_kept", **self._where, delivery_id=delivery.delivery_id, **facts)
        self._obey(self.ledger.take(delivery.delivery_id, entry))
        if isinstance(entry, DropAsked) and entry.lane == UNREAD_LANE:
            # Sent before anything is parked because of it: to a later version, what was dropped may have been a fence.
            self._bound_flow().flush()
        if self.is_open and self.ledger.obstacle is not None:
            # The next owner would not open the queue, so nothing more may be handled here either.
            self._give_up(StayEvent.WITHDRAWN)

    def _take_end(self, handling: Handling) -> None:
        delivery_id = handling.delivery.delivery_id
        lane = self._replays.pop(delivery_id)
        if handling.outcome is Outcome.ACCEPTED:
            # A replay that has outlived the hold on its handle is not settled, and comes again.
            self._ports.replayed(handling, self._state in HELD)
            self._obey(self.ledger.replayed(lane))
            # Sent before a later message of the key is settled on its own queue, over the same connection.
            self._bound_flow().flush()
        elif (report := handling.end_report) is not None and report.then is Then.PARK:
            # A replay that was given back while it was being moved to another queue has not failed: the next owner goes
            # on.
            _log.error("replay_failed", parking=self._parking, lane=lane, reason=report.error)
            self._obey(self.ledger.replay_failed(lane))
        else:
            was_asked_back = self.ledger.is_paused
            # Paused first, or it would be offered again at once.
            self.ledger.pause()
            self._obey(self.ledger.replay_returned(lane))
            if not was_asked_back:
                # Its handler was cancelled from outside, so the handle is given up, as for any message.
                self._give_up(StayEvent.WITHDRAWN)

    # -- what the ledger orders

    def _obey(self, orders: list[LedgerOrder]) -> None:
        for order in orders:
            match order:
                case SettleParked(delivery_id):
                    self._bound_flow().settle(delivery_id, Outcome.ACCEPTED)
                case ParkedSeen(number):
                    self._copies.seen(number)
                case Replay(lane, delivery_id, original):
                    self._replay(lane, delivery_id, original)
                case PublishFence():
                    self._publish_fence()
                case PublishDrop(asked):
                    if self._state in OUT_OF_REACH:
                        # If the handle is not bound again, the message is not settled, and comes again with all copies.
                        self._owed.append(asked)
                    else:
                        self._publish_drop(asked)
                case ParkingOpened():
                    self._open()
                case _:
                    assert_never(order)

    def _bound_flow(self) -> BoundFlow:
        # Kept when it is unbound: what comes after that still finds it, and has no effect.
        if self._flow is None:
            raise InvariantViolated(f"{self._parking}: an order for a flow that was never bound")
        return self._flow

    def _publish_drop(self, asked: DropAsked) -> None:
        if self._tasks is not None:
            self._drops.publish(asked, self._tasks)

    def _settle_at_once(self, delivery_ids: Iterable[DeliveryId]) -> None:
        flow = self._bound_flow()
        for delivery_id in delivery_ids:
            flow.settle(delivery_id, Outcome.ACCEPTED)
        flow.flush()

    def _replay(self, lane: LaneKey, delivery_id: DeliveryId, original: Message) -> None:
        self._replays[delivery_id] = lane
        received_at_ns = int(asyncio.get_running_loop().time() * 1e9)
        self._ports.dispatch(
            Delivery(self._parking, self.epoch, delivery_id, original, redelivered=True, received_at_ns=received_at_ns)
        )

    def _open(self) -> None:
        self._copies.give_up()
        if not self.is_open:
            self.is_open = True
            parked = {"lanes": self.ledger.lane_count, "messages": self.ledger.count}
            _log.info("parking_opened", **self._where, **parked, waited_ms=now_ms() - self._waits_since_ms)
            self._on_open()

    def _publish_fence(self) -> None:
        if self._tasks is None:
            raise InvariantViolated(f"{self._parking}: a fence outside of a stay")
        self._fence.publish(self._tasks)

    def _check_ready(self, handling: Handling) -> None:
        reason = None
        if self._state is not StayState.OWNING or handling.epoch != self.epoch or not self.ledger.is_open:
            reason = "it is not this member's now"
        elif self._ports.is_restriping():
            reason = "the group is being re-striped"
        elif self.ledger.count >= MAX_PARKED:
            reason = f"{self.ledger.count} messages are parked there, which is all that it takes"
        if reason is not None:
            raise ParkingNotReady(self._parking, reason)
