"""The bind line of a queue whose messages belong to parts: which flow gets the next message of which part."""

from abc import abstractmethod
from collections.abc import Hashable

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.broker.engine.flow import ConsumerFlow
from lbg_runtime.broker.engine.lines.parts import Part, PartLost, Parts
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.broker.engine.waiting import SpooledMessage


class PartedLine:
    """A `BindLine` that also says which message is next. Called only by the queue.

    Abstract, but not an `ABC`: queues check the kind of their line for every message, which would take five times as
    long.

    A part whose flow takes nothing now sleeps until something changes for that flow, so that it costs the messages of
    other flows nothing. When its flow has room again, all parts that wait for that flow are looked at.
    """

    def __init__(self, spool: Spool, parts: Parts) -> None:
        self.flows: dict[FlowId, ConsumerFlow] = {}
        self._spool = spool
        self._parts = parts
        self._asleep: dict[FlowId, dict[Hashable, Part]] = {}
        """Sleeping parts by key, by the flow that takes nothing now. A part may be gone, and there again as another."""

    @property
    @abstractmethod
    def deadline_ms(self) -> int | None:
        """When `on_deadline` has something to do."""

    @abstractmethod
    def join(self, flow: ConsumerFlow) -> None:
        """Add a flow."""

    @abstractmethod
    def keep_held(self, flow: ConsumerFlow) -> None:
        """A joined flow holds messages from before its connection broke; it loses those that it cannot keep."""

    @abstractmethod
    def leave(self, flow: ConsumerFlow) -> None:
        """Remove a flow; what it held waits again."""

    def is_fed(self, flow: ConsumerFlow) -> bool:
        """Whether messages can go to this flow; reported as true for every flow in the line."""
        return flow.id in self.flows

    def room_made(self, flow: ConsumerFlow) -> None:
        """Something changed for this flow: it may have room again."""
        if flow.id in self.flows and flow.room > 0:
            self._wake(flow.id)

    @abstractmethod
    def settle_losses(self) -> list[PartLost]:
        """The parts that flows have lost since the last call; their messages must be taken back before anything is
        sent."""

    @abstractmethod
    def on_deadline(self) -> None:
        """Do what is due by now."""

    def next_delivery(self) -> tuple[ConsumerFlow, SpooledMessage] | None:
        """Hand out the next message, and return it with its flow; None if nothing can be sent now."""
        while (part := self._parts.next_awake()) is not None:
            flow = self._taker_of(part)
            if flow is None:
                continue
            message = self._spool.take(part)
            self._parts.wake(part)
            return flow, message
        return None

    def note_sent(self, flow: ConsumerFlow, message: SpooledMessage) -> None:
        """A message that was handed out is about to be sent; not called for one that has died."""

    @abstractmethod
    def _taker_of(self, part: Part) -> ConsumerFlow | None:
        """The flow that gets a part's next message, and has room for it; else None, and the part sleeps."""

    def _sleep(self, part: Part, flow: FlowId) -> None:
        self._asleep.setdefault(flow, {})[part.key] = part

    def _wake(self, flow: FlowId) -> None:
        for part in self._asleep.pop(flow, {}).values():
            self._parts.wake(part)

    def _wake_all(self) -> None:
        self._asleep.clear()
        self._parts.wake_all()
