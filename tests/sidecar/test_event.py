"""CloudEvents, in both content modes, and what the runtime adds; what comes in from a publisher may be anything."""

import base64
import json
import tracemalloc

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.message import NO_HEADERS, Headers
from lbg_runtime.sidecar.event import (
    attribute_headers,
    attribute_properties,
    binary,
    bulk_entry,
    facts,
    header_text,
    structured,
)
from tests.sidecar.events import make_event, stamps


def told(event, **how):
    return json.loads(structured(event, "pubsub", **how))


def test_a_message_that_says_nothing_of_itself_is_an_event_as_applications_for_dapr_know_it():
    assert told(make_event(sent_at_ms=1_700_000_000_123)) == {
        "specversion": "1.0",
        "id": "id-1",
        "source": "/orders",
        "type": "com.dapr.event.sent",
        "topic": "orders/new",
        "pubsubname": "pubsub",
        "time": "2023-11-14T22:13:20.123Z",
        "partitionkey": "k",
        "datacontenttype": "application/json",
        "data": {"a": 1},
    }


def test_what_the_publisher_said_of_the_event_wins():
    said = {"type": "order.created", "source": "/shop", "id": "7", "time": "2026-01-01T00:00:00Z", "custom": 5}
    properties = {**{f"ce_{name}": value for name, value in said.items()}, "other": "x"}
    event = told(make_event(properties=properties, sent_at_ms=1))
    assert event.items() >= said.items()
    assert "other" not in event


@pytest.mark.parametrize(("said", "expected"), [(7, "7"), (True, "true"), ("", None)])
def test_what_no_event_may_lack_is_a_text_and_not_empty_whatever_the_publisher_said(said, expected):
    ours = told(make_event())
    for name in ("id", "source", "type"):
        event = make_event(properties={f"ce_{name}": said})
        assert told(event)[name] == binary(event, "pubsub")[0][f"ce-{name}"] == (expected or ours[name])


@pytest.mark.parametrize(
    ("number", "expected"), [(2**31 - 1, 2**31 - 1), (2**31, "2147483648"), (-(2**63), str(-(2**63)))]
)
def test_a_number_too_long_for_an_event_is_a_text(number, expected):
    assert told(make_event(properties={"ce_custom": number}))["custom"] == expected


@pytest.mark.parametrize("key", ["acct-7", None])
def test_no_event_names_another_key_than_the_one_that_is_kept_in_order(key):
    event = make_event(key=key, properties={"ce_partitionkey": "acct-1"})
    entry = bulk_entry(event, "pubsub", "5", is_raw=False)["event"]
    assert told(event).get("partitionkey") == entry.get("partitionkey") == key
    assert binary(event, "pubsub")[0].get("ce-partitionkey") == key


@pytest.mark.parametrize(
    "name", ["ce_data", "ce_topic", "ce_Type", "ce_", "ce_a b", "ce_specversion", "ce_data_base64"]
)
def test_a_property_that_is_no_attribute_changes_nothing(name):
    assert told(make_event(properties={name: "forged"})) == told(make_event())


def test_an_event_of_a_message_without_an_id_has_the_one_that_was_made():
    assert told(make_event(message_id=None))["id"] == "made"


@pytest.mark.parametrize(
    ("payload", "said", "expected"),
    [
        (b"[1, 2]", "application/json; charset=utf-8", {"data": [1, 2]}),
        (b"12345678901234567890123", None, {"data": 12345678901234567890123, "datacontenttype": "application/json"}),
        (b"{broken", "application/json", {"data_base64": base64.b64encode(b"{broken").decode()}),
        (b"", "application/json", {"data_base64": ""}),
        (b"1e999", "application/json", {"data_base64": "MWU5OTk="}),
        ("ä".encode(), "text/plain", {"data": "ä"}),
        (b"<a/>", "application/xml", {"data": "<a/>"}),
        (b"\xff", "text/plain", {"data_base64": "/w=="}),
        (b"plain", None, {"data": "plain", "datacontenttype": "text/plain"}),
        (b"\xff\x00", None, {"data_base64": "/wA=", "datacontenttype": "application/octet-stream"}),
        (b"{}", "application/octet-stream", {"data_base64": "e30="}),
        (b"{}", "application/vnd.order+json", {"data": {}}),
    ],
)
def test_data_stands_in_the_object_as_its_type_says(payload, said, expected):
    made = make_event(payload, properties={"ce_datacontenttype": said} if said else {})
    event = told(made)
    assert event.items() >= ({"datacontenttype": said} | expected).items()
    assert len(event.keys() & {"data", "data_base64"}) == 1
    assert binary(made, "pubsub")[0]["content-type"] == event["datacontenttype"]


