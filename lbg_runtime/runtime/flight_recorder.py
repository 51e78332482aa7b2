"""Writes down every owner change of this member's queues: which way, why, and who decided it.

Knows two things: how the member's flows change, from the flow runners, and what is said about moves on the control
topic. Decides nothing; what it does not know it leaves out.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Literal

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.machine import FlowMachine, FlowState
from lbg_runtime.core.group.control_messages import (
    Accept,
    ControlMessage,
    Heartbeat,
    Inquiry,
    MemberState,
    MoveId,
    Offer,
    Taken,
)
from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from lbg_runtime.model.record import OwnerRecord
from lbg_runtime.runtime.clock import now_ms, wall_us
from lbg_runtime.runtime.journal import MemberJournal

MAX_CHANGES_REMEMBERED = 1_000
"""The newest ones: less than a megabyte."""

Decider = Literal["offer", "broker", "stop", "cycle", "stand_aside"]

OwnerOf = Callable[[QueueName], MemberId | None]


@dataclass(frozen=True, slots=True)
class _Move:
    """A hand-over that both members have agreed to, or, before that, an offer."""

    move_id: MoveId
    other: MemberId


@dataclass(slots=True)
class _Tenure:
    """A queue that the broker feeds us."""

    epoch: Epoch
    since_ms: int
    drain_since_ms: int | None = None
    drain_ms: int = 0
    cause: ReleaseCause = ReleaseCause.DOWN
    """Why it ends; a flow that is unbound without having been given up has died."""


class FlightRecorder:
    """One per member, on its loop. `flow_changed` for every change of every flow, the rest for the control topic."""

    def __init__(self, member: MemberId, journal: MemberJournal) -> None:
        self.changes: deque[OwnerRecord] = deque(maxlen=MAX_CHANGES_REMEMBERED)
        """The owner changes of this life, the newest last, whether or not there is a journal."""
        self._member = member
        self._journal = journal
        self._tenures: dict[QueueName, _Tenure] = {}
        self._offered: dict[QueueName, _Move] = {}
        """By us; ends with the tenure, or with the drain that it came to."""
        self._giving: dict[QueueName, _Move] = {}
        self._heard_offers: dict[QueueName, _Move] = {}
        self._taking: dict[QueueName, _Move] = {}
        self._is_leaving = False
        self._owner_of: OwnerOf | None = None

    def listen_to(self, owner_of: OwnerOf) -> None:
        """Learn from now on who owns a queue according to the group."""
        self._owner_of = owner_of

    def flow_changed(self, queue_index: int, machine: FlowMachine) -> None:
        """The flow is in another state; called before what follows from that is carried out."""
        queue, state, now = machine.queue, machine.state, now_ms()
        tenure = self._tenures.get(queue)
        match state:
            case FlowState.ACTIVE | FlowState.DRAINING if tenure is None:
                tenure = self._tenures[queue] = _Tenure(machine.epoch, now)
                self._write_taken(queue_index, machine)
            case FlowState.ACTIVE if tenure is not None:
                # The drain was given up, and with it the move.
                tenure.drain_since_ms = None
                self._giving.pop(queue, None)
            case _:
                pass
        if tenure is None:
            return
        if state is FlowState.DRAINING:
            tenure.drain_since_ms = now
        elif state is FlowState.UNBINDING:
            tenure.drain_ms = _since(tenure.drain_since_ms, now)
            tenure.cause = machine.cause or ReleaseCause.DOWN
        elif state is not FlowState.ACTIVE:
            if tenure.cause is ReleaseCause.DOWN:
                tenure.drain_ms = _since(tenure.drain_since_ms, now)
            del self._tenures[queue]
            self._write_given(queue_index, machine, tenure, now)

    def heard(self, message: ControlMessage) -> None:
        """A message of the group arrived, our own ones too."""
        if message.header.member == self._member:
            return
        match message:
            case Offer(header, queue, _, move_id, to):
                self._taking.pop(queue, None)
                if to == self._member:
                    self._heard_offers[queue] = _Move(move_id, header.member)
            case Accept(_, queue, move_id):
                offered = self._offered.get(queue)
                if offered is not None and offered.move_id == move_id:
                    self._giving[queue] = offered
            case Taken(_, queue):
                self._taking.pop(queue, None)
            case _:
                pass

    def said(self, message: ControlMessage | Inquiry) -> None:
        """We said this to the group."""
        match message:
            case Heartbeat(_, state):
                self._is_leaving = state is MemberState.DRAINING
            case Offer(_, queue, _, move_id, to):
                self._offered[queue] = _Move(move_id, to)
            case Accept(_, queue, move_id):
                offer = self._heard_offers.pop(queue, None)
                if offer is not None and offer.move_id == move_id:
                    self._taking[queue] = offer
            case _:
                pass

    def _write_taken(self, queue_index: int, machine: FlowMachine) -> None:
        queue = machine.queue
        move = self._taking.pop(queue, None)
        heard_of = self._owner_of(queue) if self._owner_of is not None else None
        self._keep(
            OwnerRecord(
                queue=queue_index,
                bind_epoch=machine.epoch,
                event="taken",
                move_id=move.move_id if move else None,
                from_member=move.other if move else heard_of,
                to_member=self._member,
                cause=ReleaseCause.HANDBACK.value if move else "elected",
                decided_by="offer" if move else "broker",
                is_leaving=False,
                drain_ms=None,
                held_ms=None,
                in_flight=0,
                t=wall_us(),
                mono_ns=monotonic_ns(),
            )
        )

    def _write_given(self, queue_index: int, machine: FlowMachine, tenure: _Tenure, now: int) -> None:
        self._offered.pop(machine.queue, None)
        move = self._giving.pop(machine.queue, None)
        if tenure.cause is not ReleaseCause.HANDBACK:
            # Something else ended it first.
            move = None
        self._keep(
            OwnerRecord(
                queue=queue_index,
                bind_epoch=tenure.epoch,
                event="given",
                move_id=move.move_id if move else None,
                from_member=self._member,
                to_member=move.other if move else None,
                cause=tenure.cause.value,
                decided_by=_decider(tenure.cause, is_move=move is not None),
                is_leaving=self._is_leaving or tenure.cause is ReleaseCause.STOP,
                drain_ms=tenure.drain_ms,
                held_ms=now - tenure.since_ms,
                in_flight=machine.in_flight if tenure.cause is ReleaseCause.DOWN else 0,
                t=wall_us(),
                mono_ns=monotonic_ns(),
            )
        )

    def _keep(self, record: OwnerRecord) -> None:
        self.changes.append(record)
        self._journal.owner_changed(record)


def _since(then_ms: int | None, now: int) -> int:
    return 0 if then_ms is None else now - then_ms


def _decider(cause: ReleaseCause, *, is_move: bool) -> Decider:
    match cause:
        case ReleaseCause.HANDBACK:
            return "offer" if is_move else "stand_aside"
        case ReleaseCause.REBIND:
            return "cycle"
        case ReleaseCause.STOP:
            return "stop"
        case _:
            return "broker"
