"""The AsyncAPI document of handlers: complete, with references that lead somewhere, and true to the annotations.

Its shape was checked with the JSON schema that the makers of the specification publish; what that requires of the parts
that we write is required here.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.asyncapi import asyncapi_document
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.registry import Handlers


class Item(BaseModel):
    name: str
    count: Annotated[int, Field(ge=1)]


class Order(BaseModel):
    """An order of a shop."""

    number: int
    items: list[Item]
    at: tuple[float, float] | None = None
    discriminator: str = ""


@dataclass
class Cancelled:
    kind: Literal["cancelled"]
    number: int


@dataclass
class Paid:
    kind: Literal["paid"]
    item: Item


Event = Annotated[Cancelled | Paid, Field(discriminator="kind")]

# -- what the specification requires of the parts that we write


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Reference(Part):
    ref: Annotated[str, Field(alias="$ref", pattern=r"^#/")]


class Info(Part):
    title: str
    version: str
    description: str


class Server(Part):
    host: str
    protocol: str
    description: str
    bindings: dict[str, dict[str, str]]


class Described(Part):
    description: str


class SpecMessage(Part):
    name: str
    contentType: str  # noqa: N815 - as it is called
    headers: dict[str, object]
    payload: dict[str, object] | None = None


class Channel(Part):
    address: str
    description: str
    messages: dict[str, SpecMessage]
    parameters: dict[str, Described]


class Operation(Part):
    action: Literal["send", "receive"]
    channel: Reference
    messages: list[Reference]
    summary: str = ""
    description: str = ""
    bindings: dict[str, dict[str, object]]


Name = Annotated[str, Field(pattern=r"^[\w\d.\-_]+$")]


class Components(Part):
    schemas: dict[Name, dict[str, object]]


class Document(Part):
    asyncapi: Literal["3.0.0"]
    info: Info
    defaultContentType: str  # noqa: N815 - as it is called
    servers: dict[Name, Server]
    channels: dict[Name, Channel]
    operations: dict[Name, Operation]
    components: Components | None = None


def references(node):
    """Every `$ref` in it."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for each in node:
            yield from references(each)


def resolved(document, reference):
    node = document
    for step in reference.removeprefix("#/").split("/"):
        node = node[step]
    return node


def checked(document):
    """The document, once it has the shape that is required."""
    Document.model_validate(document)
    for reference in references(document):
        assert isinstance(resolved(document, reference), dict)
    for channel in document["channels"].values():
        assert set(re.findall(r"{([\w]+)}", channel["address"])) == set(channel["parameters"])
    return document


def payload_of(document, name):
    (message,) = document["channels"][name]["messages"].values()
    return message.get("payload")


@pytest.fixture
def made(settings):
    """Makes the document of handlers."""

    def make(handlers):
        return checked(asyncapi_document(handlers, settings(), version="2.1"))

    return make


def test_every_handler_is_an_operation_on_a_channel_of_its_topics(made):
    handlers = Handlers()

    @handlers.handler("orders/new", "orders/*/eu-*/>")
    async def on_order(order: Order) -> None:
        """Takes an order.

        And that is all.
        """

    document = made(handlers)
    assert document["info"]["title"] == "orders"
    assert document["info"]["version"] == "2.1"
    assert {name: one["address"] for name, one in document["channels"].items()} == {
        "on_order": "h/{shard}/orders/new",
        "on_order_2": "h/{shard}/orders/{level1}/eu-{level2}/{rest}",
    }
    operation = document["operations"]["on_order"]
    assert (operation["action"], operation["summary"], operation["description"]) == (
        "receive", "Takes an order.", "And that is all.",
    )  # fmt: skip
    queues = operation["bindings"]["solace"]["destinations"]
    assert [each["queue"]["name"] for each in queues] == [f"orders/{number}" for number in range(4)]
    assert queues[1]["queue"]["topicSubscriptions"] == ["h/1/>", "h/5/>"]
    assert {each["queue"]["accessType"] for each in queues} == {"exclusive"}


