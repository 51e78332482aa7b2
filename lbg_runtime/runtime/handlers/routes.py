"""From the full topic of a message to its handler, to what follows a failure, and to its place in the group."""

from collections.abc import Iterable

from lbg_runtime.config.broker_names import check_made_queues
from lbg_runtime.config.settings import FailureSettings, GroupBackend, Settings
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.model.errors import ConfigError, HandlerError, HandlerMissing
from lbg_runtime.model.failure import Then
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.failure_policy import FailureOptions, FailurePolicy, make_policy
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.runtime.runners.attempts import AttemptWatches, RunningAttempts
from lbg_runtime.runtime.runners.handling import HandlerFunction

MAX_ROUTES_REMEMBERED = 10_000
"""How many topics have their route remembered; if there are more, routes are looked up again now and then."""

SETTINGS_PLACE = "failure"
"""What errors name as the place of the settings' policy."""


class Route:
    """The route of a topic, made once. An ordinary class with slots, because every message reads it."""

    __slots__ = ("attempts", "function", "policy", "shard", "topic")

    def __init__(
        self, function: HandlerFunction, policy: FailurePolicy, attempts: RunningAttempts, shard: int | None, topic: str
    ) -> None:
        self.function = function
        self.policy = policy
        self.attempts = attempts
        """The running attempts of the member that have the handler's timeout."""
        self.shard = shard
        """The shard of a hashed topic."""
        self.topic = topic
        """The original topic; the full one if it is not one of the group's."""


class Routes:
    """The routes of one member. Raises `ConfigError` or `HandlerError` when made, but not later."""

    def __init__(
        self, handlers: Handlers, shape: GroupShape, failure: FailureSettings, watches: AttemptWatches
    ) -> None:
        self._handlers = handlers
        self._shape = shape
        self._watches = watches
        self._policies = {
            each.subscription: make_policy(failure, each.failure, each.where, has_receipt=each.parameters.has_receipt)
            for each in handlers
        }
        # For topics without a handler, nothing ends the attempts, whatever the settings say: only the user can tell
        # whether settings or publishers are wrong, and in a rolling update the next member may take the topic.
        without_end = failure.model_copy(update={"attempts": None, "then": None})
        self._unwanted = make_policy(without_end, FailureOptions(), SETTINGS_PLACE)
        self.known: dict[str, Route] = {}
        """By full topic; always the same object, read-only for others."""

    def look_up(self, full_topic: str) -> Route:
        """The route of an unknown topic, which is known from now on. Linear in the number of handlers."""
        split = self._shape.split_topic(full_topic)
        shard, topic = split if split is not None else (None, full_topic)
        handler = self._handlers.find(topic)
        if handler is None:
            function, policy = _nobody(topic, self._handlers.subscriptions), self._unwanted
        else:
            function, policy = handler.function, self._policies[handler.subscription]
        if len(self.known) >= MAX_ROUTES_REMEMBERED:
            self.known.clear()
        route = Route(function, policy, self._watches.of(policy.timeout_ms), shard, topic)
        self.known[full_topic] = route
        return route


def policies_of(handlers: Handlers, failure: FailureSettings) -> list[FailurePolicy]:
    """The policies of the handlers, and that of the settings, whose queues are prepared even if no handler uses it.

    Raises as `Routes` does.
    """
    of_handlers = (make_policy(failure, each.failure, each.where) for each in handlers)
    return [*of_handlers, make_policy(failure, FailureOptions(), SETTINGS_PLACE)]


def moves_messages(handlers: Handlers, failure: FailureSettings) -> bool:
    """Whether messages may be published anew in another queue when their attempts end. Raises as `Routes` does."""
    return not {policy.then for policy in policies_of(handlers, failure)} <= {None, Then.STOP}


def check_ends(policies: Iterable[FailurePolicy], settings: Settings) -> None:
    """Raise `ConfigError` if messages are to be parked that come from a partitioned queue, or if the group's name is
    too long for a queue that an end of the attempts needs."""
    ends, group = {policy.then for policy in policies}, settings.group
    if group.backend is GroupBackend.PARTITIONED and Then.PARK in ends:
        expected = "error_queue, dmq or stop: a partitioned queue has several owners, a parking queue has one"
        raise ConfigError("failure.then", Then.PARK.value, expected)
    if Then.PARK in ends:
        check_made_queues(group.name, [parking_queue(group.name, group.queue_count - 1)])
    if Then.ERROR_QUEUE in ends and settings.failure.error_queue is None:
        check_made_queues(group.name, [settings.error_queue])


def check_states(handlers: Handlers, resources: MemberResources) -> None:
    """Raise `HandlerError` if a handler or its middleware asks for state that no lifespan has yielded, or two have."""
    for handler in handlers:
        asked = [(each.where, each.states) for each in handlers.middleware_of(handler)]
        for where, states in [(handler.where, handler.parameters.states), *asked]:
            for kind in states:
                found = resources.states(kind)
                if not found:
                    yielded = ", ".join(type(state).__qualname__ for state in resources.states(object))
                    what = f"State[{kind.__qualname__}]" + (f", where there is only {yielded}" if yielded else "")
                    raise HandlerError(where, what, handlers.states_from)
                if len(found) > 1:
                    types = ", ".join(type(state).__qualname__ for state in found)
                    what = f"State[{kind.__qualname__}], of which there are {len(found)} ({types})"
                    raise HandlerError(where, what, "a type of which there is one, such as a class around it")


def _nobody(topic: str, subscriptions: tuple[str, ...]) -> HandlerFunction:
    """The function for messages that no handler wants."""

    async def refuse(_: Message) -> None:
        raise HandlerMissing(topic, subscriptions)

    return refuse
