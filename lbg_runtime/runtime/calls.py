"""From a user's function to what the dispatcher calls with a message."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable

from lbg_runtime.model.errors import HandlerError, TerminalFailure
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.batches import BatchLimits, handled_in_batches
from lbg_runtime.runtime.bodies import make_decoder
from lbg_runtime.runtime.handling import HandlerFunction
from lbg_runtime.runtime.parameters import Parameters
from lbg_runtime.runtime.publishing import Confirms, MakeSending, Transaction, published_results, published_yields
from lbg_runtime.runtime.receipts import settled_by_receipt
from lbg_runtime.runtime.resources import call_in_thread


def make_call(
    function: Callable[..., object],
    parameters: Parameters,
    where: str,
    *,
    publishes: bool,
    transacted: bool,
    limits: BatchLimits | None,
) -> HandlerFunction:
    """The function itself where it can be called as it is; else one that does what belongs to it.

    What is no coroutine function is called on a thread, as it may block. `publishes`: what it returns is; what it
    yields is in any case. `transacted`: that is published together or not at all. `limits`: it takes batches. Raises
    `HandlerError` for what does not go together.
    """
    sends = publishes or yields(function)
    if transacted and not sends:
        raise HandlerError(where, "transacted, and nothing is published", "publishes=True, or a handler that yields")
    wanted = {"a batch": parameters.has_batch, "a receipt": parameters.has_receipt, "publishing": sends}
    chosen = [name for name, is_chosen in wanted.items() if is_chosen]
    if len(chosen) > 1:
        raise HandlerError(where, " and ".join(chosen), "one of them")
    if parameters.has_batch != (limits is not None):
        found = "a batch" if parameters.has_batch else "no batch"
        raise HandlerError(where, found, "@handlers.batch_handler(...) for a parameter Batch[...], and for no other")
    make_sending: MakeSending = Transaction if transacted else Confirms
    call = _make_plain_call(function, parameters, where, make_sending, publishes=publishes)
    if limits is not None:
        return handled_in_batches(call, make_decoder(parameters.body), limits)
    return settled_by_receipt(call) if parameters.has_receipt else call


def yields(function: object) -> bool:
    """Whether calling it makes a generator of one kind or the other."""
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


def is_async(function: object) -> bool:
    """Whether calling it makes a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _make_plain_call(
    function: Callable[..., object], parameters: Parameters, where: str, make_sending: MakeSending, *, publishes: bool
) -> HandlerFunction:
    if inspect.isasyncgenfunction(function):
        return published_yields(_filled_iteration(function, parameters), where, make_sending)
    if inspect.isgeneratorfunction(function):
        return published_results(_threaded(_listed(function), parameters, where), where, make_sending)
    if not is_async(function):
        call = _threaded(function, parameters, where)
    elif parameters.is_plain:
        call = function  # type: ignore[assignment]  # as was just looked at
    else:
        call = _filled(function, parameters)
    return published_results(call, where, make_sending) if publishes else call


def _filled(function: Callable[..., object], parameters: Parameters) -> HandlerFunction:
    if len(parameters.positional) == 1 and not parameters.named:
        (fill,) = parameters.positional

        async def call_with_one(message: Message) -> object:
            return await function(fill(message))  # type: ignore[misc]  # a coroutine function's

        return call_with_one

    async def call(message: Message) -> object:
        positional, named = parameters.fill(message)
        return await function(*positional, **named)  # type: ignore[misc]  # a coroutine function's

    return call


def _filled_iteration(
    function: Callable[..., AsyncIterator[object]], parameters: Parameters
) -> Callable[[Message], AsyncIterator[object]]:
    def make(message: Message) -> AsyncIterator[object]:
        positional, named = parameters.fill(message)
        return function(*positional, **named)

    return make


def _threaded(function: Callable[..., object], parameters: Parameters, where: str) -> HandlerFunction:
    async def call(message: Message) -> object:
        positional, named = parameters.fill(message)
        answer = await call_in_thread(functools.partial(function, *positional, **named))
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise TerminalFailure(f"{where} is no `async def` and returns something to be awaited")
        return answer

    return call


def _listed(function: Callable[..., object]) -> Callable[..., list[object]]:
    """To be read on the thread too."""

    def read(*positional: object, **named: object) -> list[object]:
        return list(function(*positional, **named))  # type: ignore[call-overload,no-any-return]  # a generator's

    return read
