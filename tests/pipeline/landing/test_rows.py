"""From messages to rows: ids that are the same in every copy, and nothing that keeps a flush from being written."""

from collections.abc import Sequence
from typing import Any

import pytest

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Message,
    PropertyValue,
)
from lbg_runtime.pipeline.landing import rows as rows_module
from lbg_runtime.pipeline.landing.rows import Gathered, to_batch, to_batches
from lbg_runtime.pipeline.landing.schema import LARGEST_TIME, may_have_copies, time_of_id

STAMPS: dict[str, PropertyValue] = {PARTITION_KEY_PROPERTY: "k", PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: 7}


def gathered(
    *all_properties: dict[str, PropertyValue],
    delivery_id: int = 1,
    sent_at_ms: int | None = 1_000,
    key: str | None = "k",
    payloads: Sequence[bytes] = (b"x",),
) -> Gathered:
    rows = Gathered()
    for properties in all_properties or (STAMPS,):
        for payload in payloads:
            message = Message("hp/1/orders", payload, properties, "message-1", sent_at_ms)
            rows.add(message, 1, key, DeliveryId(delivery_id), redelivered=False)
    return rows


def flushed(rows: Gathered) -> list[dict[str, Any]]:
    return to_batch(0, "m-1.5", rows, 1).to_pylist()


def id_of(
    properties: dict[str, PropertyValue] = STAMPS, *, delivery_id: int = 1, sent_at_ms: int | None = 1_000
) -> str:
    [made] = flushed(gathered(properties, delivery_id=delivery_id, sent_at_ms=sent_at_ms))
    return made["broker_id"]


def test_copies_of_a_message_have_one_id() -> None:
    assert id_of(delivery_id=1) == id_of(delivery_id=9) == "00000000003e8.7/p/k"
    assert time_of_id(id_of()) == 1_000
    assert may_have_copies(id_of())


def test_what_its_publisher_publishes_again_has_an_id_that_differs_before_the_dot() -> None:
    first, again = id_of(sent_at_ms=1_000), id_of(sent_at_ms=2_000)
    assert first != again
    assert first.partition(".")[2] == again.partition(".")[2]


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {PARTITION_KEY_PROPERTY: "k"},
        {**STAMPS, KEY_SEQUENCE_PROPERTY: "7"},
        {**STAMPS, KEY_SEQUENCE_PROPERTY: True},
        {**STAMPS, PUBLISHER_PROPERTY: "a/b"},
        {**STAMPS, PUBLISHER_PROPERTY: 5},
        {**STAMPS, PARTITION_KEY_PROPERTY: 5},
    ],
)
def test_deliveries_of_what_is_not_stamped_have_ids_of_their_own(properties: dict[str, PropertyValue]) -> None:
    first, second = id_of(properties, delivery_id=1), id_of(properties, delivery_id=2)
    assert first == "00000000003e8.!m-1.5/1" != second
    assert not may_have_copies(first)


@pytest.mark.parametrize(
    "properties",
    [
        {PUBLISHER_PROPERTY: "p"},
        {**STAMPS, KEY_SEQUENCE_PROPERTY: "7"},
        {**STAMPS, PUBLISHER_PROPERTY: "a/b"},
        {**STAMPS, PARTITION_KEY_PROPERTY: 5},
    ],
)
def test_what_is_stamped_in_part_keeps_its_stamps_and_its_message_id_as_headers(
    properties: dict[str, PropertyValue],
) -> None:
    [made] = flushed(gathered(properties))
    expected = {name: str(value) for name, value in properties.items()}
    assert dict(made["headers"]) == {**expected, "lbg_message_id": "message-1"}


def test_a_user_property_with_the_name_of_the_message_id_lands_in_its_place() -> None:
    [made] = flushed(gathered({"lbg_message_id": "theirs"}))
    assert made["headers"] == [("lbg_message_id", "theirs")]


@pytest.mark.parametrize("sent_at_ms", [None, -1, LARGEST_TIME + 1, (1 << 52) - 1, 1 << 53, 1 << 63])
def test_a_time_that_cannot_be_is_none_and_makes_no_id_of_stamps(sent_at_ms: int | None) -> None:
    rows = Gathered()
    for number in range(2):
        message = Message("hp/1/orders", b"x", STAMPS, None, sent_at_ms)
        rows.add(message, 1, "k", DeliveryId(number), redelivered=False)
    first, second = flushed(rows)
    assert (first["broker_id"], second["broker_id"]) == ("0000000000000.!m-1.5/0", "0000000000000.!m-1.5/1")
    assert first["t_enqueue"] is None
    assert dict(first["headers"]) == {PARTITION_KEY_PROPERTY: "k", PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: "7"}


def test_the_last_time_that_can_be_is_told() -> None:
    [made] = flushed(gathered(sent_at_ms=LARGEST_TIME))
    assert made["t_enqueue"].isoformat() == "9999-12-31T23:59:59.999000+00:00"
    assert time_of_id(made["broker_id"]) == LARGEST_TIME


