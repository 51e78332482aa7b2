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
    WrittenEntry,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.message import Headers, Message, PropertyValue

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


OWNER = ParkingOwner(1_795_392_000_000_000, "n1")
ORIGINAL = Message("orders-hash/17/orders/new", b"\1", {"JMSXGroupID": "k", "n": 7}, "id-1", 1_795_392_000_123)
PARKED_AS = {
    "lbg_parking": "message",
    "lbg_parked_lane": "key k",
    "lbg_parked_owner": "1795392000000000:n1",
    "lbg_parked_number": 4,
    "lbg_parked_topic": "orders-hash/17/orders/new",
    "lbg_parked_attempts": 2,
    "lbg_parked_error": "ValueError: no",
    "lbg_parked_stack": "a.py:3 f",
    "lbg_parked_member": "m-1",
    "lbg_parked_at_ms": "1795392000456",
}
OF_LANE, OF_OWNER = {"lbg_parked_lane": "key k"}, {"lbg_parked_owner": "1795392000000000:n1"}


@pytest.mark.parametrize(
    ("entry", "payload", "properties"),
    [
        (
            ParkedMessage("key k", OWNER, 4, ORIGINAL, 2, "ValueError: no", "a.py:3 f", "m-1", 1_795_392_000_456),
            b"\1",
            {"JMSXGroupID": "k", "n": 7, **PARKED_AS},
        ),
        (OwnerFence(OWNER), b"fence", {"lbg_parking": "fence", **OF_OWNER}),
        (UnparkAsked("key k"), b"unpark", {"lbg_parking": "unpark", **OF_LANE}),
        (DropAsked("key k"), b"drop", {"lbg_parking": "drop", **OF_LANE}),
        (
            DropAsked("key k", (OWNER, 4)),
            b"drop",
            {"lbg_parking": "drop", **OF_LANE, **OF_OWNER, "lbg_parked_number": 4},
        ),
        (RoomKept(3), b"\0\0\0", {"lbg_parking": "room"}),
    ],
)
def test_entries_lie_in_the_queue_as_the_versions_since_22_november_know_them(
    entry: WrittenEntry, payload: bytes, properties: dict[str, PropertyValue]
) -> None:
    """What one version has parked, another one replays, also after a way back."""
    written = encode_entry(entry, "lbg-parked/orders/3")
    assert (written.payload, written.properties) == (payload, properties)
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
