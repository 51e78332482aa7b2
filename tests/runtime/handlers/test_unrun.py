"""Handlers whose body has not run, or whose answer nobody publishes, by every way to one: terminal, said clearly, and
never settled as handled.

More than 400 lines, as every kind of handler is tried with every kind of such an answer.
"""

import asyncio
import dataclasses
import functools
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Optional

import pytest

from lbg_runtime.model.errors import HandlerError, TerminalFailure
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.model.unrun import is_unrun
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.middleware import MiddlewareMisused, Proceed
from lbg_runtime.runtime.handlers.receipts import Receipt
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from tests.garbage import own_garbage
from tests.runtime.error_queue import TakingErrorQueue

if TYPE_CHECKING:
    KnownToTypeCheckers = Message

OUT = Message("out/1", b"")


async def _coroutine(message):
    raise AssertionError("it runs")


def _generator(message):
    raise AssertionError("it runs")
    yield


async def _async_generator(message):
    raise AssertionError("it runs")
    yield


def _future(message):
    return asyncio.get_running_loop().create_future()


def _map(message):
    return map(_coroutine, [message])


KINDS = [_coroutine, _generator, _async_generator, _map]


async def _ends(rig, delivery, function=None, **arguments):
    """What a message was moved with; None where it was settled."""
    queue = TakingErrorQueue()
    made = rig(function, error_queue=queue, failure={"then": "error_queue"}, **arguments)
    with warnings.catch_warnings(record=True) as caught, own_garbage():
        warnings.simplefilter("always")
        async with MemberResources(_Messenger(), thread_count=2).entered(()), made.running():
            await made.handle(delivery(1))
    assert [str(each.message) for each in caught] == []
    assert made.outcomes() == {1: Outcome.ACCEPTED}, "as it is settled when it lies on the error queue"
    if not queue.taken:
        return None
    ((_, attempts, error),) = queue.taken
    assert attempts == 1
    return error


def _plain(make):
    async def handle(message):
        return make(message)

    return handle


def _filled(make):
    async def handle(body: bytes, message: Message):
        return make(message)

    return handle


def _filled_with_one(make):
    async def handle(body: bytes):
        return make(body)

    return handle


def _sync(make):
    def handle(message):
        return make(message)

    return handle


def _receipt(make):
    async def handle(receipt: Receipt):
        return make(receipt)

    return handle


def _sync_receipt(make):
    def handle(receipt: Receipt):
        return make(receipt)

    return handle


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("way", [_plain, _filled, _filled_with_one, _sync, _receipt, _sync_receipt])
async def test_what_is_returned_and_has_not_run_is_a_terminal_failure(rig, delivery, way, make):
    error = await _ends(rig, delivery, way(make))
    assert "returned something that nobody awaits or reads, so it may never have run: " in error
    assert error.startswith("TerminalFailure: ")
    if make is not _map:
        assert f" {make.__name__} (is an `await` missing?)" in error, "what it was is named"


@pytest.mark.parametrize("is_sync", [False, True])
@pytest.mark.parametrize("make", KINDS)
async def test_so_it_is_of_a_batch(rig, delivery, make, is_sync):
    async def handle(batch: Batch[bytes]):
        return make(batch)

    def handle_on_thread(batch: Batch[bytes]):
        return make(batch)

    handlers = Handlers()
    handlers.batch_handler("orders/>", max_count=1, max_wait="1s")(handle_on_thread if is_sync else handle)
    error = await _ends(rig, delivery, handlers=handlers)
    assert "returned something that nobody awaits or reads" in error


@pytest.mark.parametrize("is_sync", [False, True])
@pytest.mark.parametrize("make", [_coroutine, _async_generator])
async def test_so_it_is_of_one_that_publishes(rig, delivery, make, is_sync):
    error = await _ends(rig, delivery, (_sync if is_sync else _plain)(make), options={"publishes": True})
    assert "returned something that nobody awaits or reads" in error
    error = await _ends(rig, delivery, _plain(lambda message: [make(message)]), options={"publishes": True})
    assert "returned something that nobody awaits or reads" in error


UNSENT = [lambda _: OUT, lambda _: [OUT], lambda _: (None, OUT), lambda _: dataclasses.replace(OUT)]


@pytest.mark.parametrize("make", UNSENT)
@pytest.mark.parametrize("way", [_plain, _filled, _filled_with_one, _sync, _receipt, _sync_receipt])
async def test_a_message_that_nobody_publishes_is_a_terminal_failure(rig, delivery, way, make):
    error = await _ends(rig, delivery, way(make))
    assert error.startswith("TerminalFailure: ")
    assert error.endswith(" Message, which is not published: that takes a handler registered with publishes=True")


