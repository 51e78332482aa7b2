"""A name that a `type` statement has made is read as what it stands for, wherever an annotation may have it."""

import sys
from dataclasses import dataclass

import pytest
from typing_extensions import TypeAliasType

from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.runtime.handlers import aliases
from lbg_runtime.runtime.handlers.aliases import stands_for
from lbg_runtime.runtime.handlers.asyncapi import asyncapi_document
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.parameters import Parameters, State, read_parameters
from lbg_runtime.runtime.handlers.receipts import Receipt
from lbg_runtime.runtime.handlers.registry import Handlers


@dataclass
class Order:
    number: int


class Pool: ...


def _named(annotation: object) -> object:
    if sys.version_info < (3, 12):
        return TypeAliasType("Name", annotation)
    names = {"annotation": annotation}
    exec("type Name = annotation", names)  # noqa: S102 - Python 3.11 could not read it
    return names["Name"]


def _function(annotation: object, returned: object = None):
    async def handle(it): ...

    handle.__annotations__ = {"it": annotation, "return": returned}
    return handle


def _read(annotation: object) -> Parameters:
    return read_parameters(_function(annotation), "here")


@pytest.mark.parametrize(
    ("annotation", "payload", "value"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, b"apple", "apple"),
        (dict[str, object], b'{"number": 1}', {"number": 1}),
        (list[Order], b'[{"number": 1}]', [Order(1)]),
        (list[_named(Order)], b'[{"number": 1}]', [Order(1)]),
        (_named(Order), b'{"number": 1}', Order(1)),
    ],
)
def test_a_body_of_such_a_name_is_read_as_that(annotation, payload, value):
    assert _read(_named(annotation)).fill(Message("orders/new", payload)) == ([value], {})


def test_the_types_of_the_runtime_have_such_names():
    message = Message("orders/new", b"")
    assert _read(_named(Message)).is_plain
    assert _read(_named(Message)).fill(message) == ([message], {})
    assert _read(_named(Delivery)).body is None
    assert _read(_named(Receipt)).has_receipt
    assert _read(_named(State[Pool])).states == _read(State[_named(Pool)]).states == (Pool,)
    batches = [_read(_named(Batch[Order])), _read(Batch[_named(Order)])]
    assert all(each.has_batch for each in batches)
    assert [stands_for(each.body) for each in batches] == [Order, Order]


def test_the_description_of_a_raw_body_says_so_by_such_a_name():
    handlers = Handlers()
    handlers.handler("raw/>")(_function(_named(bytes)))
    settings = parse_settings(
        {"group": {"name": "test", "hash_prefix": "test-hash", "hash_count": 16, "queue_count": 4}}, "here", {}
    )
    assert "application/octet-stream" in str(asyncapi_document(handlers, settings, version="1"))


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (list[_named(Message)], "a type that JSON can be read as"),
        (_named(Message) | None, "a type that JSON can be read as"),
        (_named(dict[str, _named(Delivery)]), "a type that JSON can be read as"),
        (Batch[_named(Message)], "the items of either have message and delivery"),
        (_named(bytes) | int, "`bytes` alone, for the payload as it is"),
    ],
)
def test_what_is_refused_is_refused_by_such_a_name(annotation, expected):
    with pytest.raises(HandlerError, match=expected):
        _read(annotation)


def test_a_message_that_nobody_publishes_is_found_by_such_a_name():
    with pytest.raises(HandlerError, match="returns Name, and nothing is published"):
        Handlers().handler("orders/>")(_function(Message, _named(list[Message])))


Tree = TypeAliasType("Tree", "dict[str, Tree] | list[Tree] | int")


def test_a_name_that_is_part_of_what_it_stands_for_is_read_by_pydantic():
    handlers = Handlers()
    handlers.handler("trees/>")(_function(Tree, Tree))
    handlers.check_bodies()
    assert _read(Tree).fill(Message("trees/new", b'{"a": [1, {"b": 2}]}')) == ([{"a": [1, {"b": 2}]}], {})


def test_a_name_whose_definition_is_not_there_yet_is_left_to_pydantic(monkeypatch):
    class Later:
        """As a `type` statement makes it, which looks up names when it is asked."""

        @property
        def __value__(self):
            raise NameError("name 'Order' is not defined")

    monkeypatch.setattr(aliases, "_ALIASES", (Later,))
    later = Later()
    assert stands_for(later) is later
