"""What the servers of a broker have in common: where they listen, and their life."""

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from lbg_runtime.broker.server.tls import HANDSHAKE_TIMEOUT_S
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import UserError


class Listening(ABC):
    """Serves from `start` to `stop`, or as an async context manager, on the loop's thread."""

    def __init__(self, host: str, port: int, protocol: str, *, is_secure: bool) -> None:
        """With `port` 0 the system chooses one. `protocol`: what an address begins with, an `s` added if it is
        secure."""
        self.host = host
        self.port = port
        """From `start` on the one that the system chose."""
        self._protocol = f"{protocol}s" if is_secure else protocol

    @property
    def address(self) -> ListenAddress:
        """Where it listens."""
        return ListenAddress(self.host, self.port)

    @property
    def url(self) -> str:
        """The address to give to clients."""
        return f"{self._protocol}://{self.address}"

    @abstractmethod
    async def start(self) -> None:
        """Listen; raises `UserError` if the address cannot be had."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop listening and end every connection. Idempotent."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _listen(self, name: str) -> socket.socket:
        """The socket of this server, which errors call `name`."""
        listener = listen(name, self.host, self.port)
        self.port = listener.getsockname()[1]
        return listener


class Accepting(Listening):
    """One for which asyncio accepts connections."""

    _listener: asyncio.Server | None = None

    async def _accept_for(
        self, name: str, make_protocol: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None
    ) -> None:
        self._listener = await asyncio.get_running_loop().create_server(
            make_protocol,
            sock=self._listen(name),
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_TIMEOUT_S,
            # Listening begins below: a listener that starts here would be lost, and go on listening, if the task were
            # cancelled in the same turn of the loop.
            start_serving=False,
        )
        try:
            await self._listener.start_serving()
        except asyncio.CancelledError:
            # Nobody stops what has not started.
            await self.stop()
            raise

    async def _accept_no_more(self) -> asyncio.CancelledError | None:
        """Have what was accepted become a connection before the listener is closed, where asyncio would forget it;
        returns the cancellation that came meanwhile."""
        listener, self._listener = self._listener, None
        if listener is None:
            return None
        for each in listener.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())
        cancellation: asyncio.CancelledError | None = None
        # In the next turn asyncio makes a transport of it, and in the one after that it tells us.
        for _ in range(2):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                cancellation = error
        listener.close()
        return cancellation


def listen(name: str, host: str, port: int) -> socket.socket:
    """A socket that listens there; raises a `UserError` that begins with `name` if the address cannot be had."""
    return ListenAddress(host, port).listen(
        lambda reason, expected: UserError(f"{name} {host}:{port}", reason, expected)
    )
