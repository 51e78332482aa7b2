"""A broker inside the event loop: the engine, and the routes from its effects to the sessions of memory transports."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random

from lbg_runtime.broker.engine.effects import ClientId, Effect, Published, SingleEffect, one_by_one
from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.server.engine_timer import EngineTimer
from lbg_runtime.broker.server.keys import GROUP_SEQUENCE_PROPERTY
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message

EffectSink = Callable[[SingleEffect], None]
"""Carries out the effects for one client. Must not raise and must not block."""


class MemoryBroker:
    """The engine with the routes to its clients. Hands effects over in the engine's order, one turn of the loop later,
    so nothing is re-entrant.

    Made and used on one event loop, by `MemoryTransport`s and by tests. Its time is the loop's, virtual or not.
    """

    def __init__(self, chance: Random | None = None) -> None:
        """`chance` decides where a partitioned queue puts a message without a key; without it, anywhere."""
        self.engine = Engine()
        self.is_reachable = True
        """Set to False to make new connections fail as if nothing listened; existing ones stay until dropped."""
        self._routes: dict[ClientId, EffectSink] = {}
        self._outbox: deque[SingleEffect] = deque()
        self._armed = False
        self._timer = EngineTimer(self.engine, self.post)
        self.engine.surroundings.key_of = _key_of
        self.engine.surroundings.closes_group = _closes_group
        self.engine.surroundings.choose = (chance or Random()).randrange

    # -- administration

    def create_queue(
        self,
        queue: str,
        subscriptions: Sequence[str] = (),
        *,
        settings: QueueSettings | None = None,
    ) -> None:
        """Create a queue with its topic subscriptions; raises `BrokerRefusal` as the engine does."""
        if isinstance(subscriptions, str):
            # Each of its letters would be a topic, and a `>` would be all of them.
            raise UserError("subscriptions", repr(subscriptions), f"a list, [{subscriptions!r}]")
        self.engine.create_queue(DEFAULT_VPN, QueueName(queue), settings if settings is not None else QueueSettings())
        for subscription in subscriptions:
            self.engine.add_queue_subscription(DEFAULT_VPN, QueueName(queue), subscription)

    def delete_queue(self, queue: str) -> None:
        """Delete a queue and its messages; its flows end."""
        self.post(self.engine.delete_queue(DEFAULT_VPN, QueueName(queue)))

    # -- called by transports

    def attach(self, client: ClientId, sink: EffectSink) -> None:
        """Route the effects for a client to `sink`, from the next one on."""
        self._routes[client] = sink

    def detach(self, client: ClientId) -> None:
        """The client's connection is gone, with all that was in transit to it; its flows leave the queues."""
        if self._routes.pop(client, None) is not None:
            self.post(self.engine.disconnect(client))

    def post(self, effects: Iterable[Effect]) -> None:
        """Carry effects out in a later turn of the loop, after all that were posted before."""
        self._outbox.extend(one_by_one(effects))
        self._arm()
        self._timer.arm()

    def _arm(self) -> None:
        if self._outbox and not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._carry_out)

    def _carry_out(self) -> None:
        self._armed = False
        try:
            # Only the effects posted so far: what a sink causes comes in the next turn, so that other tasks get theirs.
            for _ in range(len(self._outbox)):
                effect = self._outbox.popleft()
                sink = self._routes.get(effect.client)
                if sink is not None:
                    sink(effect)
        finally:
            self._arm()


def _key_of(message: Published) -> str | None:
    return message.content.key if isinstance(message.content, Message) else None


def _closes_group(message: Published) -> bool:
    return isinstance(message.content, Message) and message.content.properties.get(GROUP_SEQUENCE_PROPERTY) == -1