def test_each_row_has_the_time_of_its_message() -> None:
    rows = Gathered()
    for sent_at_ms in (5, 5, None, 5, 255):
        rows.add(Message("hp/1/orders", b"x", STAMPS, None, sent_at_ms), 1, "k", DeliveryId(1), redelivered=False)
    made = flushed(rows)
    assert [each["broker_id"][:14] for each in made] == [f"{time:013x}." for time in (5, 5, 0, 5, 255)]
    times = [each["t_enqueue"] and each["t_enqueue"].microsecond for each in made]
    assert times == [5_000, 5_000, None, 5_000, 255_000]


@pytest.mark.parametrize("number", [1 << 63, 1 << 70, -(1 << 63) - 1])
def test_a_number_that_its_column_cannot_take_keeps_nothing_from_landing(number: int) -> None:
    [first, second, third] = flushed(gathered({**STAMPS, KEY_SEQUENCE_PROPERTY: number}, STAMPS, {}))
    assert (first["seq"], second["seq"], third["seq"]) == (None, 7, None)
    assert first["broker_id"] == f"00000000003e8.{number}/p/k"


def test_what_no_utf8_can_carry_is_written_out() -> None:
    stamps = {**STAMPS, PARTITION_KEY_PROPERTY: "\ud800"}
    [first, second] = flushed(gathered(stamps, {**stamps, "h": "\udfff"}, key="\ud800"))
    assert first["key"] == "\\ud800"
    assert dict(second["headers"]) == {"h": "\\udfff"}


def test_a_number_within_another_key_than_that_of_the_row_identifies_it_and_is_not_its_number() -> None:
    [made] = flushed(gathered(key="of its lane"))
    assert (made["broker_id"], made["key"], made["seq"]) == ("00000000003e8.7/p/k", "of its lane", None)
    assert dict(made["headers"]) == {name: str(value) for name, value in STAMPS.items()} | {
        "lbg_message_id": "message-1"
    }


def test_a_number_is_that_of_a_row_for_which_no_key_was_found() -> None:
    [made] = flushed(gathered(key=None))
    assert (made["broker_id"], made["key"], made["seq"]) == ("00000000003e8.7/p/k", None, 7)


def test_headers_of_ours_are_what_the_user_gave() -> None:
    [plain, more] = flushed(gathered(STAMPS, {**STAMPS, "colour": "red"}))
    assert plain["headers"] is None
    assert more["headers"] == [("colour", "red")]


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (b"\x01\xff", "01ff"), (None, ""), (5, "5"), (0.5, "0.5"), ("", "")],
)
def test_a_user_property_that_is_no_text_is_written_as_text(value: PropertyValue, text: str) -> None:
    [made] = flushed(gathered({**STAMPS, "h": value}))
    assert made["headers"] == [("h", text)]


def test_rows_of_all_kinds_stand_in_one_flush() -> None:
    rows = Gathered()
    for number, (key, properties) in enumerate(
        [("of its lane", STAMPS), ("k", {}), (None, STAMPS), ("\ud800", {"h": "\udfff"}), ("k", STAMPS)]
    ):
        message = Message("hp/1/orders", b"%d" % number, properties, None, 0)
        rows.add(message, 1, key, DeliveryId(number), redelivered=number == 1)
    made = flushed(rows)
    assert [each["key"] for each in made] == ["of its lane", "k", None, "\\ud800", "k"]
    assert [each["payload"] for each in made] == [b"0", b"1", b"2", b"3", b"4"]
    assert [each["seq"] for each in made] == [None, None, 7, None, 7]
    assert [each["redelivered"] for each in made] == [False, True, False, False, False]
    ours, other = "0000000000000.7/p/k", "0000000000000.!m-1.5/"
    assert [each["broker_id"] for each in made] == [ours, f"{other}1", ours, f"{other}3", ours]


@pytest.mark.parametrize(
    ("sizes", "flushes"),
    [
        ([4, 4, 4, 25, 1, 9, 1], [[4, 4], [4], [25], [1, 9], [1]]),
        ([25, 4, 6, 0, 1], [[25], [4, 6, 0], [1]]),
        ([4, 6], [[4, 6]]),
        ([25], [[25]]),
    ],
)
def test_a_flush_of_large_messages_is_several(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], flushes: list[list[int]]
) -> None:
    monkeypatch.setattr(rows_module, "FLUSH_BYTES", 10)
    batches = list(to_batches(3, "m-1.5", gathered(payloads=[bytes(size) for size in sizes]), 1))
    assert [[len(each) for each in batch.column("payload").to_pylist()] for batch in batches] == flushes
    assert {row["broker_id"] for batch in batches for row in batch.to_pylist()} == {"00000000003e8.7/p/k"}
    assert {row["queue"] for batch in batches for row in batch.to_pylist()} == {3}
