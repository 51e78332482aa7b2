"""Requests to publish, in every form that applications send."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, QueryParams

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.message import Headers as MessageHeaders
from lbg_runtime.sidecar import publication
from lbg_runtime.sidecar.event import header_text

STRUCTURED = {"content-type": "application/cloudevents+json; charset=utf-8"}


def read_publication(headers, query, body):
    return publication.read_publication(Headers(headers), QueryParams(query), body)


def event(**members):
    return json.dumps({"specversion": "1.0", "id": "7", "source": "/s", "type": "t", **members}).encode()


def test_plain_data_keeps_its_type():
    read = read_publication({"content-type": "text/plain"}, {}, b"hello")
    assert (read.payload, read.properties, read.key) == (b"hello", {"ce_datacontenttype": "text/plain"}, None)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (STRUCTURED, event(**{f"a{number}": 1 for number in range(997)})),
        (STRUCTURED, event().replace(b'"id"', b'"a": 1, ' * 997 + b'"id"')),
        ({f"ce-a{number}": "1" for number in range(1001)}, b""),
    ],
)
def test_an_event_has_so_many_attributes_at_most(headers, body):
    with pytest.raises(UserError, match="more than 1000 attributes"):
        read_publication(headers, {}, body)


def test_an_event_may_have_many_attributes():
    read = read_publication(STRUCTURED, {}, event(**{f"a{number}": 1 for number in range(996)}))
    assert len(read.properties) == 999  # all but the version
    with_data = read_publication(STRUCTURED, {}, event(data={"x": 1}, **{f"a{number}": 1 for number in range(996)}))
    assert with_data.payload == b'{"x": 1}'


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = PARENT.replace("4bf9", "5cf9")


@pytest.mark.parametrize(
    ("headers", "members", "told"),
    [
        ([("traceparent", PARENT)], {}, {"traceparent": PARENT}),
        (
            [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")],
            {},
            {"traceparent": PARENT, "tracestate": "a=1,b=2"},
        ),
        ([], {"traceparent": OTHER, "tracestate": "a=1"}, {"traceparent": OTHER, "tracestate": "a=1"}),
        ([("traceparent", PARENT)], {"traceparent": OTHER, "tracestate": "a=1"}, {"traceparent": PARENT}),
        ([("traceparent", "\xe4")], {"traceparent": 1}, {}),
        (
            [("tracestate", "b=2")],
            {"traceparent": OTHER, "tracestate": "a=1"},
            {"traceparent": OTHER, "tracestate": "a=1"},
        ),
        (
            [("traceparent", PARENT), ("traceparent", PARENT), ("tracestate", "b=2")],
            {"traceparent": OTHER, "tracestate": "a=1"},
            {"traceparent": OTHER, "tracestate": "a=1"},
        ),
        ([("traceparent", "no context")], {"traceparent": OTHER}, {"traceparent": OTHER}),
    ],
    ids=[
        "of the request",
        "with its states",
        "of the event",
        "the request's wins as a whole",
        "what is none",
        "a state alone is none",
        "two are none",
        "nor is another text",
    ],
)
def test_a_trace_goes_on_through_an_application_that_publishes(headers, members, told):
    raw = [(name.encode(), value.encode("latin-1")) for name, value in [*STRUCTURED.items(), *headers]]
    read = publication.read_publication(Headers(raw=raw), QueryParams(), event(**members))
    assert {name: value for name, value in read.properties.items() if not name.startswith("ce_")} == told


def test_so_does_that_of_a_binary_event_and_of_a_raw_publication():
    headers = {"ce-traceparent": OTHER, "ce-tracestate": "a=%201"}
    read = read_publication(headers, {}, b"")
    assert read.properties.items() >= {"traceparent": OTHER, "tracestate": "a= 1"}.items()
    read = read_publication({**headers, "traceparent": PARENT}, {"metadata.rawPayload": "true"}, b"")
    assert read.properties == {"traceparent": PARENT}


@pytest.mark.parametrize("number", [-(2**31), 2**31 - 1])
def test_an_attribute_may_be_an_integer_of_32_bits_and_no_longer_one(number):
    assert read_publication(STRUCTURED, {}, event(ext=number)).properties["ce_ext"] == number
    with pytest.raises(UserError, match="attribute 'ext': a long integer"):
        read_publication(STRUCTURED, {}, event(ext=number + (1 if number > 0 else -1)))


def test_data_without_a_type_is_bytes():
    assert read_publication({}, {}, b"x").properties == {}


@pytest.mark.parametrize(
    ("headers", "query", "key"),
    [
        ({"lbg-key": "%C3%84%201"}, {"key": "Ä 1"}, "Ä 1"),
        ({}, [("key", "b"), ("key", "b"), ("metadata.partitionKey", "b")], "b"),
        ({}, {"key": "b"}, "b"),
        ({}, {"metadata.partitionKey": "c"}, "c"),
        ({"ce-partitionkey": "d%20e"}, {}, "d e"),
        ({"ce-partitionkey": ""}, {}, None),
        ({"ce-partitionkey": "e", "lbg-key": "e"}, {"key": "e"}, "e"),
    ],
)
def test_a_key_may_be_given_in_several_places(headers, query, key):
    assert read_publication(headers, query, b"").key == key


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ([("lbg-key", "d")], {"key": "e"}),
        ([], {"key": "e", "metadata.partitionKey": "f"}),
        ([], [("key", "e"), ("key", "f")]),
        ([], {"key": "", "metadata.partitionKey": "f"}),
        ([("lbg-key", "d"), ("lbg-key", "e")], {}),
        ([("ce-partitionkey", "d"), ("ce-partitionkey", "e")], {}),
        ([("ce-partitionkey", "e"), ("lbg-key", "e")], {"key": "f"}),
    ],
)
def test_two_different_keys_are_refused(headers, query):
    raw = [(name.encode(), value.encode()) for name, value in headers]
    with pytest.raises(UserError, match="two different ones"):
        publication.read_publication(Headers(raw=raw), QueryParams(query), b"x")


@pytest.mark.parametrize(
    ("headers", "query"), [({"lbg-key": ""}, {}), ({}, {"key": ""}), ({}, {"metadata.partitionKey": ""})]
)
def test_an_empty_key_beside_an_event_is_refused(headers, query):
    with pytest.raises(UserError, match="an empty one"):
        read_publication(headers, query, b"x")


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"lbg-key": "%ff"}, {}),
        ({"lbg-key": "Ä".encode().decode("latin-1")}, {}),
        ({"ce-partitionkey": "a%ffb"}, {}),
        ({"ce-partitionkey": "Ä"}, {}),
        ({"ce-subject": "%ff"}, {}),
    ],
)
def test_what_cannot_be_decoded_is_refused_and_no_key_of_many(headers, query):
    with pytest.raises(UserError):
        read_publication(headers, query, b"x")


@pytest.mark.parametrize(
    ("named", "headers", "query"),
    [
        ("acct-1", {"lbg-key": "acct-7"}, {}),
        ("acct-1", {}, {"key": "acct-7"}),
        (4711, {}, {}),
        (True, {"lbg-key": "k"}, {}),
        (["k"], {"lbg-key": "k"}, {}),
    ],
)
def test_an_event_that_names_another_key_than_it_is_published_with_is_refused(named, headers, query):
    with pytest.raises(UserError, match="attribute partitionkey"):
        read_publication({**STRUCTURED, **headers}, query, event(partitionkey=named))


def test_a_structured_event_is_taken_apart():
    read = read_publication(STRUCTURED, {}, event(data={"a": [1, 12345678901234567890]}, partitionkey="k", ext=5))
    assert read.payload == b'{"a": [1, 12345678901234567890]}'
    assert read.key == "k"
    assert read.properties == {
        "ce_id": "7",
        "ce_source": "/s",
        "ce_type": "t",
        "ce_partitionkey": "k",
        "ce_ext": 5,
        "ce_datacontenttype": "application/json",
    }


@pytest.mark.parametrize(
    ("members", "payload"),
    [
        ({"data": "text", "datacontenttype": "text/plain"}, b"text"),
        ({"data": "text", "datacontenttype": "application/json"}, b'"text"'),
        ({"data": "text"}, b'"text"'),
        ({"data": {"a": 1}, "datacontenttype": "text/plain"}, b'{"a": 1}'),
        ({"data_base64": "/w=="}, b"\xff"),
        ({"data": None}, b""),
        ({}, b""),
        ({"data": 0}, b"0"),
        ({"data": False}, b"false"),
    ],
)
def test_the_data_of_an_event_is_the_payload(members, payload):
    assert read_publication(STRUCTURED, {}, event(**members)).payload == payload


@pytest.mark.parametrize("data", ["text", {"a": 1}], ids=["text", "object"])
def test_the_type_that_an_event_gives_its_data_stays(data):
    read = read_publication(STRUCTURED, {}, event(data=data, datacontenttype="application/vnd.order+json; v=2"))
    assert json.loads(read.payload) == data
    assert read.properties["ce_datacontenttype"] == "application/vnd.order+json; v=2"


@pytest.mark.parametrize(
    "data",
    [
        b"1234567890.12345678901",
        b"-0",
        b"1.10",
        b"1e999",
        b"9" * 5_000,
        b'{"a": [-%s]}' % (b"9" * 5_000),
        b"[" * 499 + b"]" * 499,
        b'{"a":1, "a" : 2}',
        b'[ {"data": 3},\n\t"\\u00e9\\/\\ud800" ]',
        '"ä"'.encode(),
    ],
)
@pytest.mark.parametrize(
    "event", ['{"specversion":"1.0","data":%s}', '{ "x,:}" : {"data":[1]} , "data" :\t%s ,"specversion": "1.0" }\n']
)
def test_the_data_is_passed_on_as_it_is_written(event, data):
    assert read_publication(STRUCTURED, {}, event.encode() % data).payload == data


def test_of_two_members_of_one_name_the_last_one_counts():
    assert read_publication(STRUCTURED, {}, b'{"data":1,"specversion":"1.0","data":2}').payload == b"2"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-le"])
def test_the_data_is_utf_8_in_whatever_unicode_the_event_came(encoding):
    body = '{"specversion": "1.0", "data": {"ä": 1.0}}'.encode(encoding)
    assert read_publication(STRUCTURED, {}, body).payload == '{"ä": 1.0}'.encode()


def test_a_binary_event_has_its_attributes_in_headers():
    headers = {"ce-specversion": "1.0", "ce-type": "a%20b", "content-type": "application/json", "x": "y"}
    read = read_publication(headers, {}, b"{}")
    assert read.properties == {"ce_type": "a b", "ce_datacontenttype": "application/json"}
    assert read.payload == b"{}"


@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_attributes_that_headers_can_be_are_both(mode):
    said = {"correlationid": "c ü", "messagetype": "order", "sequencenumber": "7", "priority": "9", "custom": "x"}
    if mode == "structured":
        read = read_publication(STRUCTURED, {}, event(**said))
    else:
        read = read_publication({f"ce-{name}": header_text(value) for name, value in said.items()}, {}, b"")
    assert read.headers == MessageHeaders("c ü", "order", 7, 9)
    assert read.properties.items() >= {f"ce_{name}": value for name, value in said.items()}.items()


def test_a_raw_publication_is_not_looked_into():
    read = read_publication({**STRUCTURED, "ce-type": "x"}, {"metadata.rawPayload": "true"}, b"{broken")
    assert read.payload == b"{broken"
    assert read.properties == {"ce_datacontenttype": STRUCTURED["content-type"]}


NO_JSON = "body: no JSON; expected an event, as content-type application/cloudevents+json says"
NO_EVENT = 'body: no event; expected a JSON object with "specversion": "1.0"'
NO_BASE64 = "body: data_base64 that is none; expected base64"
HALF = "body: half of a surrogate pair; expected text that UTF-8 can carry"
LONG = "attribute 'long': a long integer; expected one of 32 bits, or a text"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", NO_JSON),
        (b"{broken", NO_JSON),
        (b"[]", NO_EVENT),
        (b"{}", NO_EVENT),
        (b'{"specversion": "0.3"}', NO_EVENT),
        (b'{"specversion": "1.0", "data_base64": "?"}', NO_BASE64),
        (b'{"specversion": "1.0", "data_base64": 7}', NO_BASE64),
        ('{"specversion": "1.0", "data_base64": "ä"}'.encode(), NO_BASE64),
        (b'{"specversion": "1.0", "data": "\\ud800", "datacontenttype": "text/plain"}', HALF),
        (b'{"specversion": "1.0", "type": "\\ud800"}', HALF),
        (b'{"specversion": "1.0", "long": 99999999999}', LONG),
        (b'{"specversion": "1.0", "long": %s}' % (b"9" * 5_000), LONG),
        (b'{"specversion": "1.0", "data": NaN}', NO_JSON),
        (b'{"specversion": "1.0", "data": [-Infinity]}', NO_JSON),
        (b'{"specversion": "1.0", "data": "\xff"}', NO_JSON),
        (b'{"specversion": "1.0", "data": "\xed\xa0\x80"}', NO_JSON),
        (b"[" * 100_000, "body: nested too deeply; expected at most 500 levels"),
    ],
)
def test_an_event_that_is_none_is_refused(body, why):
    with pytest.raises(UserError) as refused:
        read_publication(STRUCTURED, {}, body)
    assert str(refused.value) == why


def test_what_is_nested_too_deeply_is_told_so():
    with pytest.raises(UserError, match="body: nested too deeply; expected at most 500 levels"):
        read_publication(STRUCTURED, {}, b'{"specversion": "1.0", "data": %s1%s}' % (b"[" * 500, b"]" * 500))


@given(st.binary(max_size=200), st.sampled_from(["application/cloudevents+json", "application/json", ""]))
def test_any_body_is_read_or_refused(body, content_type):
    try:
        read = read_publication({"content-type": content_type}, {}, body)
    except UserError:
        return
    assert isinstance(read.payload, bytes)
