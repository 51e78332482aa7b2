"""`Handlers`, with which a user's modules register functions: handlers by topic, hooks, lifespans and middleware."""

import copy
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, Unpack

import structlog

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.topic import covers, matches, mqtt_remark, subscription_fault
from lbg_runtime.runtime.handlers.batches import read_limits
from lbg_runtime.runtime.handlers.bodies import NoBody, refuse_undefined, type_name
from lbg_runtime.runtime.handlers.calls import make_call, yields
from lbg_runtime.runtime.handlers.failure_policy import FailureArguments, FailureOptions, read_arguments
from lbg_runtime.runtime.handlers.hooks import Hook, HookFunction, HookKind, make_hook
from lbg_runtime.runtime.handlers.lifespan import Lifespan, LifespanFunction, make_lifespan
from lbg_runtime.runtime.handlers.middleware import Middleware, MiddlewareFunction, make_middleware, surrounded
from lbg_runtime.runtime.handlers.parameters import Parameters, innermost, read_parameters
from lbg_runtime.runtime.runners.handling import HandlerFunction

_log = structlog.get_logger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., object])
_Lifespan = TypeVar("_Lifespan", bound=LifespanFunction)
_Hook = TypeVar("_Hook", bound=HookFunction)
_Middleware = TypeVar("_Middleware", bound=MiddlewareFunction)


@dataclass(frozen=True, slots=True)
class Handler:
    subscription: str
    function: HandlerFunction
    """What to call with a message; the user's own function if it takes nothing else."""
    where: str
    """`module:function (file:line)`, for messages to the user."""
    parameters: Parameters
    failure: FailureOptions
    """What its decorator says about failures."""
    text: str
    """The function's docstring."""
    publishes: bool
    """Whether what it returns or yields is published."""
    middleware: tuple[Middleware, ...] = ()
    """The middleware around it, outermost first, without that of the `Handlers` it is in."""


