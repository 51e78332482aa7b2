"""What a full topic says of a message: who handles it, what follows where that fails, and its place in the group."""

from lbg_runtime.config.settings import FailureSettings
from lbg_runtime.model.errors import HandlerError, HandlerMissing
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.failure_policy import FailureOptions, FailurePolicy, make_policy
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.runtime.runners.attempts import AttemptWatches, RunningAttempts
from lbg_runtime.runtime.runners.handling import HandlerFunction

MAX_ROUTES_REMEMBERED = 10_000
"""Topics whose handler is looked up once; where there are more, they are looked up again now and then."""

SETTINGS_PLACE = "failure"
"""Where the policy is made that no handler has: for topics that nobody wants."""


class Route:
    """Looked up once for each topic; an ordinary class with slots, as every message looks at it."""

    __slots__ = ("attempts", "function", "policy", "shard", "topic")

    def __init__(
        self, function: HandlerFunction, policy: FailurePolicy, attempts: RunningAttempts, shard: int | None, topic: str
    ) -> None:
        self.function = function
        self.policy = policy
        self.attempts = attempts
        """Those that have the same time as an attempt here."""
        self.shard = shard
        """Of a hashed topic."""
        self.topic = topic
        """The original one; the full one where the message is none of the group's."""


class Routes:
    """Those of one member. Raises `ConfigError` or `HandlerError` when it is made, none later."""

    def __init__(
        self, handlers: Handlers, shape: GroupShape, failure: FailureSettings, watches: AttemptWatches
    ) -> None:
        self._handlers = handlers
        self._shape = shape
        self._watches = watches
        self._policies = {each.subscription: make_policy(failure, each.failure, each.where) for each in handlers}
        self._default_policy = make_policy(failure, FailureOptions(), SETTINGS_PLACE)
        self.known: dict[str, Route] = {}
        """By full topic; always the same object, to be read only."""

    def look_up(self, full_topic: str) -> Route:
        """The route of a topic that is not known; it is from now on. Linear in the number of handlers."""
        split = self._shape.split_topic(full_topic)
        shard, topic = split if split is not None else (None, full_topic)
        handler = self._handlers.find(topic)
        if handler is None:
            function, policy = _nobody(topic), self._default_policy
        else:
            function, policy = handler.function, self._policies[handler.subscription]
        if len(self.known) >= MAX_ROUTES_REMEMBERED:
            self.known.clear()
        route = Route(function, policy, self._watches.of(policy.timeout_ms), shard, topic)
        self.known[full_topic] = route
        return route


def policies_of(handlers: Handlers, failure: FailureSettings) -> list[FailurePolicy]:
    """Every policy that a member with these handlers has; raises as `Routes` does."""
    of_handlers = (make_policy(failure, each.failure, each.where) for each in handlers)
    return [*of_handlers, make_policy(failure, FailureOptions(), SETTINGS_PLACE)]


def check_states(handlers: Handlers, resources: MemberResources) -> None:
    """Raises `HandlerError` where a handler, or its middleware, asks for state that no lifespan has yielded."""
    for handler in handlers:
        asked = [(each.where, each.states) for each in handlers.middleware_of(handler)]
        for where, states in [(handler.where, handler.parameters.states), *asked]:
            for kind in states:
                if not resources.has_state(kind):
                    raise HandlerError(where, f"State[{kind.__qualname__}]", "a lifespan that yields one")


def _nobody(topic: str) -> HandlerFunction:
    """What handles the messages that nobody wants."""

    async def refuse(_: Message) -> None:
        raise HandlerMissing(topic)

    return refuse
