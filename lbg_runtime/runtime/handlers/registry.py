"""Which function handles which topic, and the loading of the modules that say so."""

import copy
import importlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import TypeVar, Unpack

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.topic import matches, subscription_fault
from lbg_runtime.runtime.handlers.batches import BatchLimits, read_limits
from lbg_runtime.runtime.handlers.calls import make_call, yields
from lbg_runtime.runtime.handlers.failure_policy import FailureArguments, FailureOptions, read_arguments
from lbg_runtime.runtime.handlers.hooks import Hook, HookFunction, HookKind, make_hook
from lbg_runtime.runtime.handlers.lifespan import Lifespan, LifespanFunction, make_lifespan
from lbg_runtime.runtime.handlers.middleware import Middleware, MiddlewareFunction, make_middleware, surrounded
from lbg_runtime.runtime.handlers.parameters import Parameters, innermost, read_parameters
from lbg_runtime.runtime.runners.failure_report import error_text
from lbg_runtime.runtime.runners.handling import HandlerFunction

_Function = TypeVar("_Function", bound=Callable[..., object])
_Lifespan = TypeVar("_Lifespan", bound=LifespanFunction)
_Hook = TypeVar("_Hook", bound=HookFunction)
_Middleware = TypeVar("_Middleware", bound=MiddlewareFunction)


@dataclass(frozen=True, slots=True)
class Handler:
    """One registered function."""

    subscription: str
    function: HandlerFunction
    """What to call with a message; the user's own function where that takes nothing else."""
    where: str
    """`module:function (file:line)`, for messages to the user."""
    parameters: Parameters
    failure: FailureOptions = field(default_factory=FailureOptions)
    """What it says of its failures."""
    limits: BatchLimits | None = None
    """Of its batches, if it takes such."""
    text: str = ""
    """What it says of itself: its docstring."""
    publishes: bool = False
    """What it returns or yields is published."""
    middleware: tuple[Middleware, ...] = ()
    """What it is inside of, the outermost first, but for that of the `Handlers` that it is in."""


