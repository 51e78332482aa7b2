"""What can never be sent is described in one line; all else passes."""

import pytest

from lbg_runtime.model.errors import MessageUnsendable, PublishRefused, TerminalFailure
from lbg_runtime.model.message import NO_HEADERS, Headers, Message
from lbg_runtime.model.sendable import (
    LARGEST_INT64,
    LARGEST_MESSAGE_BYTES,
    as_sendable,
    check_sendable,
    fault_of,
    size_bound,
)
from lbg_runtime.testing.conformance_sendable import SENDABLE, UNSENDABLE


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_can_never_be_sent_is_refused_for_good(name):
    message, reason = UNSENDABLE[name]
    with pytest.raises(MessageUnsendable) as refusal:
        check_sendable(message)
    assert isinstance(refusal.value, PublishRefused)
    assert isinstance(refusal.value, TerminalFailure)
    assert (refusal.value.topic, refusal.value.reason) == (message.topic, reason)
    assert "\n" not in reason


@pytest.mark.parametrize("name", SENDABLE)
def test_what_can_be_sent_has_no_fault(name):
    assert fault_of(SENDABLE[name]) is None
    check_sendable(SENDABLE[name])


def test_what_is_as_large_as_can_be_is_sent_and_the_texts_of_headers_count():
    room = LARGEST_MESSAGE_BYTES - size_bound(b"", {}, NO_HEADERS)
    for headers, taken in ((NO_HEADERS, 0), (Headers(correlation_id="ab", message_type="ä"), 4), (Headers(), 0)):
        assert fault_of(Message("t", bytes(room - taken), headers=headers)) is None
        fault = fault_of(Message("t", bytes(room - taken + 1), headers=headers))
        assert fault == "payload, properties and headers are up to 30000001 bytes, and 30000000 are possible"


def test_every_time_of_64_bits_can_be_sent():
    for sent_at_ms in (-LARGEST_INT64 - 1, LARGEST_INT64):
        assert fault_of(Message("t", b"", sent_at_ms=sent_at_ms)) is None
    for sent_at_ms in (-LARGEST_INT64 - 2, LARGEST_INT64 + 1):
        assert fault_of(Message("t", b"", sent_at_ms=sent_at_ms)) is not None


def test_a_text_that_utf8_cannot_hold_can_be_made_one_that_it_can():
    assert as_sendable("a\ud800\udfffb") == "a\ufffd\ufffdb"
    assert as_sendable("\U0001f600ü") == "\U0001f600ü"
