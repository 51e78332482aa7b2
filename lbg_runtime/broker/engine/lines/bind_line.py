"""Which of the bound consumer flows is fed next: the first in line, or all in turn."""

from abc import ABC, abstractmethod
from collections import deque

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.broker.engine.flow import ConsumerFlow


class BindLine(ABC):
    """The flows of one queue in the order of their binds. Called only by the queue."""

    def __init__(self) -> None:
        self.flows: dict[FlowId, ConsumerFlow] = {}
        """Consumer flows in bind order."""
        self.selective_count = 0
        """How many of them take only selected messages."""

    def join(self, flow: ConsumerFlow) -> None:
        """Add a flow at the end."""
        self.flows[flow.id] = flow
        self.selective_count += flow.is_selective

    def leave(self, flow: ConsumerFlow) -> None:
        """Remove a flow."""
        del self.flows[flow.id]
        self.selective_count -= flow.is_selective

    @abstractmethod
    def is_fed(self, flow: ConsumerFlow) -> bool:
        """Whether messages go to this flow when it has room."""

    @abstractmethod
    def room_made(self, flow: ConsumerFlow) -> None:
        """Something changed for this flow: it may have room again."""

    @abstractmethod
    def next_with_room(self) -> ConsumerFlow | None:
        """The flow that gets the next message; the message must then be delivered on it."""

    @property
    @abstractmethod
    def feeds_one(self) -> bool:
        """Whether that flow also gets as many of the following messages as it has room for."""


class ExclusiveLine(BindLine):
    """Feeds the first flow; the others stand by (law L1)."""

    def __init__(self) -> None:
        super().__init__()
        self._first: ConsumerFlow | None = None

    def join(self, flow: ConsumerFlow) -> None:
        super().join(flow)
        if self._first is None:
            self._first = flow

    def leave(self, flow: ConsumerFlow) -> None:
        super().leave(flow)
        if flow is self._first:
            self._first = next(iter(self.flows.values()), None)

    def is_fed(self, flow: ConsumerFlow) -> bool:
        return flow is self._first

    def room_made(self, flow: ConsumerFlow) -> None:
        """The first flow is checked every time, so there is nothing to note."""

    def next_with_room(self) -> ConsumerFlow | None:
        return self._first if self._first is not None and self._first.room > 0 else None

    @property
    def feeds_one(self) -> bool:
        return True


class RoundRobinLine(BindLine):
    """Feeds every flow with room in turn; a flow found without room waits outside until room is made."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: deque[ConsumerFlow] = deque()
        self._in_turn: dict[FlowId, None] = {}

    def leave(self, flow: ConsumerFlow) -> None:
        super().leave(flow)
        if flow.id in self._in_turn:
            del self._in_turn[flow.id]
            self._turns.remove(flow)

    def is_fed(self, flow: ConsumerFlow) -> bool:
        return flow.id in self.flows

    def room_made(self, flow: ConsumerFlow) -> None:
        if flow.id in self.flows and flow.id not in self._in_turn and flow.room > 0:
            self._in_turn[flow.id] = None
            self._turns.append(flow)

    @property
    def has_room(self) -> bool:
        """Whether any flow has room; nobody's turn passes."""
        while self._turns and self._turns[0].room <= 0:
            del self._in_turn[self._turns.popleft().id]
        return bool(self._turns)

    def next_with_room(self) -> ConsumerFlow | None:
        while self._turns:
            flow = self._turns.popleft()
            if flow.room > 0:
                self._turns.append(flow)
                return flow
            del self._in_turn[flow.id]
        return None

    @property
    def feeds_one(self) -> bool:
        return len(self._turns) == 1
