"""A message is written whole into a native one, whatever that was used for before, or refused."""

from array import array
from collections.abc import Callable, Iterator
from ctypes import CFUNCTYPE, Structure, addressof, byref, c_int, c_uint32, c_void_p, create_string_buffer, string_at
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.model.errors import InvariantViolated, MessageUnsendable, PublishRefused
from lbg_runtime.model.message import DEFAULT_PRIORITY, NO_HEADERS, Headers, Message, PropertyValue
from lbg_runtime.smf.contents import message_of
from lbg_runtime.smf.frame import DEAD_MESSAGE_ELIGIBLE, ParameterKind, decode_frame
from lbg_runtime.smf.message import PERSISTENT, read_published
from lbg_runtime.testing.conformance_sendable import SENDABLE, UNSENDABLE
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast import compiled_writer as compiled_writer_module
from lbg_runtime.transport.solace.fast.compiled_writer import compiled_writer, writer_of
from lbg_runtime.transport.solace.fast.publish_calls import PublishCalls
from lbg_runtime.transport.solace.fast.writer import TAG_BYTES, WriteMessage, message_writer
from lbg_runtime.transport.solace.library import CORE, SOLCLIENT_OK

STAMPS: dict[str, PropertyValue] = {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": 7}
FULL = Message(
    "orders/ä/1",
    bytes(range(256)),
    {**STAMPS, "ü": "ö", "nothing": None, "raw": b"\0a\0"},
    "id-ß",
    1,
    Headers("c", "type", 7, 9),
)


class Buffer(Structure):
    _fields_ = (("address", c_void_p), ("size", c_uint32))


class Native:
    """One native message and what is in it."""

    def __init__(self, make_writer: Callable[[PublishCalls], WriteMessage]) -> None:
        self.calls = PublishCalls()
        self.write = make_writer(self.calls)
        self.pointer = c_void_p()
        assert self.calls.alloc(byref(self.pointer)) == SOLCLIENT_OK

    def put(self, message: Message, tag: int = 0) -> None:
        self.write(self.pointer, message, tag)

    def frame(self) -> bytes:
        """As it would go over the wire."""
        buffer, block = Buffer(), c_void_p()
        assert CORE.solClient_msg_encodeToSMF(self.pointer, byref(buffer), byref(block)) == SOLCLIENT_OK
        try:
            return string_at(buffer.address, buffer.size)
        finally:
            CORE.solClient_datablock_free(byref(block))

    def message(self) -> Message:
        published = read_published(self.frame())
        assert published.assured
        return message_of(published.topic, published.relay)

    def tag(self) -> int | None:
        tag, size = c_void_p(), c_uint32()
        assert CORE.solClient_msg_getCorrelationTagPtr(self.pointer, byref(tag), byref(size)) == SOLCLIENT_OK
        return tag.value


@pytest.fixture(scope="module")
def natives() -> Iterator[dict[str, Native]]:
    """One for each writer that there is."""
    natives = {"interpreted": Native(message_writer)}
    if compiled.WRITER is not None:
        natives["compiled"] = Native(compiled_writer)
    yield natives
    for native in natives.values():
        native.calls.free(byref(native.pointer))


@pytest.fixture(params=["interpreted", "compiled"])
def native(request: pytest.FixtureRequest, natives: dict[str, Native]) -> Native:
    if request.param not in natives:
        pytest.skip("built without a compiler")
    return natives[request.param]


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
VALUES = (
    TEXTS
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.binary(max_size=300)
    | st.none()
)
MESSAGES = st.builds(
    Message,
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60),
    st.binary(max_size=1_000),
    st.dictionaries(TEXTS.filter(bool), VALUES, max_size=8),
    st.none() | TEXTS,
    st.none() | st.integers(0, 2**62),
    st.just(NO_HEADERS)
    | st.builds(
        Headers,
        st.none() | TEXTS,
        st.none() | TEXTS,
        st.none() | st.integers(0, 2**64 - 1),
        st.none() | st.integers(0, 255).filter(lambda priority: priority != DEFAULT_PRIORITY),
    ),
)


@given(messages=st.lists(MESSAGES, min_size=1, max_size=4))
@settings(max_examples=120, deadline=None)
def test_what_goes_over_the_wire_is_the_message_and_nothing_of_those_before(
    natives: dict[str, Native], messages: list[Message]
) -> None:
    for native in natives.values():
        for message in messages:
            native.put(message)
            assert native.message() == message


def test_a_message_is_persistent_and_may_go_to_the_dead_message_queue_every_time(native: Native) -> None:
    for message in (FULL, Message("t", b""), FULL):
        native.put(message)
        frame = decode_frame(native.frame())
        assert frame.find(ParameterKind.DELIVERY_MODE) == bytes((PERSISTENT,))
        assert frame.flags & DEAD_MESSAGE_ELIGIBLE


def test_the_tag_is_the_address_that_was_given(native: Native) -> None:
    memory = create_string_buffer(2 * TAG_BYTES)
    for address in (addressof(memory), addressof(memory) + TAG_BYTES):
        native.put(FULL, address)
        assert native.tag() == address


