"""What the conformance suite needs from a transport's environment."""

from collections.abc import Sequence
from typing import Protocol

from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.transport.base import Browser, Connection, Messenger, Transport

USERNAME = "member"
PASSWORD = "correct"  # noqa: S105  # known to every test broker, protects nothing


class FullTransport(Transport, Messenger, Browser, Connection, Protocol):
    """All that a transport offers."""


class BrokerAdmin(Protocol):
    """The administrator's side of a broker."""

    def create_queue(
        self, queue: str, subscriptions: Sequence[str] = (), *, settings: QueueSettings | None = None
    ) -> None:
        """Create an exclusive queue that attracts these topics."""
        ...

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages; its flows end."""
        ...


class TransportHarness(Protocol):
    """A fresh broker with the single user `USERNAME`, and transports to it; everything is taken down after the test."""

    broker: BrokerAdmin

    def make_transport(self, client_name: str, *, password: str = PASSWORD) -> FullTransport:
        """A transport that is not open; the harness closes it at the end."""
        ...

    def let_subscribe(self, *, is_allowed: bool) -> None:
        """Whether the user may subscribe to topics from now on; at the beginning it may. Subscriptions stay."""
        ...

    def cut(self, client_name: str) -> None:
        """Break the connection of one client; it can come back at once."""
        ...

    async def begin_outage(self) -> None:
        """Break all connections and let nobody connect."""
        ...

    async def end_outage(self) -> None:
        """Let everybody connect again."""
        ...
