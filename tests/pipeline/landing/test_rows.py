"""From messages to rows: ids that are the same in every copy, and nothing that keeps a flush from being written."""

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
from lbg_runtime.pipeline.landing.rows import LandingRow, row_of, to_batch, to_batches
from lbg_runtime.pipeline.landing.schema import may_have_copies, time_of_id

STAMPS: dict[str, PropertyValue] = {PARTITION_KEY_PROPERTY: "k", PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: 7}


def row(
    properties: dict[str, PropertyValue] = STAMPS,
    *,
    delivery_id: int = 1,
    sent_at_ms: int | None = 1_000,
    key: str | None = "k",
    payload: bytes = b"x",
) -> LandingRow:
    message = Message("hp/1/orders", payload, properties, "message-1", sent_at_ms)
    return row_of(message, 1, key, lane="m-1.5", delivery_id=DeliveryId(delivery_id), redelivered=False)


def id_of(made: LandingRow) -> str:
    return made[4]


def test_copies_of_a_message_have_one_id() -> None:
    assert id_of(row(delivery_id=1)) == id_of(row(delivery_id=9)) == "00000000003e8.7/p/k"
    assert time_of_id(id_of(row())) == 1_000
    assert may_have_copies(id_of(row()))


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {PARTITION_KEY_PROPERTY: "k"},
        {**STAMPS, KEY_SEQUENCE_PROPERTY: "7"},
        {**STAMPS, KEY_SEQUENCE_PROPERTY: True},
        {**STAMPS, PUBLISHER_PROPERTY: "a/b"},
        {**STAMPS, PARTITION_KEY_PROPERTY: 5},
    ],
)
def test_deliveries_of_what_is_not_stamped_have_ids_of_their_own(properties: dict[str, PropertyValue]) -> None:
    first, second = id_of(row(properties, delivery_id=1)), id_of(row(properties, delivery_id=2))
    assert first == "00000000003e8.!m-1.5/1" != second
    assert not may_have_copies(first)


@pytest.mark.parametrize("sent_at_ms", [None, -1, 1 << 53, 1 << 63])
def test_a_time_that_cannot_be_is_none(sent_at_ms: int | None) -> None:
    made = row(sent_at_ms=sent_at_ms)
    assert id_of(made).startswith("0000000000000.")
    assert to_batch(0, [made], 1).to_pylist()[0]["t_enqueue"] is None


def test_what_no_utf8_can_carry_is_written_out() -> None:
    [first, second] = to_batch(0, [row(key="\ud800"), row({**STAMPS, "h": "\udfff"})], 1).to_pylist()
    assert first["key"] == "\\ud800"
    assert dict(second["headers"]) == {"h": "\\udfff"}


def test_headers_of_ours_are_what_the_user_gave() -> None:
    [plain, more] = to_batch(0, [row(), row({**STAMPS, "colour": "red"})], 1).to_pylist()
    assert plain["headers"] is None
    assert more["headers"] == [("colour", "red")]


def test_a_flush_of_large_messages_is_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "FLUSH_BYTES", 10)
    sizes = [4, 4, 4, 25, 1, 9, 1]
    batches = list(to_batches(0, [row(payload=bytes(size)) for size in sizes], 1))
    assert [[len(each) for each in batch.column("payload").to_pylist()] for batch in batches] == [
        [4, 4],
        [4],
        [25],
        [1, 9],
        [1],
    ]
