"""The fault switch: what tests do to a broker and its connections."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lbg_runtime.broker.engine.surroundings import Asked, Surroundings
from lbg_runtime.broker.server.connection import NO_TROUBLE, Connection, Trouble
from lbg_runtime.model.errors import BrokerRefusal


@dataclass(slots=True)
class _Refusal:
    client_name: str | None
    code: int
    text: str
    left: int | None
    """How many refusals are left; None for always."""


class Faults:
    """One per server. All faults are off at first; one that is set applies to future connections too, and lasts until
    `clear`.

    `client_name` says whose connections are meant; None for everybody's, which a client's own faults override.
    """

    def __init__(
        self, surroundings: Surroundings, connections: Callable[[], Iterable[tuple[str | None, Connection]]]
    ) -> None:
        """`connections`: every connection, with the name of its client if it has logged in."""
        self._connections = connections
        self._troubles: dict[str | None, Trouble] = {}
        self._refusals: dict[Asked, list[_Refusal]] = {}
        self._surroundings = surroundings

    def drop(self, client_name: str | None = None) -> int:
        """Cut connections, as a network does; return how many."""
        chosen = [connection for name, connection in self._connections() if client_name in (None, name)]
        for connection in chosen:
            connection.abort()
        return len(chosen)

    def stall(self, client_name: str | None = None, *, on: bool = True) -> None:
        """Read and write nothing; the connection stays. A client notices through its keep-alives."""
        self._change(client_name, replace(self.trouble_of(client_name), is_stalled=on))

    def delay(self, delay_ms: int, client_name: str | None = None) -> None:
        """Write everything this much later; 0 for at once."""
        self._change(client_name, replace(self.trouble_of(client_name), delay_ms=delay_ms))

    def withhold_acks(self, client_name: str | None = None, *, on: bool = True) -> None:
        """Accept messages without telling their publishers."""
        self._change(client_name, replace(self.trouble_of(client_name), withholds_acks=on))

    def stop_egress(self, client_name: str | None = None, *, on: bool = True) -> None:
        """Hold messages back; they come in order when it is over."""
        self._change(client_name, replace(self.trouble_of(client_name), stops_egress=on))

    def refuse(
        self, asked: Asked, code: int, text: str, client_name: str | None = None, times: int | None = None
    ) -> None:
        """Answer a request with this error, this many times or always."""
        self._refusals.setdefault(asked, []).append(_Refusal(client_name, code, text, times))
        self._surroundings.refuse = self._refuse

    def clear(self) -> None:
        """End all faults. Messages that were held back are sent."""
        self._troubles.clear()
        self._refusals.clear()
        self._surroundings.refuse = None
        for _, connection in self._connections():
            connection.suffer(NO_TROUBLE)

    def trouble_of(self, client_name: str | None) -> Trouble:
        """The faults of a connection of this client."""
        return self._troubles.get(client_name) or self._troubles.get(None) or NO_TROUBLE

    def _change(self, client_name: str | None, trouble: Trouble) -> None:
        self._troubles[client_name] = trouble
        for name, connection in self._connections():
            if client_name in (None, name):
                connection.suffer(self.trouble_of(name))

    def _refuse(self, asked: Asked, client_name: str) -> None:
        for refusal in self._refusals.get(asked, ()):
            if refusal.client_name not in (None, client_name) or refusal.left == 0:
                continue
            if refusal.left is not None:
                refusal.left -= 1
            raise BrokerRefusal(refusal.code, refusal.text)