async def test_so_it_is_of_a_batch_and_of_middleware(rig, delivery):
    handlers, handled = Handlers(), []

    @handlers.batch_handler("orders/>", max_count=1, max_wait="1s")
    async def handle(batch: Batch[bytes]):
        return [OUT]

    error = await _ends(rig, delivery, handlers=handlers)
    assert "handle (" in error
    assert "returned a list with a Message, which is not published" in error

    handlers = Handlers()

    @handlers.middleware
    async def answering(message: Message, proceed: Proceed):
        await proceed(message)
        return OUT

    @handlers.handler("orders/>")
    async def handle_one(message: Message):
        handled.append(message)

    error = await _ends(rig, delivery, handlers=handlers.assembled())
    assert "answering (" in error
    assert "returned a Message, which is not published" in error
    assert len(handled) == 1


async def test_what_nobody_would_publish_is_ignored(rig, delivery):
    for answer in ([], [None], ["text"], {"key": OUT}, iter([OUT]), {OUT.topic}, 7):
        assert await _ends(rig, delivery, _plain(lambda message, answer=answer: answer)) is None


async def test_a_list_in_the_place_of_a_message_is_named_as_such_where_messages_are_published(rig, delivery):
    error = await _ends(rig, delivery, _plain(lambda message: [[OUT]]), options={"publishes": True})
    assert "publishes a list, and no Message" in error


def _done_future(message):
    future = _future(message)
    future.set_result(None)
    return future


@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("make", [_future, lambda _: Future()])
async def test_so_it_is_of_what_may_still_run(rig, delivery, make, publishes):
    error = await _ends(rig, delivery, _plain(make), options={"publishes": publishes})
    assert "Future" in error


async def test_work_that_is_done_has_run(rig, delivery):
    async def handle(message: Message):
        async with asyncio.TaskGroup() as group:
            return group.create_task(asyncio.sleep(0))

    assert await _ends(rig, delivery, _plain(_done_future)) is None
    assert await _ends(rig, delivery, handle) is None
    error = await _ends(rig, delivery, _plain(_done_future), options={"publishes": True})
    assert "publishes a Future, and no Message" in error


async def test_what_work_that_is_done_has_failed_with_is_what_the_handler_has_failed_with(rig, delivery):
    def failed(message):
        future = Future()
        future.set_exception(TerminalFailure("no stock"))
        return future

    assert await _ends(rig, delivery, _plain(failed)) == "TerminalFailure: no stock"


async def test_what_is_left_to_a_receipt_may_be_returned(rig, delivery):
    async def work(receipt):
        await asyncio.sleep(1)
        receipt.accept()

    async def handle(receipt: Receipt):
        return asyncio.create_task(work(receipt))

    assert await _ends(rig, delivery, handle) is None


async def test_under_middleware_it_has_failed_for_all_of_them(rig, delivery):
    handlers, seen = Handlers(), []

    async def outer(message: Message, proceed: Proceed):
        try:
            return await proceed(message)
        except TerminalFailure as error:
            seen.append(type(error).__name__)

    handlers.middleware(outer)
    handlers.middleware(_passing)
    handlers.handler("orders/>")(_plain(_coroutine))
    error = await _ends(rig, delivery, handlers=handlers.assembled())
    assert "the handler returned something that nobody awaits or reads" in error
    assert seen == ["TerminalFailure"]


async def _passing(message: Message, proceed: Proceed):
    return await proceed(message)


@pytest.mark.parametrize("is_called", [False, True])
async def test_a_middleware_that_returns_what_has_not_run_has_failed(rig, delivery, is_called):
    handlers, handled = Handlers(), []

    @handlers.middleware
    async def forgetful(message: Message, proceed: Proceed, it: Delivery):
        if is_called:
            await proceed(message)
        return _coroutine(message) if is_called else proceed(message)

    @handlers.handler("orders/>")
    async def handle(message: Message):
        handled.append(message)

    error = await _ends(rig, delivery, handlers=handlers.assembled())
    assert "forgetful" in error
    assert "returned something that nobody awaits or reads" in error
    assert len(handled) == is_called
    assert MiddlewareMisused.__name__ not in error


class _YieldingObject:
    def __call__(self, message: Message):
        yield OUT
        yield OUT


class _Made:
    def __init__(self, message: Message):
        raise AssertionError("it is made")


class _AsyncYieldingObject:
    async def __call__(self, message: Message):
        yield OUT
        yield OUT


class _Messenger:
    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future


@pytest.mark.parametrize("kind", [_YieldingObject, _AsyncYieldingObject])
@pytest.mark.parametrize("wrap", [lambda each: each, functools.partial])
async def test_what_an_object_yields_that_is_called_is_published(rig, delivery, kind, wrap):
    messenger = _Messenger()
    made = rig(wrap(kind()))
    async with MemberResources(messenger).entered(()), made.running():
        await made.handle(delivery(1))
    assert messenger.sent == [OUT, OUT]


