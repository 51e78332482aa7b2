"""Records every owner change of this member's queues: taken or given, why, and who decided it.

It is told how the member's flows change and what the member says to the group, and asks which offers were accepted and
who owns a queue according to the group. It decides nothing, and leaves out what it does not know.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Literal

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import ControlMessage, Heartbeat, Inquiry, MemberState, Offer
from lbg_runtime.core.group.control_plane import QUEUE_GONE
from lbg_runtime.core.group.rebalance import AcceptedOffer
from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from lbg_runtime.model.record import OwnerRecord
from lbg_runtime.runtime.clock import now_ms, wall_us
from lbg_runtime.runtime.journal import MemberJournal

MAX_CHANGES_REMEMBERED = 1_000
"""How many of the newest changes are kept: less than a megabyte."""

Decider = Literal["offer", "broker", "stop", "cycle", "stand_aside", "restripe"]

OwnerOf = Callable[[QueueName], MemberId | None]
Accepted = Callable[[QueueName, int], AcceptedOffer | None]
"""Returns the accepted offer by which a queue comes, if it comes at the given moment on the clock of `now_ms`."""


@dataclass(slots=True)
class _Tenure:
    """Our time as the owner of a queue."""

    epoch: Epoch
    since_ms: int
    drain_since_ms: int | None = None
    drain_ms: int = 0
    cause: ReleaseCause = ReleaseCause.DOWN
    """Why it ends. Remains DOWN if the flow becomes unbound without having been given up."""
    move_id: str = ""
    """The request that caused it to end, if that is a hand-back."""
    asked_ns: int | None = None
    """When the broker was asked to release it."""


class FlightRecorder:
    """One per member, on its loop. `flow_changed` is called for every change of a flow, `said` for every message that
    the member sends to its group."""

    def __init__(self, member: MemberId, journal: MemberJournal) -> None:
        self.changes: deque[OwnerRecord] = deque(maxlen=MAX_CHANGES_REMEMBERED)
        """The owner changes of this life, newest last, with or without a journal."""
        self._member = member
        self._journal = journal
        self._tenures: dict[QueueName, _Tenure] = {}
        self._offered: dict[QueueName, Offer] = {}
        """Our newest offer of each queue; forgotten when our tenure ends."""
        self._is_leaving = False
        self._owner_of: OwnerOf = lambda _: None
        self._accepted: Accepted = lambda _, __: None

    def listen_to(self, owner_of: OwnerOf, accepted: Accepted) -> None:
        """Set how to learn who owns a queue according to the group, and which offers this member has accepted."""
        self._owner_of = owner_of
        self._accepted = accepted

    def flow_changed(self, queue_index: int, machine: FlowMachine, unanswered: int, *, is_released: bool) -> None:
        """Note the new state of a flow; called before its commands are carried out.

        `unanswered`: the flow's deliveries that have not ended; its machine no longer counts those of a handle that
        died. `is_released`: its newest handle ended because it was unbound, as the broker has confirmed.
        """
        queue, state, now = machine.queue, machine.state, now_ms()
        tenure = self._tenures.get(queue)
        if tenure is None:
            if state not in (FlowState.ACTIVE, FlowState.DRAINING):
                return
            tenure = self._tenures[queue] = _Tenure(machine.epoch, now)
            self._write_taken(queue_index, machine, now)
        match state:
            case FlowState.ACTIVE:
                # For when a drain was given up.
                tenure.drain_since_ms = None
            case FlowState.DRAINING:
                tenure.drain_since_ms = now
            case FlowState.UNBINDING:
                tenure.drain_ms = _since(tenure.drain_since_ms, now)
                tenure.cause = machine.cause or ReleaseCause.DOWN
                tenure.move_id = machine.move_id
                tenure.asked_ns = monotonic_ns()
            case _:
                if tenure.cause is ReleaseCause.DOWN:
                    tenure.drain_ms = _since(tenure.drain_since_ms, now)
                if not is_released:
                    tenure.asked_ns = None
                del self._tenures[queue]
                self._write_given(queue_index, machine, tenure, unanswered, now)

    def said(self, message: ControlMessage | Inquiry) -> None:
        """Note what we said to the group."""
        match message:
            case Heartbeat(_, state):
                self._is_leaving = state is MemberState.DRAINING
            case Offer(_, queue):
                self._offered[queue] = message
            case _:
                pass

    def _write_taken(self, queue_index: int, machine: FlowMachine, now: int) -> None:
        offer = self._accepted(machine.queue, now)
        self._keep(
            OwnerRecord(
                queue=queue_index,
                bind_epoch=machine.epoch,
                event="taken",
                move_id=offer.move_id if offer else None,
                from_member=offer.giver if offer else self._owner_of(machine.queue),
                to_member=self._member,
                cause=ReleaseCause.HANDBACK.value if offer else "elected",
                decided_by="offer" if offer else "broker",
                is_leaving=False,
                drain_ms=None,
                held_ms=None,
                in_flight=0,
                t=wall_us(),
                mono_ns=monotonic_ns(),
            )
        )

    def _write_given(self, queue_index: int, machine: FlowMachine, tenure: _Tenure, unanswered: int, now: int) -> None:
        offer = self._offered.pop(machine.queue, None)
        if offer is not None and offer.move_id != tenure.move_id:
            # The tenure ended for another reason before the offer could.
            offer = None
        self._keep(
            OwnerRecord(
                queue=queue_index,
                bind_epoch=tenure.epoch,
                event="given",
                move_id=offer.move_id if offer else None,
                from_member=self._member,
                to_member=offer.to if offer else None,
                cause=tenure.cause.value,
                decided_by=_decider(tenure, is_offer=offer is not None),
                is_leaving=self._is_leaving or tenure.cause is ReleaseCause.STOP,
                drain_ms=tenure.drain_ms,
                held_ms=now - tenure.since_ms,
                in_flight=unanswered if tenure.cause is ReleaseCause.DOWN else 0,
                t=wall_us(),
                mono_ns=monotonic_ns(),
                asked_mono_ns=tenure.asked_ns,
            )
        )

    def _keep(self, record: OwnerRecord) -> None:
        self.changes.append(record)
        self._journal.owner_changed(record)


def _since(then_ms: int | None, now: int) -> int:
    return 0 if then_ms is None else now - then_ms


def _decider(tenure: _Tenure, *, is_offer: bool) -> Decider:
    match tenure.cause:
        case ReleaseCause.HANDBACK if is_offer:
            return "offer"
        case ReleaseCause.HANDBACK:
            return "restripe" if tenure.move_id == QUEUE_GONE else "stand_aside"
        case ReleaseCause.REBIND:
            return "cycle"
        case ReleaseCause.STOP:
            return "stop"
        case _:
            return "broker"
