"""What is put around handlers: its order, what it sees, and that it settles nothing."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from lbg_runtime.model.errors import HandlerError, TerminalFailure
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.middleware import MiddlewareMisused, Proceed, make_middleware, surrounded
from lbg_runtime.runtime.handlers.parameters import State
from lbg_runtime.runtime.handlers.receipts import Receipt
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.runtime.handlers.routes import check_states
from tests.runtime.error_queue import TakingErrorQueue


def _noting(seen, name):
    async def note(message: Message, proceed: Proceed) -> None:
        seen.append(f"{name} before")
        await proceed(message)
        seen.append(f"{name} after")

    return note


async def _handled(rig, handlers, message_delivery, count=1, **sections):
    made = rig(handlers=handlers.assembled(), **sections)
    async with made.running():
        made.dispatcher.dispatch(message_delivery)
        await made.until_ended(count)
    return made


async def test_the_apps_middleware_is_outside_of_a_routers_and_the_first_registered_outside_of_the_next(rig, delivery):
    seen = []
    app, router = Handlers(), Handlers()

    @router.handler("orders/>")
    async def handle(message: Message) -> None:
        seen.append("handler")

    router.middleware(_noting(seen, "router"))
    app.middleware(_noting(seen, "app"))
    app.include(router)
    # Of those that stand above, it does not matter when they come.
    app.middleware(_noting(seen, "app, second"))
    made = await _handled(rig, app, delivery(1))
    assert made.outcomes() == {1: Outcome.ACCEPTED}
    order = ["app", "app, second", "router"]
    assert seen == [*(f"{name} before" for name in order), "handler", *(f"{name} after" for name in reversed(order))]


async def test_a_routers_middleware_is_not_around_its_neighbours(rig, delivery):
    seen = []
    app, router = Handlers(), Handlers()
    router.middleware(_noting(seen, "router"))

    @router.handler("bills")
    async def bills(message: Message) -> None: ...

    @app.handler("orders/>")
    async def orders(message: Message) -> None: ...

    app.include(router)
    await _handled(rig, app, delivery(1))
    assert seen == []


async def test_it_sees_what_every_attempt_came_to(rig, delivery):
    seen = []
    app = Handlers()

    @app.middleware
    async def look(message: Message, proceed: Proceed, it: Delivery) -> None:
        try:
            seen.append((it.delivery_id, await proceed(message)))
        except KeyError as failure:
            seen.append((it.delivery_id, failure.args))
            raise

    @app.handler("orders/>")
    async def handle(message: Message) -> str:
        if len(seen) < 2:
            raise KeyError("pear")
        return "well"

    made = await _handled(rig, app, delivery(7))
    assert seen == [(7, ("pear",)), (7, ("pear",)), (7, "well")]
    assert made.ends[0].attempts == 3


async def test_one_that_swallows_a_failure_settles_nothing(rig, delivery):
    app, attempts = Handlers(), []

    @app.middleware
    async def swallow(message: Message, proceed: Proceed) -> None:
        with contextlib.suppress(KeyError):
            await proceed(message)

    @app.handler("orders/>")
    async def handle(message: Message) -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise KeyError

    made = await _handled(rig, app, delivery(1))
    assert made.ends[0].attempts == len(attempts) == 3


async def _moved(rig, app, delivery):
    """The error that the message failed with for good."""
    error_queue = TakingErrorQueue()
    await _handled(rig, app, delivery(1), failure={"then": "error_queue"}, error_queue=error_queue)
    return error_queue.errors[0]


async def test_one_that_does_not_call_the_handler_settles_nothing(rig, delivery):
    app = Handlers()

    @app.middleware
    async def skip(message: Message, proceed: Proceed) -> None: ...

    @app.handler("orders/>")
    async def handle(message: Message) -> None:
        raise AssertionError

    error = await _moved(rig, app, delivery)
    assert error.startswith(MiddlewareMisused.__qualname__)
    assert "skip" in error
    assert "returned without calling its handler" in error


async def test_one_that_proceeds_with_something_else_than_a_message_is_told_so(rig, delivery):
    app = Handlers()

    @app.middleware
    async def unpack(message: Message, proceed: Proceed) -> None:
        await proceed(message.payload)

    @app.handler("orders/>")
    async def handle(message: Message) -> None:
        raise AssertionError

    error = await _moved(rig, app, delivery)
    assert "unpack" in error
    assert "calls its handler with a bytes, and no Message" in error


async def test_a_second_call_in_one_attempt_is_refused(rig, delivery):
    app, attempts = Handlers(), []

    @app.middleware
    async def twice(message: Message, proceed: Proceed) -> None:
        await proceed(message)
        await proceed(message)

    @app.handler("orders/>")
    async def handle(message: Message) -> None:
        attempts.append(1)

    assert "calls its handler a second time" in await _moved(rig, app, delivery)
    assert len(attempts) == 1


async def test_it_can_make_an_attempt_fail_before_and_after_the_handler(rig, delivery):
    app, attempts = Handlers(), []

    @app.middleware
    async def commit(message: Message, proceed: Proceed) -> None:
        if not attempts:
            attempts.append("refused")
            raise ConnectionError
        await proceed(message)
        if len(attempts) == 2:
            raise ConnectionError

    @app.handler("orders/>")
    async def handle(message: Message) -> None:
        attempts.append("handled")

    made = await _handled(rig, app, delivery(1))
    assert attempts == ["refused", "handled", "handled"]
    assert made.ends[0].attempts == 3


async def test_it_can_give_the_handler_another_message_and_another_error(rig, delivery):
    app = Handlers()

    @app.middleware
    async def opened(message: Message, proceed: Proceed) -> None:
        try:
            await proceed(Message(message.topic, b"opened " + message.payload))
        except ValueError as failure:
            raise TerminalFailure(f"as {failure}") from failure

    @app.handler("orders/>")
    async def handle(body: bytes) -> None:
        raise ValueError(body.decode())

    assert await _moved(rig, app, delivery) == "TerminalFailure: as opened 1"


async def test_what_only_the_member_knows_of_a_message_stays_with_one_that_is_made_anew(rig, delivery):
    app, seen = Handlers(), []

    @app.middleware
    async def opened(message: Message, proceed: Proceed) -> None:
        await proceed(Message(message.topic, b"opened", message.properties))

    @app.middleware
    async def inner(message: Message, proceed: Proceed) -> None:
        seen.append((message.key, message.is_first_of_key))
        await proceed(replace(message, payload=b"again"))

    @app.handler("orders/>")
    async def handle(message: Message) -> None:
        seen.append((message.payload, message.key, message.fencing_token, message.is_first_of_key))

    made = rig(handlers=app.assembled(), group={"key": "property:customer"})
    stamps = {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": 7}
    async with made.running():
        for number, properties in enumerate(({**stamps, "customer": "c"}, {"customer": "c"}), 1):
            plain = delivery(number)
            made.dispatcher.dispatch(replace(plain, message=replace(plain.message, properties=properties)))
        await made.until_ended(2)
    assert seen == [("c", True), (b"again", "c", None, True), ("c", False), (b"again", "c", None, False)]


async def test_a_message_of_an_earlier_turn_gets_the_key_and_the_flag_of_this_one(rig, delivery):
    app, seen, kept = Handlers(), [], []

    @app.middleware
    async def first_of_all(message: Message, proceed: Proceed) -> None:
        kept.append(message)
        await proceed(kept[0])

    @app.handler("orders/>")
    async def handle(message: Message) -> None:
        seen.append((message.payload, message.key, message.is_first_of_key))

    made = rig(handlers=app.assembled(), dispatch={"runners": 1})
    async with made.running():
        for number, key in ((1, "a"), (2, "a"), (3, "b")):
            made.dispatcher.dispatch(delivery(number, key))
        await made.until_ended(3)
    assert sorted(seen) == [(b"1", "a", False), (b"1", "a", True), (b"1", "b", True)]


async def test_a_handler_that_its_middleware_leaves_running_is_waited_for(rig, delivery):
    app, log = Handlers(), []
    kept_alive = []

    @app.middleware
    async def start(message: Message, proceed: Proceed) -> None:
        kept_alive.append(asyncio.ensure_future(proceed(message)))
        await asyncio.sleep(0)

    @app.handler("orders/>")
    async def handle(message: Message) -> None:
        log.append(f"begin {message.payload.decode()}")
        await asyncio.sleep(3)
        log.append(f"end {message.payload.decode()}")

    made = rig(handlers=app.assembled())
    async with made.running():
        await made.handle(delivery(1), delivery(2))
    assert log == ["begin 1", "end 1", "begin 2", "end 2"]


async def test_a_handler_that_its_middleware_leaves_running_is_waited_for_also_by_who_is_to_end():
    """As when its queue is recalled: the key is not free before."""
    ended, kept_alive = [], []

    async def handle(message):
        await asyncio.sleep(3)
        ended.append(message)

    async def start(message, proceed):
        kept_alive.append(asyncio.ensure_future(proceed(message)))
        await asyncio.sleep(0)

    turn = asyncio.ensure_future(surrounded(handle, (make_middleware(start, "here"),))(Message("orders/new", b"")))
    await asyncio.sleep(1)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert len(ended) == 1


async def test_a_call_when_the_attempt_is_over_is_refused(rig, delivery):
    app, kept, handled = Handlers(), [], []

    @app.middleware
    async def keep(message: Message, proceed: Proceed) -> None:
        kept.append(proceed)
        if len(kept) == 1:
            raise ConnectionError
        await proceed(message)

    @app.handler("orders/>")
    async def handle(message: Message) -> None:
        handled.append(message)

    await _handled(rig, app, delivery(1))
    with pytest.raises(MiddlewareMisused, match="when its attempt is over"):
        await kept[0](handled[0])
    assert len(handled) == 1


async def test_it_is_around_a_receipt_until_that_is_settled(rig, delivery):
    app, seen = Handlers(), []
    app.middleware(_noting(seen, "app"))

    @app.handler("orders/new")
    async def by_receipt(receipt: Receipt) -> None:
        seen.append("handed over")
        asyncio.get_running_loop().call_later(1, receipt.settle)

    await _handled(rig, app, delivery(1))
    assert seen == ["app before", "handed over", "app after"]


async def test_it_gets_state_and_asks_for_it_at_the_start(rig, delivery):
    class Pool: ...

    app, given = Handlers(), []

    @app.middleware
    async def with_pool(message: Message, proceed: Proceed, pool: State[Pool]) -> None:
        given.append(pool)
        await proceed(message)

    @app.handler("orders/>")
    async def handle(message: Message) -> None: ...

    with pytest.raises(HandlerError, match=r"with_pool.*State\[.*Pool\]; expected a lifespan that yields one"):
        check_states(app, MemberResources())

    @app.lifespan
    async def life():
        yield Pool()

    resources = MemberResources()
    async with resources.entered(app.lifespans):
        check_states(app, resources)
        await _handled(rig, app, delivery(1))
    assert [type(each) for each in given] == [Pool]


async def test_handlers_without_middleware_are_called_as_they_are():
    app = Handlers()

    @app.handler("orders/>")
    async def handle(message: Message) -> None: ...

    assert app.assembled().find("orders/new").function is handle
