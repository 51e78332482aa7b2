"""Handlers are given what their annotations ask for, and refused with one line for what cannot be given."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import pytest
import structlog
from pydantic import BaseModel
from structlog.testing import capture_logs
from structlog.typing import FilteringBoundLogger
from typing_extensions import TypedDict

from lbg_runtime.guard.memory import MemoryGuard
from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.message import Delivery, Headers, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.middleware import Proceed
from lbg_runtime.runtime.handlers.parameters import State
from lbg_runtime.runtime.handlers.receipts import Receipt
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from tests.runtime.error_queue import TakingErrorQueue


class Order(BaseModel):
    number: int


@dataclass
class Shop:
    name: str


class Pool:
    pass


def _registered(function):
    handlers = Handlers()
    handlers.handler("orders/>")(function)
    return handlers.find("orders/1")


async def _dispatched(rig, message_delivery, function, lifespans=(), **sections):
    made = rig(function, **sections)
    async with MemberResources().entered(lifespans), made.running():
        await made.handle(message_delivery)
    return made


async def test_a_handler_is_given_body_message_delivery_logger_and_state(rig, delivery):
    lifespans, given = Handlers(), []

    @lifespans.lifespan
    async def life():
        yield Shop("corner")

    async def handle(
        body: bytes, message: Message, it: Delivery, log: FilteringBoundLogger, *, shop: State[Shop], dry: bool = True
    ) -> None:
        given.extend((body, message.key, it.delivery_id, it.redelivered, shop, dry))
        log.info("given")

    with capture_logs() as logs:
        made = await _dispatched(rig, delivery(7, "k"), handle, lifespans.lifespans)
    assert given == [b"7", "k", 7, False, Shop("corner"), True]
    assert made.outcomes() == {7: Outcome.ACCEPTED}
    assert [(log["key"], log["queue"]) for log in logs if log["event"] == "given"] == [("k", "orders/0")]


async def test_the_delivery_has_the_message_as_the_handler_gets_it_and_is_parked_as_it_came(rig, delivery):
    """With the foreign token, a guard would take the first message of a key for one that it knows."""
    given = []

    async def handle(it: Delivery, message: Message) -> None:
        given.append((it, message))

    stamps = {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": 7, "customer": "c"}
    plain = delivery(7)
    came = replace(plain, message=replace(plain.message, properties=stamps))
    made = await _dispatched(rig, came, handle, group={"key": "property:customer"})
    ((it, message),) = given
    assert it.message is message
    assert (it.message.key, it.message.fencing_token, it.message.is_first_of_key) == ("c", None, True)
    assert replace(it, message=came.message) == came
    assert made.ends[0].delivery is came


async def test_a_body_alone_is_decoded(rig, delivery):
    given = []

    async def handle(number: int) -> None:
        given.append(number)

    await _dispatched(rig, delivery(7), handle)
    assert given == [7]


async def test_a_body_that_does_not_fit_fails_terminally_before_the_handler(rig, delivery):
    given, queue = [], TakingErrorQueue()

    async def handle(order: Order) -> None:
        given.append(order)

    made = await _dispatched(
        rig, delivery(7), handle, error_queue=queue, failure={"attempts": 9, "then": "error_queue"}
    )
    assert given == []
    assert made.ends[0].attempts == 1
    assert queue.errors[0].startswith("BodyRefused: the body is no Order: Input should be an object")


@pytest.mark.parametrize(
    "function",
    [
        "async def handle(message): pass",
        "async def handle(message: Message): pass",
        "async def handle(message: 'Message'): pass",
        "async def handle(message: 'lbg_runtime.Message'): pass",
        "async def handle(message: object, dry_run: bool = False): pass",
    ],
)
def test_a_handler_of_the_message_alone_is_called_as_it_is(function):
    names = {"Message": Message} if "'" not in function else {}
    exec(function, names)  # noqa: S102 - a text, so that the name is not imported here
    assert _registered(names["handle"]).function is names["handle"]


def test_methods_callable_objects_and_partials_are_handlers():
    class Desk:
        async def on_order(self, order: Order) -> None: ...

        async def __call__(self, order: Order) -> None: ...

    async def handle(order: Order, shop: str) -> None: ...

    for function in (Desk().on_order, Desk(), partial(handle, shop="corner")):
        assert _registered(function).parameters.body is Order


def test_annotations_and_logger_of_a_partial_are_those_of_its_module(monkeypatch):
    text = """
