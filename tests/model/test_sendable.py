"""What can never be sent is described in one line; all else passes."""

import pytest

from lbg_runtime.model.errors import MessageUnsendable, PublishRefused, TerminalFailure
from lbg_runtime.model.sendable import check_sendable, fault_of
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