def test_a_function_with_the_name_that_another_one_gets_for_its_second_topic_has_a_channel_too(made):
    handlers = Handlers()

    @handlers.handler("one", "two")
    async def take(message: Message) -> None: ...

    @handlers.handler("three")
    async def take_2(message: Message) -> None: ...

    channels = made(handlers)["channels"]
    assert {name: one["address"].rpartition("/")[2] for name, one in channels.items()} == {
        "take": "one", "take_2": "two", "take_2_2": "three",
    }  # fmt: skip


def test_the_queue_of_a_partitioned_group_is_no_exclusive_one(settings):
    handlers = Handlers()

    @handlers.handler("new")
    async def new(message: Message) -> None: ...

    partitioned = settings(group={"backend": "partitioned"}, dispatch={"missing_key": "error"})
    document = checked(asyncapi_document(handlers, partitioned, version="1"))
    (queue,) = document["operations"]["new"]["bindings"]["solace"]["destinations"]
    assert (queue["queue"]["name"], queue["queue"]["accessType"]) == ("orders/0", "nonexclusive")


def test_bodies_are_told_as_their_annotations_say_and_shared_types_once(made):
    handlers = Handlers()

    @handlers.handler("new")
    async def new(order: Order) -> None: ...

    @handlers.batch_handler("events", max_count=10, max_wait="10ms")
    async def events(batch: Batch[Event]) -> None: ...

    @handlers.handler("lists")
    def lists(orders: list[Order]) -> None: ...

    document = made(handlers)
    schemas = document["components"]["schemas"]
    assert set(schemas) == {"Order", "Item", "Cancelled", "Paid"}
    assert payload_of(document, "new") == {"$ref": "#/components/schemas/Order"}
    assert payload_of(document, "lists")["items"] == {"$ref": "#/components/schemas/Order"}
    assert schemas["Item"]["properties"]["count"]["minimum"] == 1
    assert schemas["Order"]["description"] == "An order of a shop."
    # In the dialect of the specification, and not in the newer one that pydantic writes.
    assert payload_of(document, "events")["discriminator"] == "kind"
    position = schemas["Order"]["properties"]["at"]["anyOf"][0]
    assert (len(position["items"]), position["additionalItems"]) == (2, False)
    assert schemas["Order"]["properties"]["discriminator"]["type"] == "string"


def test_two_types_of_one_name_stay_two(made):
    def other():
        class Order(BaseModel):
            other: bool

        return Order

    handlers, twin = Handlers(), other()

    @handlers.handler("a")
    async def first(order: Order) -> None: ...

    async def second(order) -> None: ...

    second.__annotations__["order"] = twin
    handlers.handler("b")(second)
    document = made(handlers)
    one, two = (resolved(document, payload_of(document, name)["$ref"]) for name in ("first", "second"))
    assert set(one["properties"]) != set(two["properties"])


@pytest.mark.parametrize(
    ("annotation", "content_type", "payload"),
    [
        (bytes, "application/octet-stream", {"type": "string", "format": "binary"}),
        (str, "text/plain", {"type": "string"}),
        (dict, "application/json", {"type": "object"}),
        (Message, "application/octet-stream", None),
    ],
)
def test_what_says_no_more_than_its_kind(made, annotation, content_type, payload):
    async def take(body) -> None: ...

    take.__annotations__["body"] = annotation
    handlers = Handlers()
    handlers.handler("things/>")(take)
    document = made(handlers)
    (message,) = document["channels"]["take"]["messages"].values()
    assert (message["contentType"], message.get("payload")) == (content_type, payload)
    assert "components" not in document


def test_one_that_publishes_says_so_and_the_key_stands_among_the_headers(settings):
    handlers = Handlers()

    @handlers.handler("orders")
    async def split(message: Message):
        yield message

    document = checked(asyncapi_document(handlers, settings(group={"key": "property:customer"}), version="1"))
    assert "Publishes messages" in document["operations"]["split"]["description"]
    (message,) = document["channels"]["split"]["messages"].values()
    assert "customer" in message["headers"]["properties"]