def test_payloads_that_are_bytes_in_another_form_are_written(native: Native) -> None:
    payload: Any = bytearray(b"abc")
    native.put(Message("t", payload))
    assert native.message().payload == b"abc"


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_payloads_of_any_size_are_written(native: Native, size: int) -> None:
    native.put(Message("t", b"\xff" * size, STAMPS))
    assert native.message() == Message("t", b"\xff" * size, STAMPS)


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_can_never_be_sent_is_refused_and_the_next_is_not(native: Native, name: str) -> None:
    message, reason = UNSENDABLE[name]
    native.put(FULL)
    with pytest.raises(MessageUnsendable) as refusal:
        native.put(message)
    assert (refusal.value.topic, refusal.value.reason) == (message.topic, reason)
    native.put(FULL)
    assert native.message() == FULL


@pytest.mark.parametrize("name", SENDABLE)
def test_what_can_be_sent_is_written_as_it_is(native: Native, name: str) -> None:
    native.put(SENDABLE[name])
    assert native.message() == SENDABLE[name]


def test_a_payload_in_another_buffer_of_bytes_is_written_whole(native: Native) -> None:
    for payload in (bytearray(b"abc"), memoryview(b"xabcx")[1:4]):
        native.put(Message("t", payload, STAMPS))  # type: ignore[arg-type]  # as nobody may have checked
        assert native.message() == Message("t", b"abc", STAMPS)


def test_a_message_that_cannot_even_be_looked_at_is_refused(native: Native) -> None:
    class Broken(dict[str, PropertyValue]):
        def items(self) -> NoReturn:
            raise LookupError("broken")

    for message in (
        Message("t", array("I", [1, 2, 3])),  # type: ignore[arg-type]  # as nobody may have checked
        Message("t", memoryview(array("I", [1, 2, 3]))),  # type: ignore[arg-type]  # likewise
        Message("t", b"", Broken(a=1)),
    ):
        with pytest.raises(PublishRefused):
            native.put(message)
    native.put(FULL)
    assert native.message() == FULL


FAILS = CFUNCTYPE(c_int, c_void_p)(lambda _: -1)
"""A function of the library that answers with an error; whatever else it is called with is left where it is."""


@pytest.mark.parametrize("make_writer", [message_writer, writer_of], ids=["interpreted", "fastest"])
@pytest.mark.parametrize(
    "part",
    [
        *("reset", "set_delivery_mode", "set_dmq_eligible", "set_destination", "set_payload", "set_tag"),
        *("set_message_id", "set_sent_at"),
        *("set_correlation_id", "set_message_type", "set_sequence_number", "set_priority"),
        *("create_properties", "add_string", "add_int64", "add_uint64", "add_boolean", "add_double", "add_bytes"),
        *("add_null", "close"),
    ],
)
def test_a_message_of_which_a_part_cannot_be_written_is_refused_and_not_sent_without_it(
    part: str, make_writer: Callable[[PublishCalls], WriteMessage]
) -> None:
    def make_failing_writer(calls: PublishCalls) -> WriteMessage:
        setattr(calls, part, FAILS)
        return make_writer(calls)

    native = Native(make_failing_writer)
    with pytest.raises(PublishRefused):
        native.put(replace(FULL, properties={**FULL.properties, "yes": True, "ratio": 0.5, "large": 1 << 63}))
    native.calls.free(byref(native.pointer))


def test_a_truth_is_no_number_on_the_wire(native: Native) -> None:
    """In Python it is equal to one, and to a selector it is not."""
    native.put(Message("t", b"", {"yes": True, "no": False, "one": 1}))
    assert [(name, type(value)) for name, value in native.message().properties.items()] == [
        ("yes", bool),
        ("no", bool),
        ("one", int),
    ]


USUAL = Message("orders/ä/1", b"\0", STAMPS, "id", 1_700_000_000_000)


@pytest.mark.parametrize(
    ("message", "is_usual"),
    [
        (USUAL, True),
        (Message("t", b"", {"low": -(2**63), "high": 2**63 - 1, "ü": "ö", "empty": ""}), True),
        (FULL, False),
        (Message("t", b"", {"yes": True}), False),
        (Message("t", b"", {"ratio": 0.5}), False),
        (Message("t", b"", {"large": 2**63}), False),
        (Message("t", b"", {"cut": "a\0b"}), False),
        (Message("t", b"", {"half": "\ud800"}), False),
        (Message("t" * 251, b""), False),
        (Message("t", b"", {}, None, 2**63), False),
    ],
)
@pytest.mark.skipif(compiled.WRITER is None, reason="built without a compiler")
def test_what_is_usual_is_written_in_c_and_all_else_is_left_to_python(message: Message, is_usual: bool) -> None:
    left: list[Message] = []

    def make_writer(calls: PublishCalls) -> WriteMessage:
        with pytest.MonkeyPatch.context() as patch:
            careful = lambda _calls: lambda _native, message, _address: left.append(message)  # noqa: E731 - one line
            patch.setattr(compiled_writer_module, "message_writer", careful)
            return compiled_writer(calls)

    native = Native(make_writer)
    native.put(message)
    assert left == ([] if is_usual else [message])
    if is_usual:
        assert native.message() == message
    native.calls.free(byref(native.pointer))


def test_without_a_compiler_there_is_the_writer_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "WRITER", None)
    native = Native(writer_of)
    native.put(USUAL)
    assert native.message() == USUAL
    native.calls.free(byref(native.pointer))
    with pytest.raises(InvariantViolated, match="nothing was compiled"):
        compiled_writer(native.calls)
