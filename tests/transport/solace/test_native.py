"""What a failed bind, or a session that does not come back, is put down to."""

import threading
from types import SimpleNamespace

import pytest

from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.library import PubSubPlusClientError
from lbg_runtime.transport.solace.native import BindAnswer, newest_error

CLEAN_UP = PubSubPlusClientError("Bad Flow pointer '(nil)' in solClient_flow_destroy", 2)
REFUSAL = PubSubPlusClientError("Permission Not Allowed", 76)
LACK = PubSubPlusClientError("Flow Create is not supported by router for this client", 32)


def test_a_refusal_of_the_broker_says_more_than_what_the_client_finds_afterwards() -> None:
    answer = BindAnswer()
    answer.refuse(REFUSAL)
    assert answer.reason_of(CLEAN_UP) is REFUSAL


def test_a_refusal_that_is_on_its_way_is_waited_for() -> None:
    answer = BindAnswer()
    refusing = threading.Timer(0.05, answer.refuse, [REFUSAL])
    refusing.start()
    assert answer.reason_of(CLEAN_UP) is REFUSAL
    refusing.join()


def test_what_the_broker_was_not_asked_is_the_clients_own_reason() -> None:
    assert BindAnswer().reason_of(LACK) is LACK


def test_a_client_that_cannot_be_asked_leaves_a_failed_reconnect_without_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert newest_error(SimpleNamespace(session=SimpleNamespace())) is None
    monkeypatch.setattr(native, "CORE", SimpleNamespace())
    assert newest_error(SimpleNamespace(session=SimpleNamespace(_context_p=1))) is None
