"""The inputs and outputs of a rebalance machine. The shell carries the commands out, in the order given."""

from dataclasses import dataclass

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.flow.events import FlowRequest, SettlementsReached
from lbg_runtime.core.group.control_messages import ControlMessage
from lbg_runtime.core.group.membership_events import DrainStarted, MoveMessageHeard, OwnFlowsChanged
from lbg_runtime.core.group.view import GroupView
from lbg_runtime.model.ids import QueueName


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The group as the membership machine sees it now; sent after every change and every heartbeat interval."""

    view: GroupView
    is_stable: bool
    is_silent: bool
    """The control topic does not reach us although there are other members: fall back to the rebind cycle."""


RebalanceEvent = GroupSeen | OwnFlowsChanged | MoveMessageHeard | DrainStarted


@dataclass(frozen=True, slots=True)
class AskFlow:
    """Pass the request to the queue's flow machine."""

    queue: QueueName
    request: FlowRequest | SettlementsReached


@dataclass(frozen=True, slots=True)
class Say:
    """Publish this on the control topic."""

    message: ControlMessage


RebalanceCommand = AskFlow | Say | Note