from __future__ import annotations
async def handle(table, order: Order, log: Log) -> None: ...
"""
    names = {"__name__": "shop", "Order": Order, "Log": structlog.stdlib.BoundLogger}
    exec(text, names)  # noqa: S102 - a text, as its annotations are texts there
    loggers = []
    monkeypatch.setattr(structlog, "get_logger", loggers.append)
    assert _registered(partial(names["handle"], "t")).parameters.body is Order
    assert loggers == ["shop"]


async def _logger_of_another_kind(order: Order, log: structlog.stdlib.BoundLogger) -> None: ...


def test_any_logger_of_structlog_will_do():
    assert len(_registered(_logger_of_another_kind).parameters.positional) == 2


async def _pool(order: Order, pool: Pool) -> None: ...


async def _two_bodies(order: Order, shop: Shop) -> None: ...


async def _unknown(order: "NoSuchName") -> None: ...  # noqa: F821


async def _half(message, order: Order, what) -> None: ...


async def _message_and_what(message: Message, what) -> None: ...


class _Desk:
    async def on_message(self, message: Message) -> None: ...

    async def on_order(self, order: Order) -> None: ...

    async def on_anything(self) -> None: ...

    async def on_bare(self, message): ...


class _Priced(Protocol):
    def price(self) -> int: ...


class _Note(TypedDict):
    text: str


class _OrderMessage(Message): ...


async def _state_of_a_protocol(message: Message, shop: State[_Priced]) -> None: ...


async def _state_of_a_typed_dictionary(message: Message, note: State[_Note]) -> None: ...


async def _messages(messages: list[Message]) -> None: ...


async def _perhaps_a_delivery(message: Message, it: Delivery | None) -> None: ...


async def _perhaps_a_state(message: Message, pool: State[Order] | None) -> None: ...


async def _receipts(receipts: dict[str, Receipt]) -> None: ...


async def _headers(headers: Headers) -> None: ...


async def _order_message(message: _OrderMessage) -> None: ...


async def _proceed(message: Message, proceed: Proceed) -> None: ...


async def _callback(message: Message, call: "Callable") -> None: ...


async def _batch_of_messages(messages: Batch[Message]) -> None: ...


async def _batch_of_deliveries(deliveries: Batch[Delivery | None]) -> None: ...


_ALONE = "expected a type that JSON can be read as; Message, Delivery, Receipt, Batch and State[...] stand alone"
_ITEMS = "expected Batch, or Batch[Order]: the items of either have message and delivery, and can be settled"


async def _state_of_two_classes(message: Message, shop: State[Shop | None]) -> None: ...


async def _state_of_no_class(message: Message, shop: State["list[int] | None"]) -> None: ...


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (_pool, "parameter pool: Pool; expected Message, Delivery, Receipt, bytes, str, what pydantic can read"),
        (_two_bodies, "two bodies, Order and Shop; expected one, and State[...] around what is none"),
        (
            _unknown,
            "annotation 'NoSuchName': NameError: name 'NoSuchName' is not defined; expected a name that is impo",
        ),
        (_half, "parameters (message, order: "),
        (_message_and_what, "what) -> None; expected exactly one parameter, the message, or an annotation for each"),
        (_Desk.on_message, "expected a bound method: register that of an object, not its class's"),
        (_Desk.on_order, "expected a bound method"),
        (_Desk.on_anything, "parameters (self) -> None; expected a bound method"),
        (_Desk.on_bare, "parameters (self, message); expected a bound method"),
        (_state_of_no_class, "parameter shop: State[list[int] | None]; expected a class"),
        (_state_of_two_classes, "parameter shop: State[tests.runtime.handlers.test_parameters.Shop | None]; expected"),
        (_state_of_a_protocol, "parameter shop: State[_Priced]; expected a class; a protocol only with @runtime_check"),
        (_state_of_a_typed_dictionary, "parameter note: State[_Note]; expected a class"),
        (_messages, f"parameter messages: list[lbg_runtime.model.message.Message]; {_ALONE}"),
        (_perhaps_a_delivery, f"parameter it: lbg_runtime.model.message.Delivery | None; {_ALONE}"),
        (_perhaps_a_state, _ALONE),
        (_receipts, _ALONE),
        (_headers, f"parameter headers: Headers; {_ALONE}"),
        (_order_message, f"parameter message: _OrderMessage; {_ALONE}"),
        (_proceed, _ALONE),
        (_callback, _ALONE),
        (_batch_of_messages, f"parameter messages: Batch[Message]; {_ITEMS}"),
        (_batch_of_deliveries, f"parameter deliveries: Batch[lbg_runtime.model.message.Delivery | None]; {_ITEMS}"),
    ],
)
def test_what_cannot_be_given_is_one_line_with_the_place(function, line):
    with pytest.raises(HandlerError) as caught:
        _registered(function)
    assert "test_parameters.py:" in caught.value.where
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@runtime_checkable
class _Named(Protocol):
    name: str


async def test_state_may_be_asked_for_by_a_protocol_that_can_be_checked(rig, delivery):
    seen = []

    async def handle(message: Message, shop: State[_Named]) -> None:
        seen.append(shop.name)

    async def shop():
        yield Shop("corner")

    handlers = Handlers()
    handlers.lifespan(shop)
    await _dispatched(rig, delivery(1), handle, handlers.lifespans)
    assert seen == ["corner"]


async def test_state_of_a_generic_class_may_be_asked_for_with_what_is_in_its_brackets(rig, delivery):
    seen = []

    async def handle(message: Message, totals: State[MemoryGuard[int]], prices: State[dict[str, int]]) -> None:
        seen.append((type(totals), prices))

    async def totals():
        yield MemoryGuard()

    async def prices():
        yield {"apple": 3}

    handlers = Handlers()
    handlers.lifespan(totals)
    handlers.lifespan(prices)
    await _dispatched(rig, delivery(1), handle, handlers.lifespans)
    assert seen == [(MemoryGuard, {"apple": 3})]


def test_a_class_is_called_one_whatever_its_objects_are_made_of():
    with pytest.raises(HandlerError, match=r"_Desk: a class; expected a function, or an object of the class$"):
        _registered(_Desk)
