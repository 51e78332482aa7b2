"""Which function handles which topic, and the loading of the modules that say so."""

import importlib
import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import TypeVar

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.topic import is_valid_topic, matches

HandlerFunction = Callable[[Message], Awaitable[object]]
"""Handles one message; what it returns is ignored. To raise is to fail: the message is tried again."""

HookFunction = Callable[[QueueName, Epoch], Awaitable[object]]
"""Told of a queue that comes or goes; what it returns is ignored, and what it raises is logged."""

_Function = TypeVar("_Function", bound=HandlerFunction)
_Hook = TypeVar("_Hook", bound=HookFunction)


class HookKind(Enum):
    """What of an epoch, the time in which one flow of the member owns one queue, a hook is told."""

    ASSIGNED = "on_assigned"
    DRAIN = "on_drain"
    REVOKED = "on_revoked"


@dataclass(frozen=True, slots=True)
class Hook:
    """One registered hook."""

    kind: HookKind
    function: HookFunction
    where: str
    """`module:function (file:line)`, for messages to the user."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One registered function."""

    subscription: str
    function: HandlerFunction
    where: str
    """`module:function (file:line)`, for messages to the user."""


class Handlers:
    """The handlers of a member, in the order of their registration.

    Subscriptions are on the original topic, without the hash prefix and the shard. Where several attract a topic, the
    one registered first takes it; the same subscription twice is an error.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._hooks: list[Hook] = []

    def handler(self, *subscriptions: str) -> Callable[[_Function], _Function]:
        """Register the decorated async function for these topics. Raises `HandlerError` where it cannot be one."""

        def register(function: _Function) -> _Function:
            where = _where(function)
            _check_function(function, where, "exactly one parameter, the message", 1)
            for subscription in subscriptions:
                self._add(Handler(subscription, function, where))
            return function

        if not subscriptions or not all(isinstance(subscription, str) for subscription in subscriptions):
            raise HandlerError("@handler", "no topic", 'a topic subscription, as in @handlers.handler("orders/>")')
        return register

    def on_assigned(self, function: _Hook) -> _Hook:
        """Have the decorated async function called with queue and epoch when this member becomes the queue's owner.

        Before the first message of the epoch is asked for, so it is the place to load what handling needs. Handling
        waits for it for `failure.timeout` at most; where it takes longer or raises, that is logged and handling begins
        without it. `runtime/hooks.py` has all promises. Raises `HandlerError` for what is no such function.
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

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The registered hooks, in the order of their registration."""
        return tuple(self._hooks)

    def include(self, other: "Handlers") -> None:
        """Register everything of `other` after what is here. Raises `HandlerError` where both want one subscription."""
        for handler in other:
            self._add(handler)
        self._hooks += other.hooks

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

    def _add_hook(self, kind: HookKind, function: _Hook) -> _Hook:
        where = _where(function)
        _check_function(function, where, "two parameters, queue and epoch", 2)
        self._hooks.append(Hook(kind, function, where))
        return function

    def _add(self, handler: Handler) -> None:
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
    joined = Handlers()
    included: list[Handlers] = []
    for name in module_names:
        found = [value for value in vars(_import(name)).values() if isinstance(value, Handlers)]
        if not found:
            raise HandlerError(f"handlers: {name}", "no Handlers object in the module", "`handlers = Handlers()` there")
        # Modules may share one object, by importing it from each other.
        for handlers in found:
            if not any(handlers is other for other in included):
                included.append(handlers)
                joined.include(handlers)
    return joined


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except HandlerError:
        raise
    except Exception as error:  # the handler boundary: importing runs the user's code
        place = _place_of(error, name)
        raise HandlerError(
            f"handlers: {name}", f"{type(error).__name__}: {error}{place}", "a module that can be imported"
        ) from error


def _place_of(error: Exception, name: str) -> str:
    """Where in the user's module it happened, if it happened there: ` (file:line)`."""
    if isinstance(error, SyntaxError):
        return ""  # its text has the place
    frames = traceback.extract_tb(error.__traceback__)
    tail = name.replace(".", "/")
    mine = [frame for frame in frames if frame.filename.removesuffix(".py").removesuffix("/__init__").endswith(tail)]
    return f" ({mine[-1].filename}:{mine[-1].lineno})" if mine else ""


def _where(function: object) -> str:
    target = inspect.unwrap(function) if callable(function) else function
    name = f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', repr(target))}"
    code = getattr(target, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _check_function(function: object, where: str, parameters: str, count: int) -> None:
    if not inspect.iscoroutinefunction(function):
        raise HandlerError(where, "not async", "`async def`, as handlers share one event loop")
    signature = inspect.signature(function)
    try:
        signature.bind(*(None,) * count)
    except TypeError:
        raise HandlerError(where, f"parameters {signature}", parameters) from None


def _check_subscription(handler: Handler) -> None:
    subscription = handler.subscription
    levels = subscription.split("/")
    if not is_valid_topic(subscription):
        expected = "1 to 250 bytes"
    elif any(">" in level for level in levels[:-1]) or (">" in levels[-1] and levels[-1] != ">"):
        expected = "`>` only as the whole last level"
    elif any("*" in level[:-1] for level in levels):
        expected = "`*` only as the last character of a level"
    else:
        return
    raise HandlerError(handler.where, f"topic subscription {subscription!r}", expected)
