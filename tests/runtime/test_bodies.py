"""From a payload to what an annotation says, and one line for what does not fit, with nothing of the payload in it."""

from dataclasses import dataclass

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from lbg_runtime.model.errors import BodyRefused
from lbg_runtime.runtime.bodies import NoBody, make_decoder


class Order(BaseModel):
    number: int
    items: list[str] = []


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
    ],
)
def test_a_body_is_read_as_its_annotation_says(annotation, payload, body):
    assert make_decoder(annotation)(payload) == body


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


class Pool:
    """No data at all."""


@pytest.mark.parametrize("annotation", [Pool, list[Pool], object()])
def test_there_is_no_decoder_for_what_pydantic_cannot_read(annotation):
    with pytest.raises(NoBody, match=r"^$"):
        make_decoder(annotation)
