"""The bind line of a queue whose messages belong to parts: which flow is sent the next message of which part."""

from abc import abstractmethod

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.broker.engine.flow import ConsumerFlow
from lbg_runtime.broker.engine.lines.parts import Part, PartLost, Parts
from lbg_runtime.broker.engine.spool import Spool, SpooledMessage


class PartedLine:
    """A `BindLine` that also says which message is next. Called by the queue only.

    Abstract, and no `ABC`: queues ask for every message what kind of line they have, which would take five times as
    long.

    A part whose flow takes nothing now is asleep until something changes for that flow, so that a message costs the
    same however many parts wait.
    """

    def __init__(self, spool: Spool, parts: Parts) -> None:
        self.flows: dict[FlowId, ConsumerFlow] = {}
        self._spool = spool
        self._parts = parts
        self._asleep: dict[FlowId | None, dict[Part, None]] = {}
        """Parts by the flow that takes nothing now; under None those that any flow may have."""

    @property
    @abstractmethod
    def deadline_ms(self) -> int | None:
        """When `on_deadline` has something to do."""

    @abstractmethod
    def join(self, flow: ConsumerFlow) -> None:
        """Add a flow."""

    @abstractmethod
    def keep_held(self, flow: ConsumerFlow) -> None:
        """A flow that has joined holds messages from before its connection broke. What of them it cannot keep is lost
        to it."""

    @abstractmethod
    def leave(self, flow: ConsumerFlow) -> None:
        """Remove a flow; what it held waits again."""

    def is_fed(self, flow: ConsumerFlow) -> bool:
        """Whether messages can go to this flow: to all, as far as anybody is told."""
        return flow.id in self.flows

    def room_made(self, flow: ConsumerFlow) -> None:
        """Something changed for this flow: it may have room again."""
        if flow.id in self.flows and flow.room > 0:
            self._wake(flow.id)
            self._wake(None)

    @abstractmethod
    def settle_losses(self) -> list[PartLost]:
        """What flows have lost since the last call; to be taken back from them before anything is sent."""

    @abstractmethod
    def on_deadline(self) -> None:
        """Do what was to be done by now."""

    def next_delivery(self) -> tuple[ConsumerFlow, SpooledMessage] | None:
        """The next message, handed out, and the flow it goes to; None where nothing can be sent now."""
        while (part := self._parts.next_awake()) is not None:
            flow = self._taker_of(part)
            if flow is None:
                continue
            message = self._spool.take(part)
            self._parts.wake(part)
            return flow, message
        return None

    @abstractmethod
    def _taker_of(self, part: Part) -> ConsumerFlow | None:
        """The flow that gets a part's next message, which has room; else None, and the part is asleep."""

    def _sleep(self, part: Part, flow: FlowId | None) -> None:
        self._asleep.setdefault(flow, {})[part] = None

    def _wake(self, flow: FlowId | None) -> None:
        for part in self._asleep.pop(flow, ()):
            self._parts.wake(part)

    def _wake_all(self) -> None:
        self._asleep.clear()
        self._parts.wake_all()
