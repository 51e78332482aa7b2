"""Parking, as the flow runner and the dispatcher of a queue see it: the stays at its parking queue, one after another.

A stay begins where a flow becomes active, before the first message of the epoch is asked for, and ends where the flow
is given up. Where the parking queue is lost in between, the flow is given up for it, and all begins anew.
"""

import asyncio
from collections.abc import Callable

from lbg_runtime.core.chance import RandomSource
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.core.parking.ledger import Verdict
from lbg_runtime.core.parking.records import ParkingOwner
from lbg_runtime.model.errors import InvariantViolated, ParkingNotReady
from lbg_runtime.model.failure import Then
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.clock import wall_us
from lbg_runtime.runtime.parking.stay import ParkingPorts, ParkingStay
from lbg_runtime.runtime.runners.failure_report import FailureReport
from lbg_runtime.runtime.runners.handling import Handling

FOLLOWS = FailureReport(Then.PARK, 0, "", "")
"""Of a message that is parked because one before it is, or was parked already."""


class ParkedQueue:
    """One per queue of a member that may park, on the member's loop."""

    def __init__(self, parking: QueueName, chance: RandomSource) -> None:
        self.parking = parking
        """Name of the parking queue, and its topic."""
        self._chance = chance
        self._ports: ParkingPorts | None = None
        self._stay: ParkingStay | None = None
        """The newest one."""
        self._stays: dict[Epoch, ParkingStay] = {}
        """Those that have not ended: a replay may outlive the handle under which it began."""
        self._one_at_a_time = asyncio.Lock()

    def connect(self, ports: ParkingPorts) -> None:
        """Before anything else."""
        self._ports = ports

    # -- for the flow runner, and what hears of its machine

    def open_for(self, epoch: Epoch, children: asyncio.TaskGroup, on_open: Callable[[], None]) -> bool:
        """Whether all that is parked is known in this epoch; where it is not, see to it, and have `on_open` told."""
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
        owner = ParkingOwner(wall_us(), f"{int(self._chance.uniform(0, 1 << 53)):x}")
        self._stay = stay = ParkingStay(self.parking, epoch, owner, self._ports, on_open)
        self._stays[epoch] = stay
        children.create_task(self._run(stay))

    async def _run(self, stay: ParkingStay) -> None:
        # The broker would not feed two binds of one member either. No bound: an ended stay has its own.
        try:
            async with self._one_at_a_time:
                await stay.run()
        finally:
            del self._stays[stay.epoch]
            stay.ended.set()

    def follow(self, epoch: Epoch, state: FlowState) -> None:
        """The machine of the queue has moved; called before what it then orders is done."""
        stay = self._stay
        if stay is None:
            return
        if stay.epoch != epoch or state in (FlowState.UNBINDING, FlowState.UNBOUND):
            stay.end()
        elif state is FlowState.DRAINING:
            stay.pause()
        elif state is FlowState.ACTIVE:
            stay.resume()

    async def leave(self, epoch: Epoch) -> None:
        """Return when the parking queue of this epoch is given up: replays that run are waited for, within bounds."""
        stay = self._stay
        if stay is not None and stay.epoch == epoch:
            stay.end()
            await stay.ended.wait()

    # -- for the dispatcher

    def concerns(self, handling: Handling) -> bool:
        """Whether `judge` may say anything but that it is to be handled; asked for every message."""
        stay = self._stay
        if stay is None:
            return False
        ledger = stay.ledger
        if ledger.parked_lanes and lane_name(handling) in ledger.parked_lanes:
            return True
        return handling.delivery.redelivered and not ledger.is_idle

    def judge(self, handling: Handling) -> Verdict:
        """What becomes of a message that is next in its lane. Constant time where nothing is parked."""
        if self._stay is None:
            return Verdict.HANDLE
        if handling.end_report is not None and self._stay.has(handling):
            # It has come since it was tried to park, and may be replayed by now: `take` then knows that it was parked.
            return Verdict.PARK
        if self._stay.ledger.is_idle:
            return Verdict.HANDLE
        delivery = handling.delivery
        return self._stay.ledger.judge(lane_name(handling), delivery.message, redelivered=delivery.redelivered)

    def is_replaying(self, handling: Handling) -> bool:
        """Whether what is parked of the lane of this message is being replayed."""
        return self._stay is not None and self._stay.ledger.is_replaying(lane_name(handling))

    async def take(self, handling: Handling, report: FailureReport) -> None:
        """Return when the message lies in the parking queue, behind all others of its key; raises `ParkingNotReady`
        or `PublishFailed`. See `ParkingStay.park`."""
        if self._stay is None:
            raise ParkingNotReady(self.parking, "it is not this member's now")
        await self._stay.park(handling, lane_name(handling), report)

    def was_parked(self, handling: Handling) -> bool:
        """Whether a message that ended without an outcome lies in the parking queue all the same, or did: it is to be
        accepted. True once."""
        stay = self._stay
        if stay is None or handling.end_report is None or not stay.has(handling):
            return False
        stay.forget(handling)
        return True

    def finished(self, handling: Handling) -> None:
        """A replay has ended."""
        stay = self._stays.get(handling.epoch)
        # One that outlived its stay comes again to the next owner.
        if stay is not None:
            stay.finished(handling)

    # -- for those who ask

    @property
    def counts(self) -> tuple[int, int]:
        """Keys and messages that are parked, as far as this member owns the queue."""
        ledger = None if self._stay is None or not self._stay.is_open else self._stay.ledger
        return (0, 0) if ledger is None else (ledger.lane_count, ledger.count)

    def count_of(self, key: str) -> int:
        """Messages of a key that are parked, as far as this member owns the queue."""
        stay = self._stay
        return stay.ledger.count_of(name_of_key(key)) if stay is not None and stay.is_open else 0


def lane_name(handling: Handling) -> LaneKey:
    """The lane of a message as parking queues have it: it outlives the process, and is shown to operators."""
    if handling.key is not None:
        return name_of_key(handling.key)
    return handling.lane.replace("\0", "")


def name_of_key(key: str) -> LaneKey:
    """The lane of a key as parking queues have it."""
    # Properties end at such a character. Another key that is called so shares the lane: it waits with this one.
    return f"key {key}" if "\0" not in key else f"key {key}".replace("\0", "%00")