def test_a_raw_event_has_its_bytes_whatever_they_are():
    event = told(make_event(b'{"a": 1}'), is_raw=True)
    assert (event["datacontenttype"], event["data_base64"]) == ("application/octet-stream", "eyJhIjogMX0=")


def test_numbers_keep_their_digits():
    assert b"1.10000000000000000001" in structured(make_event(b"1.10000000000000000001"), "pubsub")


def test_in_binary_mode_attributes_are_headers_and_the_payload_is_the_body():
    properties = {"ce_type": "bestellt ä", "ce_yes": True, "ce_no": False}
    headers, body = binary(make_event(b"\xff", properties=properties), "pubsub")
    assert body == b"\xff"
    assert headers["content-type"] == "application/octet-stream"
    assert headers["ce-type"] == "bestellt%20%C3%A4"
    assert (headers["ce-yes"], headers["ce-no"]) == ("true", "false")
    assert headers["ce-id"] == "id-1"
    assert "ce-datacontenttype" not in headers


@pytest.mark.parametrize("forged", ["text/plain\r\nevil: 1", "", "ä/ö", 7, "nonsense"])
def test_a_content_type_that_is_none_does_not_reach_a_header(forged):
    headers, _ = binary(make_event(properties={"ce_datacontenttype": forged}), "pubsub")
    assert headers["content-type"] == "application/json"


def test_the_runtime_tells_what_it_knows_of_the_delivery():
    event = make_event(key="Ä 1", properties=stamps("Ä 1", 17), attempt=4, redelivered=True)
    assert facts(event) == {
        "lbg-key": "%C3%84%201",
        "lbg-shard": "3",
        "lbg-queue": "orders/1",
        "lbg-epoch": "2",
        "lbg-attempt": "4",
        "lbg-redelivered": "true",
        "lbg-fencing-token": "17",
        "lbg-publisher": "p",
    }


def test_what_a_message_has_not_is_not_told():
    event = make_event(key=None, shard=None)
    assert facts(event).keys() == {"lbg-queue", "lbg-epoch", "lbg-attempt", "lbg-redelivered"}
    assert "partitionkey" not in told(event)


@pytest.mark.parametrize("stamped", [10**15, -(10**15), 2**63 - 1])
def test_a_time_that_no_calendar_has_is_not_told(stamped):
    assert "time" not in told(make_event(sent_at_ms=stamped))


@pytest.mark.parametrize("missing", sorted(stamps("k", 17)))
def test_a_fencing_token_is_told_only_with_all_its_stamps(missing):
    some = {name: value for name, value in stamps("k", 17).items() if name != missing}
    assert not facts(make_event(properties=some)).keys() & {"lbg-fencing-token", "lbg-publisher"}


@pytest.mark.parametrize(
    ("state", "is_told"),
    [("a=1, b=2", True), ("x" * 513, False), ("a\r\nlbg-key: other", False), (7, False)],
    ids=["whole", "long", "forged", "number"],
)
def test_the_context_of_a_trace_is_told_as_it_came_if_a_header_can_have_it(state, is_told):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    told = facts(make_event(properties={"traceparent": parent, "tracestate": state}))
    assert told["traceparent"] == parent
    assert told.get("tracestate") == (state if is_told else None)


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("parent", "is_one"),
    [
        (f"00-{TRACE}-{SPAN}-00", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what will be", True),
        (f"00-{TRACE}-{SPAN}-01-more", False),
        (f"cc-{TRACE}-{SPAN}-01.more", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE}-{SPAN}", False),
    ],
)
def test_what_the_w3c_has_readers_ignore_is_no_parent(parent, is_one):
    told = facts(make_event(properties={"traceparent": parent, "tracestate": "a=1"}))
    assert (told.get("traceparent"), told.get("tracestate")) == ((parent, "a=1") if is_one else (None, None))


