"""Publisher flows by name: a name outlives its connection, so that a publisher learns what need not be sent again."""

from collections import OrderedDict
from dataclasses import dataclass

from lbg_runtime.broker.engine.effects import FlowId

ABANDONED_NAMES_KEPT = 10_000
"""Names without a connection that a VPN remembers; the longest abandoned are forgotten first, and start anew."""


@dataclass(slots=True, eq=False)
class PublisherState:
    """How far one named flow has come."""

    name: str
    flow: FlowId
    """The connection's handle on it: the latest, where several had it."""
    last_accepted_id: int = 0


class PublisherFlows:
    """The named publisher flows of one VPN. Called by the engine only."""

    def __init__(self) -> None:
        self._open: dict[str, PublisherState] = {}
        self._abandoned: OrderedDict[str, PublisherState] = OrderedDict()

    def open(self, flow: FlowId, name: str, new_name: str) -> PublisherState:
        """Resume `name` where it is known, else begin a flow called `new_name`."""
        state = self._open.get(name) or self._abandoned.pop(name, None)
        if state is None:
            state = PublisherState(new_name, flow)
        state.flow = flow
        self._open[state.name] = state
        return state

    def close(self, flow: FlowId, state: PublisherState) -> None:
        """The connection that had `flow` is gone; nothing happens if another has resumed the name."""
        if state.flow != flow:
            return
        del self._open[state.name]
        self._abandoned[state.name] = state
        if len(self._abandoned) > ABANDONED_NAMES_KEPT:
            self._abandoned.popitem(last=False)
