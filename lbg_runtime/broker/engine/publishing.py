"""Where the messages go that clients publish, one by one or in a transaction."""

from collections.abc import Mapping, Sequence

from lbg_runtime.broker.engine.effects import DeliverDirect, Effect, Published
from lbg_runtime.broker.engine.intake import Obstacle
from lbg_runtime.broker.engine.queue import Queue
from lbg_runtime.broker.engine.registry import Registry
from lbg_runtime.broker.engine.surroundings import Asked, Surroundings
from lbg_runtime.broker.engine.vpn import Client, Vpn
from lbg_runtime.model.errors import BrokerRefusal

Route = tuple[Sequence[Queue], Sequence[tuple[Queue, Obstacle]]]
"""The queues that get a message, and those that silently do without it, and why."""

_NOTHING_BEFORE: Mapping[Queue, int] = {}


class Publishing:
    """Part of an engine, called by it and by its transactions."""

    def __init__(self, registry: Registry, surroundings: Surroundings) -> None:
        self._numbers = registry.numbers
        self._surroundings = surroundings

    def route(self, client: Client, message: Published, before_bytes: Mapping[Queue, int] = _NOTHING_BEFORE) -> Route:
        """Where a message goes behind others, whose bytes in each queue are given.

        Raises the refusal of a queue that must take it and cannot, and those of `Engine.publish` for its sender.
        """
        # As `Surroundings.check` does, without a call for each message.
        if self._surroundings.refuse is not None:
            self._surroundings.refuse(Asked.PUBLISH, client.name)
        if not client.account.acl.publish.allows(message.topic):
            raise BrokerRefusal(403, "Publish ACL Denied")
        takers: list[Queue] = []
        discards: list[tuple[Queue, Obstacle]] = []
        for queue in client.vpn.queues_for(message.topic):
            obstacle = queue.obstacle_to(message, before_bytes.get(queue, 0))
            if obstacle is None:
                takers.append(queue)
            elif queue.tells_publishers:
                queue.count_discard(obstacle)
                raise obstacle.refusal()
            else:
                # Not counted yet: another queue may keep the message out of all.
                discards.append((queue, obstacle))
        return takers, discards

    def put(self, vpn: Vpn, message: Published, route: Route, publisher: str) -> list[Effect]:
        """Number an accepted message, and put it into the replay log and into the queues that get it."""
        takers, discards = route
        for queue, obstacle in discards:
            queue.count_discard(obstacle)
        self._numbers.give(message)
        if vpn.replay_log is not None:
            vpn.replay_log.add(message)
        effects: list[Effect] = []
        for queue in takers:
            effects += queue.add(message, publisher)
        return effects


def direct_deliveries(vpn: Vpn, message: Published) -> list[Effect]:
    """A delivery for each client that subscribes to the topic."""
    found = vpn.client_subscriptions.match(message.topic)
    return [DeliverDirect(client.id, message) for client in found] if found else []