def test_a_bulk_entry_is_the_event_and_its_facts():
    entry = bulk_entry(make_event(), "pubsub", "5", is_raw=False)
    assert (entry["entryId"], entry["contentType"]) == ("5", "application/cloudevents+json")
    assert entry["metadata"]["lbg-key"] == "k"
    told_of_it = json.loads(orjson.dumps(entry["event"]))
    assert (told_of_it["id"], told_of_it["data"]) == ("id-1", {"a": 1})
    raw = bulk_entry(make_event(), "pubsub", "5", is_raw=True)
    assert (raw["event"], raw["contentType"]) == ("eyJhIjogMX0=", "application/octet-stream")


def test_attributes_travel_as_properties_and_come_back():
    carried = attribute_properties({"type": "t", "n": 3, "data": "x", "Bad": "x", "float": 1.5, "yes": True})
    assert carried == {"ce_type": "t", "ce_n": 3, "ce_yes": True}
    assert told(make_event(properties=carried)).items() >= {"type": "t", "n": 3, "yes": True}.items()


def test_headers_of_the_message_are_attributes():
    event = make_event(headers=Headers("c ü", "order", 1 << 40, 9))
    expected = {"correlationid": "c ü", "messagetype": "order", "sequencenumber": str(1 << 40), "priority": 9}
    assert told(event).items() >= expected.items()
    headers = binary(event, "pubsub")[0]
    assert (headers["ce-correlationid"], headers["ce-priority"]) == ("c%20%C3%BC", "9")
    assert told(make_event()).keys().isdisjoint(expected)
    assert told(make_event(headers=Headers("c"))).keys() & expected.keys() == {"correlationid"}
    assert told(make_event(headers=Headers("", "", 0, 0))).keys() & expected.keys() == {"sequencenumber", "priority"}


def test_what_the_publisher_said_of_the_event_wins_over_headers():
    said = {"correlationid": "own", "messagetype": "own", "sequencenumber": 7, "priority": "high"}
    properties = {f"ce_{name}": value for name, value in said.items()}
    assert told(make_event(properties=properties, headers=Headers("c", "t", 1, 9))).items() >= said.items()


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"correlationid": "c", "messagetype": "t"}, Headers("c", "t")),
        ({"sequencenumber": 7, "priority": 9}, Headers(None, None, 7, 9)),
        ({"sequencenumber": str((1 << 64) - 1), "priority": "0"}, Headers(None, None, (1 << 64) - 1, 0)),
        ({"type": "t", "id": "c"}, NO_HEADERS),
        ({"correlationid": "", "messagetype": 7}, NO_HEADERS),
        ({"correlationid": True, "sequencenumber": True, "priority": False}, NO_HEADERS),
        ({"sequencenumber": -1, "priority": 256}, NO_HEADERS),
        ({"sequencenumber": str(1 << 64), "priority": "high"}, NO_HEADERS),
        ({"sequencenumber": "9" * 5_000, "priority": "²"}, NO_HEADERS),
        ({"sequencenumber": 1.0, "priority": None}, NO_HEADERS),
    ],
)
def test_attributes_are_the_headers_that_they_can_be(attributes, expected):
    assert attribute_headers(attributes) == expected


@given(st.text(st.characters(codec="utf-8")))
def test_a_header_is_visible_ascii_whatever_it_tells(text):
    assert all(0x21 <= ord(character) < 0x7F and character != '"' for character in header_text(text))


@given(
    st.binary(max_size=40),
    st.dictionaries(
        st.sampled_from(["ce_type", "ce_time", "ce_x", "ce_datacontenttype", "zz"]),
        st.one_of(st.text(st.characters(codec="utf-8")), st.integers(-9, 9), st.floats(), st.binary(), st.none()),
    ),
    st.one_of(st.none(), st.integers()),
)
def test_any_message_is_an_event(payload, properties, sent_at_ms):
    event = make_event(payload, properties=properties, sent_at_ms=sent_at_ms)
    assert told(event)["specversion"] == "1.0"
    headers, body = binary(event, "pubsub")
    assert body == payload
    assert not any("\r" in value or "\n" in value for value in headers.values())


def test_what_is_kept_of_written_headers_does_not_grow_with_their_length():
    """Publishers may give attributes of any length, thousands of which a sidecar kept."""
    tracemalloc.start()
    try:
        for number in range(50):
            assert header_text(f"{number} {'x' * 100_000}").startswith(f"{number}%20x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 300_000