class Handlers:
    """The handlers of a member, in the order of their registration.

    Subscriptions are on the original topic, without the hash prefix and the shard. If several match a topic, the one
    registered first takes it. A subscription to which an earlier one leaves nothing is an error.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._hooks: list[Hook] = []
        self._lifespans: list[Lifespan] = []
        self._middleware: list[Middleware] = []
        self._included: list[Handlers] = []
        self._is_included = False
        self.states_from = "a lifespan that yields one"
        """Where handlers get their states from, for the error about one that is missing."""

    def handler(
        self,
        *subscriptions: str,
        publishes: bool = False,
        transacted: bool = False,
        **failure: Unpack[FailureArguments],
    ) -> Callable[[_Function], _Function]:
        """Register the decorated function for these topics. Raises `HandlerError` if it cannot be a handler.

        It is called with what its annotations ask for: the `Message`, its decoded body, a logger, `State[...]`, or a
        `Receipt` to settle the message with. If it is not `async`, it is called on a thread. What it returns is
        ignored; but if that is something still to be awaited or read, or a message that nobody publishes, the attempt
        has failed, terminally.

        `publishes`: the `Message` or messages that it returns are published, and the input is settled when that is
        confirmed; a handler that yields messages always does this. `transacted`: they are published in a local
        transaction, at most 256 of them, all at once or not at all. `failure` says what follows a failure, as in the
        section `failure` of the settings, which supplies the rest. docs/handlers.md has all rules.
        """
        return self._registering(subscriptions, "handler", failure, publishes, transacted, None)

    def batch_handler(
        self, *subscriptions: str, max_count: int, max_wait: str, **failure: Unpack[FailureArguments]
    ) -> Callable[[_Function], _Function]:
        """Like `handler`, for a function that takes a `Batch` of messages, each of a different key.

        It is called when there are `max_count` messages, when the first of them has waited for `max_wait` (`100ms`), or
        when the queue of one is given up in good order, or its shard leaves. The time of their attempts begins then.
        """
        return self._registering(subscriptions, "batch_handler", failure, False, False, (max_count, max_wait))

    def on_assigned(self, function: _Hook) -> _Hook:
        """Call the decorated async function with queue and epoch when this member becomes the queue's owner.

        It is called before the first message of the epoch is asked for, so it is the place to load what handling needs.
        Handling waits for it at most for `failure.timeout`; if it takes longer or raises, that is logged and handling
        begins without it. `runtime/handlers/hooks.py` says all that is guaranteed. Raises `HandlerError` if the
        function cannot be a hook.
        """
        return self._add_hook(HookKind.ASSIGNED, function)

    def on_drain(self, function: _Hook) -> _Hook:
        """Like `on_assigned`, when the member begins to give the queue up in good order: hand-back, rebind, stop.

        What is in flight is still handled and settled meanwhile. Not called if the flow is lost.
        """
        return self._add_hook(HookKind.DRAIN, function)

    def on_revoked(self, function: _Hook) -> _Hook:
        """Like `on_assigned`, after the last handling of the epoch has ended and its flow is unbound or lost."""
        return self._add_hook(HookKind.REVOKED, function)

    def lifespan(self, function: _Lifespan) -> _Lifespan:
        """Run the decorated async generator function to its `yield` before the first queue is taken, and on from there
        after the last is gone.

        Handlers get what it yields as `State[...]` of its type. Raises `HandlerError` if it cannot be a lifespan.
        """
        where = _where_decorated(function, "lifespan")
        self._check_open(where)
        self._lifespans.append(make_lifespan(function, where))
        return function

    def middleware(self, function: _Middleware) -> _Middleware:
        """Call the decorated async function around every attempt of the handlers here and in included `Handlers`.

        It gets the message and what to call with it, `async def audit(message: Message, proceed: Proceed)`, and more by
        annotation: `Delivery`, a logger, `State[...]`. The first one registered is the outermost; all of them are
        outside the middleware that an included `Handlers` has for itself. `await proceed(message)` returns when the
        handler has returned, and raises what it failed with. Middleware can make an attempt fail, but cannot settle: an
        attempt has failed if its handler failed or was not called, even if the middleware returns. Raises
        `HandlerError` if the function cannot be middleware.
        """
        where = _where_decorated(function, "middleware")
        self._check_open(where)
        self._middleware.append(make_middleware(function, where))
        return function

    @property
    def lifespans(self) -> tuple[Lifespan, ...]:
        """The registered lifespans, in the order of their registration."""
        return tuple(self._lifespans)

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The registered hooks, in the order of their registration."""
        return tuple(self._hooks)

    def include(self, other: "Handlers") -> None:
        """Register everything in `other` after what is here; from then on, `other` is complete.

        Raises `HandlerError` if both have the same subscription. A later registration in `other` raises it too, as it
        would be missing here; so does a later `include` there.
        """
        if other is self or self._is_included or not isinstance(other, Handlers):
            where = f"include {_caller()}"
            self._check_open(where)
            found = "a Handlers in itself" if other is self else f"a {type(other).__name__}"
            raise HandlerError(where, found, "another Handlers, such as `bills.handlers` of a module `bills`")
        for handler in other:
            self._add(replace(handler, middleware=(*other._middleware, *handler.middleware)))
        self._hooks += other.hooks
        self._lifespans += other.lifespans
        self._included.append(other)
        other._is_included = True

    def has_included(self, other: "Handlers") -> bool:
        """Whether `other` is included here, directly or through others."""
        return any(each is other or each.has_included(other) for each in self._included)

    def assembled(self) -> "Handlers":
        """A copy in which every handler function is wrapped in its middleware, and no middleware is left.

        Called when a member begins, so that everything is registered. Raises `HandlerError` for a body that can never
        be read; logs topics that are probably not meant.
        """
        self.check_bodies()
        for warning in mqtt_warnings(self):
            _log.warning("mqtt_wildcard_found", reason=warning)
        other = self.wrapped(lambda each: surrounded(each.function, self.middleware_of(each)))
        other._handlers = {name: replace(each, middleware=()) for name, each in other._handlers.items()}
        other._middleware = []
        return other

    def check_bodies(self) -> None:
        """Raise `HandlerError` if a body uses a name that is still not defined when all modules are loaded."""
        for handler in self:
            body = handler.parameters.body
            if body is None:
                continue
            try:
                refuse_undefined(body)
            except NoBody as error:
                expected = "names that are defined when the modules have been imported"
                raise HandlerError(handler.where, f"body {type_name(body)}: {error}", expected) from None

    def middleware_of(self, handler: Handler) -> tuple[Middleware, ...]:
        """The middleware around one of these handlers, outermost first."""
        return (*self._middleware, *handler.middleware)

    def wrapped(self, wrap: Callable[[Handler], HandlerFunction]) -> "Handlers":
        """A copy in which every handler has the function that `wrap` returns for it; all else is the same."""
        other = copy.copy(self)
        other._is_included = False
        other._included = list(self._included)
        other._middleware = list(self._middleware)
        other._hooks = list(self._hooks)
        other._lifespans = list(self._lifespans)
        other._handlers = {name: replace(each, function=wrap(each)) for name, each in self._handlers.items()}
        return other

    def given(self, states: Iterable[object]) -> "Handlers":
        """A copy in which these states are yielded and no lifespan runs; all else is the same."""
        other = self.wrapped(lambda handler: handler.function)
        other.states_from = "one in `states=`, with which no lifespan runs"
        other._lifespans = [Lifespan(partial(nullcontext, state), type(state).__qualname__) for state in states]
        return other

    def find(self, topic: str) -> Handler | None:
        """The handler that takes an original topic, or None. Linear in the number of handlers."""
        for subscription, handler in self._handlers.items():
            if matches(subscription, topic):
                return handler
        return None

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The subscriptions of all handlers, for the error about a topic that none takes."""
        return tuple(self._handlers)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)

    def _registering(
        self,
        subscriptions: tuple[str, ...],
        name: str,
        said: FailureArguments,
        publishes: bool,
        transacted: bool,
        batches: tuple[int, str] | None,
    ) -> Callable[[_Function], _Function]:
        def register(function: _Function) -> _Function:
            where = _where(function)
            limits = None if batches is None else read_limits(*batches, where)
            parameters = read_parameters(function, where)
            sends = publishes or yields(function)
            call = make_call(function, parameters, where, sends=sends, transacted=transacted, limits=limits)
            beside = ("publishes", "transacted") if limits is None else ("max_count", "max_wait")
            failure = read_arguments(said, where, beside)
            text = inspect.getdoc(function) or ""
            for subscription in subscriptions:
                # A plain text, as a member of an enum would be shown by its name.
                self._add(Handler(str.__str__(subscription), call, where, parameters, failure, text, sends))
            return function

        # Perhaps no type checker saw them.
        given: tuple[object, ...] = subscriptions
        other = [each for each in given if not isinstance(each, str)]
        if other or not subscriptions:
            # If the decorator was not called, the function is in the place of the topics.
            where = next((_where(each) for each in other if callable(each)), f"@{name} {_caller()}")
            if other and not callable(other[0]):
                expected = f'a text for each, as in @handlers.{name}("orders/new", "orders/changed")'
                raise HandlerError(where, f"topic {other[0]!r:.100}", expected)
            raise HandlerError(where, "no topic", f'a call of the decorator, as in @handlers.{name}("orders/>")')
        return register

    def _add_hook(self, kind: HookKind, function: _Hook) -> _Hook:
        where = _where_decorated(function, kind.value)
        self._check_open(where)
        self._hooks.append(make_hook(kind, function, where))
        return function

    def _check_open(self, where: str) -> None:
        if self._is_included:
            raise HandlerError(where, "registered after its Handlers were included", "registered before `include`")

    def _add(self, handler: Handler) -> None:
        self._check_open(handler.where)
        _check_subscription(handler)
        taken = self._handlers.get(handler.subscription)
        if taken is not None:
            raise HandlerError(
                handler.where,
                f"a second handler for {handler.subscription!r}",
                f"one handler for a topic; {taken.where} has it",
            )
        for before in self._handlers.values():
            if covers(before.subscription, handler.subscription):
                found = f"topic subscription {handler.subscription!r}, which gets nothing"
                expected = f"it before {before.subscription!r}, which takes all of it: {before.where}"
                raise HandlerError(handler.where, found, expected)
        self._handlers[handler.subscription] = handler


def mqtt_warnings(handlers: Iterable[Handler]) -> list[str]:
    """Warnings about topics with a wildcard of another protocol."""
    return [
        f"{each.where} takes {each.subscription!r}, and {remark}"
        for each in handlers
        if (remark := mqtt_remark(each.subscription)) is not None
    ]


def _where_decorated(function: object, name: str) -> str:
    """`_where`. Raises `HandlerError` if the decorator was called, with something that is not the function."""
    if not callable(function):
        raise HandlerError(f"@{name} {_caller()}", f"argument {function!r}", f"none, as in @handlers.{name}")
    return _where(function)


def _caller() -> str:
    """Where in the user's code this module was called: `(file:line)`."""
    caller = next(frame for frame in reversed(traceback.extract_stack()) if frame.filename != __file__)
    return f"({caller.filename}:{caller.lineno})"


def _where(function: object) -> str:
    target = innermost(function)
    # A callable object is named by its class and located by its `__call__`.
    named = target if hasattr(target, "__qualname__") else type(target)
    name = f"{getattr(named, '__module__', '?')}:{named.__qualname__}"
    code = getattr(target, "__code__", None) or getattr(getattr(target, "__call__", None), "__code__", None)  # noqa: B004
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _check_subscription(handler: Handler) -> None:
    if (expected := subscription_fault(handler.subscription)) is not None:
        raise HandlerError(handler.where, f"topic subscription {handler.subscription!r}", expected)