class Handlers:
    """The handlers of a member, in the order of their registration.

    Subscriptions are on the original topic, without the hash prefix and the shard. Where several attract a topic, the
    one registered first takes it; the same subscription twice is an error.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._hooks: list[Hook] = []
        self._lifespans: list[Lifespan] = []
        self._middleware: list[Middleware] = []
        self._included: list[Handlers] = []
        self._is_included = False

    def handler(
        self,
        *subscriptions: str,
        publishes: bool = False,
        transacted: bool = False,
        **failure: Unpack[FailureArguments],
    ) -> Callable[[_Function], _Function]:
        """Register the decorated function for these topics. Raises `HandlerError` where it cannot be one.

        It is called with what its annotations ask for: the `Message`, its body decoded, a logger, `State[...]`, or a
        `Receipt` to settle the message with. One that is not `async` is called on a thread. What it returns is ignored;
        where that has not run yet, the attempt has failed, terminally.

        `publishes`: the `Message` that it returns, or several of them, are published, and the input is settled when
        that is confirmed; so it is where it yields them. `transacted`: they are published in a local transaction, at
        most 256 of them, all at once or not at all. What follows a failure is said as in the section `failure` of the
        settings, which has the rest. docs/handlers.md has all rules.
        """
        return self._registering(subscriptions, "handler", failure, publishes, transacted, None)

    def batch_handler(
        self, *subscriptions: str, max_count: int, max_wait: str, **failure: Unpack[FailureArguments]
    ) -> Callable[[_Function], _Function]:
        """The same for a function that takes a `Batch` of messages, each of another key.

        It is called when there are `max_count`, or when the first of them has waited for `max_wait` (`100ms`). The time
        of their attempts begins then.
        """
        limits = read_limits(max_count, max_wait)
        return self._registering(subscriptions, "batch_handler", failure, False, False, limits)

    def on_assigned(self, function: _Hook) -> _Hook:
        """Have the decorated async function called with queue and epoch when this member becomes the queue's owner.

        Before the first message of the epoch is asked for, so it is the place to load what handling needs. Handling
        waits for it for `failure.timeout` at most; where it takes longer or raises, that is logged and handling begins
        without it. `runtime/handlers/hooks.py` has all promises. Raises `HandlerError` for what is no such function.
        """
        return self._add_hook(HookKind.ASSIGNED, function)

    def on_drain(self, function: _Hook) -> _Hook:
        """The same when the queue begins to be given up in good order: hand-back, rebind, stop.

        What is in flight is still being handled and settled meanwhile. Not called where the flow is lost.
        """
        return self._add_hook(HookKind.DRAIN, function)

    def on_revoked(self, function: _Hook) -> _Hook:
        """The same after the last handling of the epoch has ended and its flow is unbound or lost."""
        return self._add_hook(HookKind.REVOKED, function)

    def lifespan(self, function: _Lifespan) -> _Lifespan:
        """Have the decorated async generator function run to its `yield` before the first queue is taken, and on from
        there after the last is gone.

        What it yields is what handlers get as `State[...]` of its type. Raises `HandlerError` for what is none.
        """
        where = _where(function)
        self._check_open(where)
        self._lifespans.append(make_lifespan(function, where))
        return function

    def middleware(self, function: _Middleware) -> _Middleware:
        """Have the decorated async function called around every attempt of the handlers here and of those included.

        It gets the message and what to call with it, `async def audit(message: Message, proceed: Proceed)`, and more by
        annotation: `Delivery`, a logger, `State[...]`. The first one registered is the outermost; all of these are
        outside of what an included `Handlers` has for itself. `await proceed(message)` returns when the handler has,
        and raises what it failed with. It can make an attempt fail, and cannot settle: an attempt whose handler failed,
        or was not called, has failed even where this returns. Raises `HandlerError` for what is no such function.
        """
        where = _where(function)
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
        """Register everything of `other` after what is here; `other` is complete then.

        Raises `HandlerError` where both want one subscription, and later, where something more is registered there: it
        would be missing here.
        """
        for handler in other:
            self._add(replace(handler, middleware=(*other._middleware, *handler.middleware)))
        self._hooks += other.hooks
        self._lifespans += other.lifespans
        self._included.append(other)
        other._is_included = True

    def has_included(self, other: "Handlers") -> bool:
        """Whether `other` is in here, by way of others too."""
        return any(each is other or each.has_included(other) for each in self._included)

    def assembled(self) -> "Handlers":
        """A copy in which every handler is inside of its middleware, and no middleware is left."""
        other = self.wrapped(lambda each: surrounded(each.function, self.middleware_of(each)))
        other._handlers = {name: replace(each, middleware=()) for name, each in other._handlers.items()}
        other._middleware = []
        return other

    def middleware_of(self, handler: Handler) -> tuple[Middleware, ...]:
        """What a handler of these is inside of, the outermost first."""
        return (*self._middleware, *handler.middleware)

    def wrapped(self, wrap: Callable[[Handler], HandlerFunction]) -> "Handlers":
        """A copy in which `wrap` has named another function for every handler; all else stays as it is."""
        other = copy.copy(self)
        other._is_included = False
        other._included = list(self._included)
        other._middleware = list(self._middleware)
        other._hooks = list(self._hooks)
        other._lifespans = list(self._lifespans)
        other._handlers = {name: replace(each, function=wrap(each)) for name, each in self._handlers.items()}
        return other

    def given(self, states: Iterable[object]) -> "Handlers":
        """A copy in which these are yielded and no lifespan runs; all else stays as it is."""
        other = self.wrapped(lambda handler: handler.function)
        other._lifespans = [Lifespan(partial(nullcontext, state), type(state).__qualname__) for state in states]
        return other

    def find(self, topic: str) -> Handler | None:
        """The handler that takes an original topic, or None. Linear in the number of handlers."""
        for subscription, handler in self._handlers.items():
            if matches(subscription, topic):
                return handler
        return None

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
        limits: BatchLimits | None,
    ) -> Callable[[_Function], _Function]:
        def register(function: _Function) -> _Function:
            where = _where(function)
            parameters = read_parameters(function, where)
            sends = publishes or yields(function)
            call = make_call(function, parameters, where, sends=sends, transacted=transacted, limits=limits)
            failure = read_arguments(said, where)
            text = inspect.getdoc(function) or ""
            for subscription in subscriptions:
                self._add(Handler(subscription, call, where, parameters, failure, limits, text, sends))
            return function

        if not subscriptions or not all(isinstance(subscription, str) for subscription in subscriptions):
            raise HandlerError(f"@{name}", "no topic", f'a topic subscription, as in @handlers.{name}("orders/>")')
        return register

    def _add_hook(self, kind: HookKind, function: _Hook) -> _Hook:
        where = _where(function)
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
        self._handlers[handler.subscription] = handler


def load_handlers(module_names: Iterable[str]) -> Handlers:
    """Import the modules and join their `Handlers`, in order. Raises `HandlerError` with one line for the user."""
    found: dict[Handlers, None] = {}
    for name in module_names:
        here = [value for value in vars(_import(name)).values() if isinstance(value, Handlers)]
        if not here:
            raise HandlerError(f"handlers: {name}", "no Handlers object in the module", "`handlers = Handlers()` there")
        # Modules may share one object, by importing it from each other, and one may have two names for it.
        found |= dict.fromkeys(here)
    joined = Handlers()
    for handlers in found:
        # A module that includes another one's has the name of that as well.
        if not any(other.has_included(handlers) for other in found):
            joined.include(handlers)
    return joined


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except HandlerError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the handler boundary: importing runs the user's code, which may also want to exit
        found = f"{error_text(error)}{_place_of(error, name)}"
        raise HandlerError(f"handlers: {name}", found, "a module that can be imported") from error


def _place_of(error: BaseException, name: str) -> str:
    """Where in the user's module it happened, if it happened there: ` (file:line)`."""
    if isinstance(error, SyntaxError):
        return ""  # its text has the place
    frames = traceback.extract_tb(error.__traceback__)
    tail = name.replace(".", "/")
    mine = [frame for frame in frames if frame.filename.removesuffix(".py").removesuffix("/__init__").endswith(tail)]
    return f" ({mine[-1].filename}:{mine[-1].lineno})" if mine else ""


def _where(function: object) -> str:
    target = innermost(function)
    # An object that can be called is named by its class, and found by what is called.
    named = target if hasattr(target, "__qualname__") else type(target)
    name = f"{getattr(named, '__module__', '?')}:{named.__qualname__}"
    code = getattr(target, "__code__", None) or getattr(getattr(target, "__call__", None), "__code__", None)  # noqa: B004
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _check_subscription(handler: Handler) -> None:
    if (expected := subscription_fault(handler.subscription)) is not None:
        raise HandlerError(handler.where, f"topic subscription {handler.subscription!r}", expected)
