"""Turns a user's function into what the dispatcher calls with a message."""

import functools
import inspect
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future as ThreadFuture
from threading import Event
from types import UnionType
from typing import Annotated, TypeVar, Union, get_args, get_origin

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.aliases import stands_for
from lbg_runtime.runtime.handlers.batches import BatchLimits, handled_in_batches
from lbg_runtime.runtime.handlers.bodies import make_decoder, type_name
from lbg_runtime.runtime.handlers.parameters import Parameters, evaluated
from lbg_runtime.runtime.handlers.publishing import (
    Confirms,
    MakeSending,
    Transaction,
    own_copy,
    published_results,
    published_yields,
)
from lbg_runtime.runtime.handlers.receipts import settled_by_receipt
from lbg_runtime.runtime.handlers.resources import call_in_thread
from lbg_runtime.runtime.handlers.signatures import signature_of
from lbg_runtime.runtime.runners.handling import HandlerFunction, refuse_unrun

_Answer = TypeVar("_Answer")


def make_call(
    function: Callable[..., object],
    parameters: Parameters,
    where: str,
    *,
    sends: bool,
    transacted: bool,
    limits: BatchLimits | None,
) -> HandlerFunction:
    """The function itself if it can be called as it is, else one that wraps it as needed.

    A function that is not a coroutine function is called on a thread, as it may block. `sends`: what it returns or
    yields is published; what a generator yields always is. `transacted`: all of that is published together or not at
    all. `limits`: the function takes batches. Raises `HandlerError` for a combination that is not possible.
    """
    _check_called(function, where, sends=sends)
    if transacted and not sends:
        raise HandlerError(where, "transacted, and nothing is published", "publishes=True, or a handler that yields")
    wanted = {"a batch": parameters.has_batch, "a receipt": parameters.has_receipt, "publishing": sends}
    chosen = [name for name, is_chosen in wanted.items() if is_chosen]
    if len(chosen) > 1:
        raise HandlerError(where, " and ".join(chosen), "one of them")
    if parameters.has_batch != (limits is not None):
        found = "a batch" if parameters.has_batch else "no batch"
        raise HandlerError(where, found, "@handlers.batch_handler(...) for a parameter Batch[...], and for no other")
    if not sends:
        _check_returned(function, where)
    make_sending: MakeSending = Transaction if transacted else Confirms
    call = _make_plain_call(function, parameters, where, make_sending, sends=sends)
    if limits is not None:
        return handled_in_batches(_looked_at(call, where), make_decoder(parameters.body), limits)
    # Work that goes on after the call has the receipt, and settles through it or never.
    return settled_by_receipt(_looked_at(call, where, works_on=True)) if parameters.has_receipt else call


def yields(function: object) -> bool:
    """Whether calling it makes a generator, async or not."""
    return _is(inspect.isasyncgenfunction, function) or _is(inspect.isgeneratorfunction, function)


def is_async(function: object) -> bool:
    """Whether calling it makes a coroutine."""
    return _is(inspect.iscoroutinefunction, function)


def _is(kind: Callable[[object], bool], function: object) -> bool:
    """Whether `function` is a function of this kind, or an object whose `__call__` is."""
    return kind(function) or kind(_called(function))


