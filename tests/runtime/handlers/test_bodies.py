"""From a payload to what an annotation says, and one line for what does not fit, with nothing of the payload in it."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Optional
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from lbg_runtime.model.errors import BodyRefused
from lbg_runtime.runtime.handlers.bodies import NoBody, make_decoder


class Order(BaseModel):
    number: int
    items: list[str] = []


class Kinded(BaseModel):
    kind: Literal["kinded"]


@dataclass(frozen=True)
class Bill:
    number: int
    order: Order


class Note(TypedDict):
    text: str


@pytest.mark.parametrize(
    ("annotation", "payload", "body"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, "grün".encode(), "grün"),
        (dict, b'{"a": [1]}', {"a": [1]}),
        (list, b"[1, 2]", [1, 2]),
        (dict[str, object], b'{"a": 1}', {"a": 1}),
        (dict[str, int], b'{"a": 1}', {"a": 1}),
        (list[Order], b'[{"number": 1}]', [Order(number=1)]),
        (Order, b'{"number": 7, "items": ["x"]}', Order(number=7, items=["x"])),
        (Bill, b'{"number": 1, "order": {"number": 2}}', Bill(1, Order(number=2))),
        (Note, b'{"text": "hello"}', {"text": "hello"}),
        (Order | None, b"null", None),
        (int, b"12", 12),
        # Digits of an id are not lost, however many they are.
        (
            dict,
            b'{"id": 12345678901234567890123, "least": -9223372036854775809}',
            {"id": 12345678901234567890123, "least": -9223372036854775809},
        ),
        (
            list,
            b'["12345678901234567890123", 18446744073709551616, 0.1234567890123456789012]',
            ["12345678901234567890123", 18446744073709551616, 0.1234567890123456789012],
        ),
        (dict[str, int], b'{"id": 12345678901234567890123}', {"id": 12345678901234567890123}),
    ],
)
def test_a_body_is_read_as_its_annotation_says(annotation, payload, body):
    # By its text too: a float may be equal to the number that it is not.
    assert repr(make_decoder(annotation)(payload)) == repr(body)


def test_a_body_that_is_nested_too_deep_for_its_long_numbers_is_refused():
    deep, too_deep = (b"[" * depth + b"12345678901234567890123" + b"]" * depth for depth in (500, 501))
    assert repr(make_decoder(list)(deep)).encode() == deep
    with pytest.raises(BodyRefused, match="nested more than 500 levels deep"):
        make_decoder(list)(too_deep)


@pytest.mark.parametrize(
    ("annotation", "payload", "line"),
    [
        (str, b"secret \xff", "the body is no str: no UTF-8 at byte 7"),
        (dict, b"secret", "the body is no dict: no JSON at character 0"),
        (dict, b'["secret"]', "the body is no dict: JSON of another type, list"),
        (list[object], b'{"secret": 1}', "the body is no list: JSON of another type, dict"),
        (
            Order,
            b'{"number": "secret", "items": ["a", 5]}',
            "the body is no Order: number: Input should be a valid integer, unable to parse string as an integer, "
            "and 1 more",
        ),
        (Bill, b'{"number": 1, "order": {}}', "the body is no Bill: order.number: Field required"),
        (Order, b"secret", "the body is no Order: Invalid JSON: expected value at line 1 column 1"),
        (Note, b"", "the body is no Note: Invalid JSON: EOF while parsing a value at line 1 column 0"),
    ],
)
def test_what_does_not_fit_is_one_line_without_the_payload(annotation, payload, line):
    with pytest.raises(BodyRefused) as caught:
        make_decoder(annotation)(payload)
    assert str(caught.value) == line
    assert "secret" not in line


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int = Field(default=0, alias="no")


class Apple(BaseModel):
    kind: Literal["apple"]
    weight: int = 0


class Pear(BaseModel):
    kind: Literal["pear"]


def _picky(value: str) -> str:
    raise ValueError(f"{value} is no fruit")


def _pickier(value: str) -> str:
    raise PydanticCustomError("no_fruit", "{value} is none", {"value": value})


@pytest.mark.parametrize(
    ("annotation", "payload", "found"),
    [
        (Strict, b'{"secret": 1}', "*: Extra inputs are not permitted"),
        (Strict, b'{"no": "secret"}', "no: Input should be a valid integer, unable to parse string as an integer"),
        (
            dict[str, list[int]],
            b'{"secret": [1, "x"]}',
            "*.1: Input should be a valid integer, unable to parse string as an integer",
        ),
        (
            dict[int, int],
            b'{"4111": "secret"}',
            "*: Input should be a valid integer, unable to parse string as an integer",
        ),
        (
            dict[int, int],
            b'{"secret": 1}',
            "*.*: Input should be a valid integer, unable to parse string as an integer",
        ),
        (
            Annotated[Apple | Pear, Field(discriminator="kind")],
            b'{"kind": "secret"}',
            "the tag is none of 'apple', 'pear'",
        ),
        (
            Annotated[Apple | Pear, Field(discriminator="kind")],
            b'{"kind": "apple", "weight": "secret"}',
            "apple.weight: Input should be a valid integer, unable to parse string as an integer",
        ),
        (Apple | Pear, b'{"kind": "secret"}', "Apple.kind: Input should be 'apple', and 1 more"),
        (list[UUID], b'["secret"]', "0: not accepted (uuid_parsing)"),
        (Annotated[str, AfterValidator(_picky)], b'"secret"', "not accepted (value_error)"),
        (Annotated[str, AfterValidator(_pickier)], b'"secret"', "not accepted (no_fruit)"),
    ],
)
def test_neither_names_nor_tags_nor_what_a_validator_says_is_told(annotation, payload, found):
    decode = make_decoder(annotation)
    for _ in range(2):
        with pytest.raises(BodyRefused) as caught:
            decode(payload)
        assert caught.value.found == found
        assert not {"secret", "4111"} & set(re.findall(r"\w+", str(caught.value)))


class Pool:
    """No data at all."""


@pytest.mark.parametrize("annotation", [Pool, list[Pool], object()])
def test_there_is_no_decoder_for_what_pydantic_cannot_read(annotation):
    with pytest.raises(NoBody, match=r"^$"):
        make_decoder(annotation)


def test_what_pydantic_says_of_a_type_that_makes_no_sense_is_passed_on():
    with pytest.raises(NoBody, match=r"^Model 'Order' needs a discriminator field for key 'kind'"):
        make_decoder(Annotated[Order | Kinded, Field(discriminator="kind")])


@pytest.mark.parametrize("annotation", [bytes | None, Optional[bytes], bytes | str, Order | bytes])  # noqa: UP045
def test_a_payload_as_it_is_is_no_choice_among_others(annotation):
    """It was read as JSON, in which there are no bytes: what was meant to be taken as it is was refused."""
    with pytest.raises(NoBody, match=r"^`bytes` alone, for the payload as it is"):
        make_decoder(annotation)
