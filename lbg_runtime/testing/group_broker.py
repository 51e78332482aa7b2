"""The broker of a test's group: the development broker's engine on the test's event loop, with failures."""

from collections.abc import Callable, Iterable
from contextvars import Context
from random import Random

from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.lines.partition_line import partition_of
from lbg_runtime.broker.engine.lines.partitions import PartitionState
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.testing.moments import Moments
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.flow import message_of
from lbg_runtime.transport.memory.transport import RECONNECT_WAIT_S, MemoryTransport

ACK_DELAY_S = 1.0
"""The official client's ack timer: what was settled less than this before a crash comes again."""

HANDOFF_ATTEMPTS = 10
"""This many attempts of a handler may take their full time before a partition moves without waiting for them."""


class GroupBroker(MemoryBroker):
    """Keeps its queues through a failure, as a broker with a spool on disk does."""

    def __init__(self, moments: Moments, on_change: Callable[[], None]) -> None:
        """`on_change` is called after every request to the broker."""
        # A test has the same course each time.
        super().__init__(Random(0))
        self.failures_ns: list[int] = []
        """Moments at which it broke all connections."""
        self._moments = moments
        self._on_change = on_change
        self._transports: list[MemoryTransport] = []

    def make_transport(self, client_name: str) -> MemoryTransport:
        """A transport that is not open yet, and fails with the broker."""
        transport = MemoryTransport(self, client_name, ack_delay_s=ACK_DELAY_S)
        self._transports.append(transport)
        return transport

    def fail(self) -> None:
        """Break all connections, and let nobody connect until `restore`. What is spooled is kept."""
        self.failures_ns.append(self._moments.next_ns())
        self.is_reachable = False
        for transport in self._transports:
            Context().run(transport.drop_connection, RECONNECT_WAIT_S)

    def restore(self) -> None:
        """Let everybody connect again; they do so within a second."""
        self.is_reachable = True

    def post(self, effects: Iterable[Effect]) -> None:
        # Not in the caller's context: what a process has requested is carried out even if it is frozen by then.
        Context().run(super().post, effects)
        self._on_change()

    def depth(self, queue: str) -> int:
        """Messages on a queue, unsettled ones included; 0 if there is no such queue."""
        return self.engine.queue_depth(DEFAULT_VPN, QueueName(queue)) if self._has(queue) else 0

    def left_on(self, queue: str) -> list[Message]:
        """The messages on a queue, in order; they stay there, and members do not notice."""
        if not self._has(queue):
            return []
        spooled = self.engine.administration.queue_messages(DEFAULT_VPN, QueueName(queue))
        return [message_of(each.message) for each in spooled]

    def fed(self, queue: QueueName) -> str | None:
        """Name of the client that the broker feeds from a queue."""
        flows = self.engine.queue_flows(DEFAULT_VPN, queue) if self._has(queue) else ()
        return next((flow.client_name for flow in flows if flow.active and not flow.browser), None)

    def fed_with(self, queue: QueueName, key: str | None) -> str | None:
        """Name of the client that the broker feeds with this key of a queue, which may have partitions."""
        owners = self.partition_owners(queue) if self._has(queue) else ()
        return owners[partition_of(key, len(owners))] if owners and key is not None else self.fed(queue)

    def make_partitioned(self, settings: Settings) -> None:
        """Create the queue of a group with `backend: partitioned`. A hand-off waits longer than an attempt takes."""
        shape, group = settings.group.shape(), settings.group
        queue = QueueSettings(
            AccessType.NON_EXCLUSIVE,
            partition_count=group.queue_count,
            partition_max_handoff_ms=HANDOFF_ATTEMPTS * settings.failure.timeout_ms,
        )
        self.create_queue(shape.queue_name(0), shape.subscriptions(0), settings=queue)

    def partition_owners(self, queue: QueueName) -> tuple[str | None, ...]:
        """Names of the clients that have a queue's partitions, by number; None for one that moves or has no owner."""
        partitions = self.engine.queue_status(DEFAULT_VPN, queue).partitions
        return tuple(each.client_name if each.state is PartitionState.READY else None for each in partitions)

    def _has(self, queue: str) -> bool:
        return queue in self.engine.queue_names(DEFAULT_VPN)
