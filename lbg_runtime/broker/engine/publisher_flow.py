"""Publisher flows by name: a name outlives its connection, so that a publisher learns what it need not send again.

When a flow is resumed, its publisher takes everything up to the answered id as confirmed. So that id is below the first
refusal that may have been lost with the connection. Of the messages that the publisher then sends again, accepted ones
are dropped, and refused ones are refused again, for the same reason: later messages may be on their queues, so a
refused one would now come out of order.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.model.errors import BrokerRefusal

ABANDONED_NAMES_KEPT = 10_000
"""Names without a connection that a VPN remembers; the longest abandoned are forgotten first, and start over."""

WINDOW = 255
"""The most unanswered messages on one flow: the window size is one byte on the wire."""


@dataclass(slots=True, eq=False)
class PublisherState:
    """How far one named flow has come."""

    name: str
    flow: FlowId
    """The number under which a connection has it open; the latest, if several had it."""
    last_judged_id: int = 0
    """Everything up to this id was accepted or refused."""
    _refused: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Code and text by id, in order, of refusals that may not have reached the publisher."""

    @property
    def last_answered_id(self) -> int:
        """Everything up to this id was accepted, or refused with the publisher's knowledge."""
        return next(iter(self._refused)) - 1 if self._refused else self.last_judged_id

    @property
    def refusals(self) -> tuple[tuple[int, int, str], ...]:
        """Id, code and text of refusals that may not have reached the publisher, in order."""
        return tuple((id_, *refusal) for id_, refusal in self._refused.items())

    def judge(self, message_id: int) -> bool:
        """Whether this is a new message, which then counts as judged; raises its refusal if it was refused before."""
        if message_id > self.last_judged_id:
            self.last_judged_id = message_id
            if self._refused:
                # Otherwise the publisher would not have sent this one yet.
                self.heard_up_to(message_id - WINDOW)
            return True
        if message_id in self._refused:
            raise BrokerRefusal(*self._refused[message_id])
        return False

    def refuse(self, message_id: int, refusal: BrokerRefusal) -> None:
        """The message judged last was refused."""
        self._refused[message_id] = (refusal.code, refusal.text)

    def heard_up_to(self, message_id: int) -> None:
        """The publisher has received the answers up to this id."""
        while self._refused and (first := next(iter(self._refused))) <= message_id:
            del self._refused[first]


class PublisherFlows:
    """The named publisher flows of one VPN. Called only by the engine."""

    def __init__(self) -> None:
        self._open: dict[str, PublisherState] = {}
        self._abandoned: OrderedDict[str, PublisherState] = OrderedDict()

    def open(self, flow: FlowId, name: str, new_name: str) -> PublisherState:
        """Resume `name` if it is known, else begin a flow called `new_name`."""
        state = self._open.get(name) or self._abandoned.pop(name, None)
        if state is None:
            state = PublisherState(new_name, flow)
        state.flow = flow
        self._open[state.name] = state
        return state

    def close(self, flow: FlowId, state: PublisherState) -> PublisherState | None:
        """The connection that had `flow` is gone; nothing happens if another has resumed the name.

        Returns the state that is forgotten to make room.
        """
        if state.flow != flow:
            return None
        del self._open[state.name]
        return self.abandon(state)

    def abandon(self, state: PublisherState) -> PublisherState | None:
        """Keep a flow that nobody has open, to be resumed; returns the state that is forgotten to make room."""
        self._abandoned[state.name] = state
        if len(self._abandoned) <= ABANDONED_NAMES_KEPT:
            return None
        return self._abandoned.popitem(last=False)[1]

    def forget(self, name: str) -> None:
        """Forget a flow, which nobody can resume any more."""
        self._abandoned.pop(name, None)