async def test_what_publishes_may_return_what_is_yet_to_be_read(rig, delivery):
    def lazily(message):
        return (each for each in [OUT, OUT])

    messenger = _Messenger()
    for function in (lazily, _plain(lazily)):
        made = rig(function, options={"publishes": True})
        async with MemberResources(messenger).entered(()), made.running():
            await made.handle(delivery(1))
    assert messenger.sent == [OUT] * 4


def _returning(function):
    @functools.wraps(function)
    def call(*positional):
        return function(*positional)

    return call


def _returning_async(function):
    @functools.wraps(function)
    async def call(*positional):
        return function(*positional)

    return call


NOT_ONE = "a generator function under a decorator that is not one"
NOT_ASYNC = "an `async def` function under a decorator that is not async"


class _DecoratedObject:
    @_returning
    async def __call__(self, message: Message):
        yield OUT


@pytest.mark.parametrize(
    ("function", "options", "found"),
    [
        (_returning(_generator), {}, NOT_ONE),
        (_returning(_async_generator), {}, NOT_ONE),
        (_returning_async(_async_generator), {}, NOT_ONE),
        (_returning_async(_generator), {"transacted": True}, NOT_ONE),
        (functools.partial(_returning(_generator)), {}, NOT_ONE),
        (_DecoratedObject(), {}, NOT_ONE),
        (_returning(_coroutine), {}, NOT_ASYNC),
        (_returning(_async_generator), {"publishes": True}, NOT_ASYNC),
        (_Made, {}, "a class"),
    ],
)
def test_what_can_be_known_of_it_is_refused_when_it_is_registered(function, options, found):
    with pytest.raises(HandlerError) as caught:
        Handlers().handler("orders/>", **options)(function)
    assert caught.value.found == found


def test_decorators_that_do_what_is_under_them_are_not_refused():
    @functools.wraps(_async_generator)
    async def all_of(message):
        return [each async for each in _async_generator(message)]

    @functools.wraps(_async_generator)
    async def one_by_one(message):
        async for each in _async_generator(message):
            yield each

    @functools.wraps(_coroutine)
    async def awaiting(message):
        return await _coroutine(message)

    @functools.wraps(_generator)
    def listed(message):
        return list(_generator(message))

    for function, publishes in ((all_of, True), (one_by_one, False), (awaiting, False), (listed, True)):
        Handlers().handler("orders/>", publishes=publishes)(function)


async def _one(message) -> Message: ...


async def _perhaps(message) -> Message | None: ...


async def _many(message) -> list[Message]: ...


async def _written(message) -> "Optional[tuple[Message, ...]]": ...  # noqa: UP045 - users write it so


async def _annotated(message) -> Annotated[Sequence[Message | None], "bills"]: ...


def _iterated(message) -> Iterator[Message]: ...


class _Object:
    async def __call__(self, message: Message) -> Message: ...


async def _of_a_receipt(receipt: Receipt) -> Message: ...


PROMISING = [_one, _perhaps, _many, _written, _annotated, _iterated, _Object(), functools.partial(_one), _of_a_receipt]


@pytest.mark.parametrize("function", PROMISING)
def test_a_function_that_says_it_returns_messages_is_refused_if_it_does_not_publish(function):
    with pytest.raises(HandlerError, match=r"test_unrun.py:\d+\): returns .*, and nothing is published; .*") as caught:
        Handlers().handler("orders/>")(function)
    assert caught.value.expected == "publishes=True, or a handler that returns no Message"
    if function is not _of_a_receipt:
        Handlers().handler("orders/>", publishes=True)(function)


def test_functions_that_say_something_else_are_not_refused():
    async def by_topic(message) -> dict[str, Message]: ...

    async def unknown(message) -> "KnownToTypeCheckers": ...

    async def none(message) -> None: ...

    async def yielding(message: Message) -> AsyncIterator[Message]:
        yield OUT

    @functools.wraps(_one)
    async def published_by_a_decorator(message):
        await _one(message)

    for function in (by_topic, unknown, none, yielding, published_by_a_decorator):
        Handlers().handler("orders/>")(function)


async def test_what_has_run_may_be_anything():
    async def done():
        pass

    begun = done()
    for each in (None, 7, [1], {}, iter([1]), "text", done, object()):
        assert not is_unrun(each)
    assert is_unrun(begun)
    with pytest.raises(RuntimeError, match="cannot reuse"):
        await begun


async def test_a_coroutine_that_somebody_runs_is_left_to_them():
    may_end = asyncio.Event()

    async def work():
        await may_end.wait()
        return "done"

    running = work()
    task = asyncio.ensure_future(running)
    await asyncio.sleep(0)
    assert is_unrun(running)
    may_end.set()
    assert await task == "done"
