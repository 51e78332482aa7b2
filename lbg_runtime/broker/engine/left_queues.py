"""Temporary queues of clients that are gone: kept for a while, as a client may only have lost its connection."""

from dataclasses import dataclass

from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.queue import Queue
from lbg_runtime.broker.engine.timetable import Timetable
from lbg_runtime.broker.engine.vpn import Client, Vpn

KEPT_MS = 60_000
"""As on PubSub+."""

_Owner = tuple[Vpn, str, str]
"""With the names of the client and of its user: another user's client may have the same name."""


@dataclass(frozen=True, slots=True)
class _Left:
    queues: tuple[Queue, ...]
    until_ms: int


class LeftQueues:
    """One per engine; called by its registry, and by the timetable."""

    def __init__(self, timetable: Timetable) -> None:
        self._timetable = timetable
        self._left: dict[_Owner, _Left] = {}
        """Those that were left first come first."""

    def leave(self, owner: Client) -> None:
        """A client is gone: its temporary queues go on taking messages, and nobody may bind them."""
        queues = tuple(queue for queue in owner.vpn.queues.values() if queue.temporary_of == owner.id)
        if queues:
            self._left[_owner(owner)] = _Left(queues, self._timetable.now() + KEPT_MS)
            self._set_time()

    def give_back(self, owner: Client) -> None:
        """A client is here again, perhaps: what it left is its own."""
        left = self._left.pop(_owner(owner), None)
        if left is not None:
            for queue in left.queues:
                queue.temporary_of = owner.id
            self._set_time()

    def on_deadline(self) -> list[Effect]:
        """Delete the queues whose clients have not come back in time."""
        now_ms = self._timetable.now()
        for owner, left in tuple(self._left.items()):
            if left.until_ms <= now_ms:
                del self._left[owner]
                for queue in left.queues:
                    # An administrator may have deleted it meanwhile.
                    if owner[0].queues.get(queue.name) is queue:
                        owner[0].remove_queue(queue)
        self._set_time()
        return []

    def _set_time(self) -> None:
        self._timetable.set(self, next((left.until_ms for left in self._left.values()), None))


def _owner(client: Client) -> _Owner:
    return client.vpn, client.name, client.username
