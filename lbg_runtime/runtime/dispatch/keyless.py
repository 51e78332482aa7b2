"""Decides what happens to messages in which the rule of `group.key` finds no key, as `dispatch.missing_key` says."""

import structlog

from lbg_runtime.config.settings import MissingKey
from lbg_runtime.core.chance import RandomSource, nonce
from lbg_runtime.core.first_times import FirstTimes
from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.model.errors import KeyMissing
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.runtime.handlers.routes import Route
from lbg_runtime.runtime.runners.dispatch_counts import DispatchCounts
from lbg_runtime.runtime.runners.handling import Handling, facts_of

_log = structlog.get_logger(__name__)

MAX_TOPICS_TOLD = 1_000
"""Topics for which a missing key is logged: bounds memory and log, should every message have its own topic."""


class KeylessMessages:
    """One per dispatcher."""

    def __init__(self, rule: MissingKey, counts: DispatchCounts, random: RandomSource) -> None:
        self._rule = rule
        # The names of lanes outlive the member in parking queues, and its next life numbers epochs and deliveries from
        # 1 again: without this, two messages could get the same lane.
        self._life = f"{nonce(random):x}" if rule is MissingKey.NO_ORDER else ""
        self._counts = counts
        self._told = FirstTimes(MAX_TOPICS_TOLD)

    @property
    def keeps_order(self) -> bool:
        """Whether they are handled in the order of their shard, and therefore in that of every key."""
        return self._rule is not MissingKey.NO_ORDER

    def take(self, delivery: Delivery, route: Route) -> Handling:
        """Return the handling of a delivery that has no key. Constant time."""
        self._counts.without_key += 1
        handling = self._made(delivery, route)
        if self._told.is_first(route.topic):
            _log.warning("key_missing", **facts_of(handling), rule=self._rule.value)
        return handling

    def _made(self, delivery: Delivery, route: Route) -> Handling:
        match self._rule:
            case MissingKey.SHARD:
                return Handling(delivery, _lane_of_shard(delivery, route), None, route)
            case MissingKey.ERROR:
                # The handler's own route but for the function, as the handler's policy decides what follows.
                refusing = Route(_refuse, route.policy, route.attempts, route.shard, route.topic)
                return Handling(delivery, _lane_of_shard(delivery, route), None, refusing)
            case MissingKey.NO_ORDER:
                lane = f"\0message {delivery.queue} {self._life} {delivery.epoch} {delivery.delivery_id}"
                return Handling(delivery, lane, None, route)


def _lane_of_shard(delivery: Delivery, route: Route) -> LaneKey:
    # A key with this very text would share the lane. That would cost it time, but not order.
    return f"\0queue {delivery.queue}" if route.shard is None else f"\0shard {route.shard}"


async def _refuse(_: Message) -> None:
    raise KeyMissing