def _called(function: object) -> object:
    """What runs when `function` is called: itself, or an object's `__call__`; for a `partial`, what that calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004


def _check_called(function: Callable[..., object], where: str, *, sends: bool) -> None:
    """Raise `HandlerError` if a call would not run the function, because it is under a decorator of another kind.

    This sees decorators that set `__wrapped__`, as `functools.wraps` does; others show when they are called.
    """
    if yields(function):
        return
    innermost = inspect.unwrap(_called(inspect.unwrap(function)))  # type: ignore[arg-type]  # whatever it is
    if yields(innermost) and not sends:
        expected = "a decorator that yields it too, or returns a list of it and publishes=True"
        raise HandlerError(where, "a generator function under a decorator that is not one", expected)
    is_kept_async = _is(inspect.iscoroutinefunction, innermost) or _is(inspect.isasyncgenfunction, innermost)
    if is_kept_async and not is_async(function):
        expected = "a decorator that is async and awaits it"
        raise HandlerError(where, "an `async def` function under a decorator that is not async", expected)


def _check_returned(function: Callable[..., object], where: str) -> None:
    """Raise `HandlerError` if the function is annotated as returning messages, which nobody would publish. Without an
    annotation, the answer of each call is looked at."""
    called = _called(function)
    if hasattr(called, "__wrapped__"):
        return  # the annotation is that of the function below, whose messages the decorator may publish
    annotation = signature_of(called).return_annotation  # type: ignore[arg-type]  # it is called, so it has one
    if isinstance(annotation, str):
        try:
            annotation = evaluated(annotation, called)  # type: ignore[arg-type]  # as above
        except Exception:  # noqa: BLE001 - it is the user's, and may raise anything
            return
    if _has_message(stands_for(annotation)):
        found = f"returns {type_name(annotation)}, and nothing is published"
        raise HandlerError(where, found, "publishes=True, or a handler that returns no Message")


def _has_message(annotation: object) -> bool:
    """Whether it is an annotation of what a handler that publishes may return: a message, or several."""
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type) and issubclass(kind, Message):
        return True
    if kind is Annotated:
        # The other arguments are metadata of any kind.
        return _has_message(get_args(annotation)[0])
    is_several = isinstance(kind, type) and issubclass(kind, Iterable) and not issubclass(kind, Mapping)
    return (is_several or kind is Union or kind is UnionType) and any(map(_has_message, get_args(annotation)))


def _make_plain_call(
    function: Callable[..., object], parameters: Parameters, where: str, make_sending: MakeSending, *, sends: bool
) -> HandlerFunction:
    if _is(inspect.isasyncgenfunction, function):
        make: Callable[..., AsyncIterator[object]] = function  # type: ignore[assignment]  # as was just looked at
        return published_yields(_filled(make, parameters), where, make_sending)
    if not is_async(function):
        call = _read_in_thread(function, parameters, where) if sends else _threaded(function, parameters)
    else:
        awaited: HandlerFunction = function  # type: ignore[assignment]  # as was just looked at
        call = awaited if parameters.is_plain else _filled(awaited, parameters)
    return published_results(call, where, make_sending) if sends else call


def _filled(function: Callable[..., _Answer], parameters: Parameters) -> Callable[[Message], _Answer]:
    """The function, called with what its parameters take from a message. The caller awaits or iterates what it returns:
    a coroutine around that would cost every message one more."""
    if len(parameters.positional) == 1 and not parameters.named:
        (fill,) = parameters.positional
        return lambda message: function(fill(message))

    def call(message: Message) -> _Answer:
        positional, named = parameters.fill(message)
        return function(*positional, **named)

    return call


def _threaded(function: Callable[..., object], parameters: Parameters) -> HandlerFunction:
    async def call(message: Message) -> object:
        positional, named = parameters.fill(message)
        return await call_in_thread(functools.partial(function, *positional, **named))

    return call


def _read_in_thread(function: Callable[..., object], parameters: Parameters, where: str) -> HandlerFunction:
    """Like `_threaded`, but a lazy answer is read on the thread too, until the attempt is given up."""

    async def call(message: Message) -> object:
        positional, named = parameters.fill(message)
        given_up = Event()

        def read() -> object:
            answer = function(*positional, **named)
            return list(_copies(answer, where, given_up)) if isinstance(answer, Iterator) else answer

        return await call_in_thread(read, given_up.set)

    return call


def _copies(answer: Iterator[object], where: str, given_up: Event) -> Iterator[Message]:
    for each in answer:
        # Otherwise an answer without an end would keep the thread and the key, and fill the memory.
        if given_up.is_set():
            return
        # Copied as it comes: the function may change the same object to make the next.
        yield own_copy(each, where)


def _looked_at(call: HandlerFunction, where: str, *, works_on: bool = False) -> HandlerFunction:
    """The call, refusing an answer that has yet to run, as the callers of this do not check. `works_on`: the answer may
    be work that is still going on."""

    async def call_and_look(message: Message) -> None:
        answer = await call(message)
        if answer is not None and not (works_on and isinstance(answer, Future | ThreadFuture)):
            refuse_unrun(answer, where)

    return call_and_look
