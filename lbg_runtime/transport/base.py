"""The protocols that every transport implements, and that `testing/conformance.py` tests.

All methods are called on the event loop's thread, and so are sinks, so no caller needs a lock.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from lbg_runtime.core.flow.events import FlowEvent
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome

FlowSink = Callable[[FlowEvent], None]
"""Takes the events of one flow handle, in the order in which they happened. Must not raise and must not block."""

ConnectionSink = Callable[[bool], None]
"""Called with whether there is a connection. Must not raise and must not block."""

DirectSink = Callable[[Message], None]
"""Takes the direct messages of a subscription. Must not raise and must not block."""

IsLast = Callable[[Message], bool]
"""Whether a browsed message is the last one to read. Asked on any thread. Must not raise and must not block."""


class BoundFlow(Protocol):
    """One flow handle, from a successful bind to `unbind` or its `FlowDown`. Owned by one flow runner."""

    def settle(self, delivery_id: DeliveryId, outcome: Outcome) -> None:
        """Tell the broker how a delivery of this handle ended. Never blocks; does nothing on a dead handle.

        The settlement may reach the broker up to a second later, but before a following `unbind` ends; during an outage
        it is kept, and sent after the reconnect. Settlements take effect in the order of the calls and without gaps:
        none overtakes another, and after a reconnect those that the broken connection may have lost are sent again,
        before any later one (law L3: the settled messages of a key are a prefix; tests/sim/test_laws.py has the story).
        A transport that cannot guarantee this for an outcome gives the handle up instead: `FlowDown`, and the message
        is delivered again.
        """
        ...

    def stop_intake(self) -> None:
        """Ask the broker to send nothing more; messages in transit still reach the sink. Never blocks."""
        ...

    def start_intake(self) -> None:
        """Let the broker send: for the first time, or after `stop_intake`. Never blocks."""
        ...

    def flush(self) -> None:
        """Send all settlements made so far, without waiting for the ack timer. Never blocks.

        Anything the same session sends after this call reaches the broker after these settlements, unless one of the
        two is lost with the connection or the handle.
        """
        ...

    async def unbind(self) -> bool:
        """Flush settlements and give the handle up. Idempotent; never raises for a dead handle or a lost connection.

        After it returns, the sink is not called again for this epoch. True: the broker has taken the settlements, and
        messages delivered but not settled are back on the queue, flagged. False: this is not known, because the handle
        or the connection was lost before or during the call. The handle is given up even when the caller is cancelled.
        """
        ...


class Transport(Protocol):
    """A session with a broker that reconnects by itself. One owner opens and closes it."""

    async def open(self) -> None:
        """Connect; raises `ConnectFailed`. Once connected, it retries forever after an outage.

        Cancelling the call, or calling `close` meanwhile, which fails it, ends it soon and leaves no connection.
        """
        ...

    async def close(self) -> None:
        """End the session, also one that is being opened; flows still bound end as if the process had died.

        Idempotent.
        """
        ...

    async def bind(self, queue: QueueName, epoch: Epoch, sink: FlowSink) -> BoundFlow:
        """Bind a flow with its intake closed; raises `BindFailed`. It is a standby until the sink gets `FlowActive`.

        The broker sends nothing before `start_intake`, so if the flow is given up before that, the next flow gets the
        messages unflagged; its activity is reported all the same. After an outage the transport binds the handle again,
        with its intake as it was. The sink may be called before this returns. Cancelling the call leaves no flow bound.
        """
        ...

    async def provision(self, queue: QueueName, subscriptions: Sequence[str]) -> None:
        """Create an exclusive durable queue and its topic subscriptions if missing; as much at once as is possible.

        Raises `TransportError`; `RequestRefused` if the broker said no.
        """
        ...


MAX_TOGETHER = 256
"""The most messages that a broker takes in one transaction."""


def too_many_together(count: int) -> str:
    """Why this many messages are refused."""
    return f"{count} messages in one transaction; at most {MAX_TOGETHER} are possible"


def answer(future: "asyncio.Future[None]", error: Exception | None) -> None:
    """Complete the future of a publication, with an error if there is one; nothing if it is done or cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class Messenger(Protocol):
    """Publishing, and direct messages, over the same session; a transport implements this too."""

    def send(self, message: Message) -> "asyncio.Future[None]":
        """Publish persistently; calls are sent in order. The future completes when the broker has confirmed.

        Fails with `PublishRefused` (the broker said no; `MessageUnsendable`: it was not even asked) or `PublishFailed`
        (it may or may not be spooled). Survives a reconnect: unconfirmed messages are sent again, and the broker drops
        those it already has. Never blocks: the caller bounds how many are unconfirmed. A message whose future is
        cancelled before it has left may never be sent.
        """
        ...

    def send_together(self, messages: Sequence[Message]) -> "asyncio.Future[None]":
        """Publish one to `MAX_TOGETHER` messages in a local transaction: all become visible at once, or none does.

        The future completes when the broker has committed; if it is cancelled before the commit begins, nothing is
        published. Calls are committed in order, but are not ordered relative to `send`. Fails with `PublishRefused`
        (none was published) or `PublishFailed` (all of them may have been, or none): a transaction does not survive its
        connection.
        """
        ...

    def send_direct(self, message: Message) -> None:
        """Publish at most once, to whoever is subscribed now. Never blocks; losing the message is not an error."""
        ...

    def watch_connection(self, sink: ConnectionSink) -> None:
        """Call `sink` with whether there is a connection: now, and at each change until `close`. One watcher.

        True means that direct messages leave, and that subscriptions are restored, unless the broker now refuses them:
        see `subscribe`.
        """
        ...

    async def subscribe(self, subscription: str, sink: DirectSink) -> None:
        """Take direct messages until `close`; raises `SubscribeFailed`, then none may come until it is called again.

        Restored after a reconnect. If the broker refuses that, nobody is told. A caller that must know calls this again
        with the same arguments when the connection is back: the broker is then asked once more, and each message is
        still taken once.
        """
        ...


class Connection(Protocol):
    """The state of the session, for whoever reports on it; a transport implements this too."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now, as far as is known."""
        ...

    @property
    def why_away(self) -> str | None:
        """What broke the connection or, if that is known, why the last attempt to restore it failed; None while there
        is a connection."""
        ...


class Browser(Protocol):
    """Looks into a queue; a transport implements this too."""

    async def has_queue(self, queue: QueueName) -> bool:
        """Whether the broker has a queue of this name, also one that may not be used.

        Raises `TransportError`; `RequestRefused` if this user may not know.
        """
        ...

    async def browse(self, queue: QueueName, quiet_s: float, is_last: IsLast | None = None) -> list[Message]:
        """Return the messages on a queue, in order, no matter who holds it; take none of them. Raises `TransportError`.

        A broker does not say where a queue ends, so reading ends when none has come for `quiet_s`. A queue that is fed
        more often than that is read for ever, unless `is_last` ends it: that is asked about each message, in order, and
        the one for which it is True is the last one returned. A cancelled call reads no further message.
        """
        ...
