"""What lies in a parking queue is read as it was written, and of anything else, what it concerns."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lbg_runtime.core.parking.records import (
    DropAsked,
    OwnerFence,
    ParkedMessage,
    ParkingOwner,
    RoomKept,
    UnparkAsked,
    UnreadEntry,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.message import Headers, Message

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
lanes = texts.map(lambda text: f"key {text}")
owners = st.builds(ParkingOwner, st.integers(0, 10**18), st.text("0123456789abcdef", min_size=1, max_size=14))
numbers = st.integers(1, 1 << 62)
values = st.one_of(texts, st.integers(-(1 << 63), (1 << 63) - 1), st.booleans(), st.binary(max_size=5), st.none())
names = texts.filter(lambda name: not name.startswith("lbg_park"))
messages = st.builds(
    Message,
    texts,
    st.binary(max_size=20),
    st.dictionaries(names, values, max_size=3),
    texts | st.none(),
    st.integers() | st.none(),
    st.builds(Headers, texts | st.none(), texts | st.none(), numbers | st.none(), st.integers(0, 255) | st.none()),
)
entries = st.one_of(
    st.builds(
        ParkedMessage, lanes, owners, numbers, messages, st.integers(0, 99), texts, texts, texts, st.integers(0, 10**15)
    ),
    st.builds(OwnerFence, owners),
    st.builds(UnparkAsked, lanes),
    st.builds(DropAsked, lanes, st.none() | st.tuples(owners, numbers)),
    st.builds(RoomKept, st.integers(0, 99)),
)


@given(entries)
@settings(max_examples=50)
def test_an_entry_is_read_as_it_was_written(entry: ParkedMessage) -> None:
    queue = parking_queue("orders", 3)
    written = encode_entry(entry, queue)
    assert written.topic == "lbg-parked/orders/3"
    assert decode_entry(written) == entry


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lbg_parking", "something"),
        ("lbg_parking", None),
        ("lbg_parked_owner", "soon:n"),
        ("lbg_parked_owner", 7),
        ("lbg_parked_number", True),
        ("lbg_parked_number", "1"),
        ("lbg_parked_lane", None),
        ("lbg_parked_at_ms", "-1"),
        ("lbg_parked_at_ms", "\N{ARABIC-INDIC DIGIT ONE}"),
        ("lbg_parked_at_ms", "1" * 20),
        # As an integer it would raise.
        ("lbg_parked_owner", f"{'1' * 5_000}:n"),
    ],
)
def test_of_what_cannot_be_read_it_is_known_what_it_concerns(name: str, value: object) -> None:
    entry = ParkedMessage("key a", ParkingOwner(1, "n"), 1, Message("t", b""), 1, "e", "s", "m", 5)
    written = encode_entry(entry, "q")
    spoilt = Message("q", b"", {**written.properties, name: value})
    read = decode_entry(spoilt)
    assert isinstance(read, UnreadEntry)
    assert (read.message, read.is_ours) == (spoilt, True)
    assert read.reason.startswith(name)
    assert read.lane == (None if name == "lbg_parked_lane" else "key a")
    assert read.only == (None if name in ("lbg_parked_owner", "lbg_parked_number") else (ParkingOwner(1, "n"), 1))


@pytest.mark.parametrize(("properties", "is_ours"), [({}, False), ({"a": 1}, False), ({"lbg_parked_since": 1}, True)])
def test_what_no_version_has_written_is_known_by_its_properties(properties: dict[str, int], *, is_ours: bool) -> None:
    read = decode_entry(Message("q", b"x", properties))
    assert isinstance(read, UnreadEntry)
    assert (read.lane, read.only, read.is_ours) == (None, None, is_ours)


def test_what_cannot_be_read_is_told_in_a_few_words() -> None:
    read = decode_entry(Message("q", b"", {"lbg_parking": "x" * 5_000}))
    assert isinstance(read, UnreadEntry)
    assert read.reason == ("lbg_parking '" + "x" * 5_000)[:200]
