"""What lies in a parking queue is read as it was written, and anything else is refused."""

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
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.errors import ParkingEntryRefused
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
    ],
)
def test_what_is_none_of_ours_is_refused(name: str, value: object) -> None:
    entry = ParkedMessage("key a", ParkingOwner(1, "n"), 1, Message("t", b""), 1, "e", "s", "m", 5)
    written = encode_entry(entry, "q")
    spoilt = Message("q", b"", {**written.properties, name: value})
    with pytest.raises(ParkingEntryRefused, match=name):
        decode_entry(spoilt)
