"""Parking, for the flow runner and the dispatcher of a queue: one stay after another at the queue's parking queue.

A stay begins when the queue's flow becomes active, before the first message of the epoch is asked for, and ends when
the flow is given up. If the parking queue is lost in between, the flow is given up too, and everything begins afresh.
"""

import asyncio
from collections.abc import Callable

from lbg_runtime.core.chance import RandomSource, nonce
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import ParkingWait
from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.core.parking.ledger import Verdict
from lbg_runtime.core.parking.records import ParkingOwner
from lbg_runtime.model.errors import InvariantViolated, ParkingNotReady
from lbg_runtime.model.failure import Then
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.clock import wall_us
from lbg_runtime.runtime.parking.ports import ParkingPorts
from lbg_runtime.runtime.parking.stay import ParkingStay
from lbg_runtime.runtime.runners.failure_report import FailureReport
from lbg_runtime.runtime.runners.handling import Handling

FOLLOWS = FailureReport(Then.PARK, 0, "", "")
"""The report of a message that is parked because an earlier one of its key is, or that was parked already."""


class ParkedQueue:
    """One per queue of a member that may park, on the member's loop."""

    def __init__(self, parking: QueueName, chance: RandomSource) -> None:
        self.parking = parking
        """The name of the parking queue, which is also its topic."""
        self._chance = chance
        self._ports: ParkingPorts | None = None
        self._stay: ParkingStay | None = None
        """The newest one."""
        self._stays: dict[Epoch, ParkingStay] = {}
        """Stays that have not ended: a replay may outlive the handle under which it began."""
        self._one_at_a_time = asyncio.Lock()
        self._fed: Epoch | None = None
        """The epoch in which the queue is fed to this member."""

    def connect(self, ports: ParkingPorts) -> None:
        """Set the ports; called before anything else."""
        self._ports = ports

    # -- for the flow runner, and for changes of its machine

    def open_for(self, epoch: Epoch, children: asyncio.TaskGroup, on_open: Callable[[], None]) -> bool:
        """Whether everything parked is known in this epoch; if not, find it out in a task of `children`, and then call
        `on_open`."""
        stay = self._stay
        if stay is None or stay.epoch != epoch:
            self._begin(epoch, children, on_open)
            return False
        return stay.is_open

    def _begin(self, epoch: Epoch, children: asyncio.TaskGroup, on_open: Callable[[], None]) -> None:
        if self._ports is None:
            raise InvariantViolated(f"{self.parking} was to be used before it was connected")
        before = self._stay
        if before is not None:
            before.end()
        owner = ParkingOwner(wall_us(), f"{nonce(self._chance):x}")
        self._stay = stay = ParkingStay(self.parking, epoch, owner, self._ports, on_open)
        self._stays[epoch] = stay
        children.create_task(self._run(stay))

    async def _run(self, stay: ParkingStay) -> None:
        # One stay at a time, as the broker would not feed two binds of one member. No bound: the end of a stay has its
        # own.
        try:
            async with self._one_at_a_time:
                await stay.run()
        finally:
            del self._stays[stay.epoch]
            stay.ended.set()

    def follow(self, epoch: Epoch, state: FlowState) -> None:
        """Follow a change of the queue's machine; called before its commands are carried out."""
        self._fed = epoch if state in (FlowState.ACTIVE, FlowState.DRAINING) else None
        stay = self._stay
        if stay is None:
            return
        if stay.epoch != epoch or state in (FlowState.UNBINDING, FlowState.UNBOUND):
            stay.end()
        elif state is FlowState.DRAINING:
            stay.pause()
        elif state is FlowState.ACTIVE:
            stay.resume()

    def give_up(self) -> None:
        """Start no further replay: another member may have the queue by now, and this one is about to give it up."""
        if self._stay is not None:
            self._stay.give_up()

    async def leave(self, epoch: Epoch) -> bool:
        """Return when the parking queue of this epoch is given up; running replays are waited for, within bounds.

        Returns False if the broker has not answered, so that what was settled there may come again.
        """
        stay = self._stay
        if stay is None or stay.epoch != epoch:
            return True
        stay.end()
        await stay.ended.wait()
        return not stay.is_unheard

    # -- for the dispatcher

    def concerns(self, handling: Handling) -> bool:
        """Whether `judge` may say anything other than HANDLE. Called for every message."""
        stay = self._stay
        if stay is None:
            return False
        ledger = stay.ledger
        if ledger.parked_lanes and lane_name(handling) in ledger.parked_lanes:
            return True
        return handling.delivery.redelivered and not ledger.is_idle

    def judge(self, handling: Handling) -> Verdict:
        """What to do with a message that is next in its lane. Constant time if nothing is parked."""
        if self._stay is None:
            return Verdict.HANDLE
        if handling.end_report is not None and self._stay.has(handling):
            # Its copy has come since the last try, and may even have been replayed: `take` will see that it was parked.
            return Verdict.PARK
        if self._stay.ledger.is_idle:
            return Verdict.HANDLE
        delivery = handling.delivery
        return self._stay.ledger.judge(lane_name(handling), delivery.message, redelivered=delivery.redelivered)

    def is_replaying(self, handling: Handling) -> bool:
        """Whether the parked messages of this message's lane are being replayed."""
        return self._stay is not None and self._stay.ledger.is_replaying(lane_name(handling))

    async def take(self, handling: Handling, report: FailureReport) -> QueueName:
        """Return when the message is in the parking queue, behind all others of its key; raises `ParkingNotReady` or
        `PublishFailed`. See `ParkingStay.park`."""
        if self._stay is None:
            raise ParkingNotReady(self.parking, "it is not this member's now")
        await self._stay.park(handling, lane_name(handling), report)
        return self.parking

    def was_parked(self, handling: Handling) -> bool:
        """Whether a message that is about to end without an outcome is or was in the parking queue, so that it must be
        accepted instead. True only once for a message."""
        stay = self._stay
        if stay is None or handling.end_report is None or not stay.has(handling):
            return False
        stay.forget(handling)
        return True

    def finished(self, handling: Handling) -> None:
        """Take the end of a replay."""
        stay = self._stays.get(handling.epoch)
        # Without a stay, the replay has outlived it, and the message comes again to the next owner.
        if stay is not None:
            stay.finished(handling)
        if self._ports is not None:
            self._ports.ended(handling)

    # -- for questions

    @property
    def wait(self) -> ParkingWait | None:
        """Why this member does not know what is parked although it owns the queue; None if it knows, or does not own
        it."""
        if self._fed is None:
            return None
        if self._stay is None or self._stay.epoch != self._fed:
            return ParkingWait(0, "`on_assigned` has not returned")
        return self._stay.wait

    @property
    def counts(self) -> tuple[int, int]:
        """Parked keys and messages, if this member owns the queue and knows them."""
        ledger = None if self._stay is None or not self._stay.is_open else self._stay.ledger
        return (0, 0) if ledger is None else (ledger.lane_count, ledger.count)

    def count_of(self, key: str) -> int:
        """Parked messages of a key, if this member owns the queue and knows them."""
        stay = self._stay
        return stay.ledger.count_of(name_of_key(key)) if stay is not None and stay.is_open else 0


def lane_name(handling: Handling) -> LaneKey:
    """The name of a message's lane in parking queues: it outlives the process, and is shown to operators."""
    if handling.key is not None:
        return name_of_key(handling.key)
    return handling.lane.replace("\0", "")


def name_of_key(key: str) -> LaneKey:
    """The name of a key's lane in parking queues."""
    # A property ends at a zero character. A key that is spelled like the result shares the lane, which costs only time.
    return f"key {key}" if "\0" not in key else f"key {key}".replace("\0", "%00")
