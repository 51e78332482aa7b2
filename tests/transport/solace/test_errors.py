"""The shapes of the client's exceptions become the project's errors."""

import pytest

from lbg_runtime.model.errors import PublishRefused
from lbg_runtime.transport.solace.errors import (
    Subcode,
    bind_failed,
    connect_failed,
    publish_failed,
    reason_of_text,
    request_failed,
    subcode_and_reason,
)


class ClientError(Exception):
    """Looks like an exception of the client."""

    def __init__(self, message: object, sub_code: int | None = None) -> None:
        super().__init__(message)
        self.sub_code = sub_code


class AuthenticationError(ClientError):
    """Has the name of the client's, which carries no number."""


def facts(subcode: int, contents: str) -> dict[str, object]:
    return {
        "caller_description": "From service event callback",
        "return_code": "Not ready",
        "sub_code": "SOLCLIENT_SUBCODE_SOMETHING",
        "error_info_sub_code": subcode,
        "error_info_contents": contents,
    }


TEXT = (
    "Failed\nCaller Description: provision. Error Info Sub code: [76]. Error: [Permission Not\n Allowed]. "
    "Sub code: [SOLCLIENT_SUBCODE_PERMISSION_NOT_ALLOWED]. Return code: [Not ready]"
)


def unreadable(text: str) -> UnicodeDecodeError:
    """What the client raises where its library has cut a text within the character that is its last."""
    with pytest.raises(UnicodeDecodeError) as caught:
        text.encode()[:-1].decode()
    return caught.value


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (unreadable("property 'SESSION_VPN_NAME' with value 'xä"), (None, "property 'SESSION_VPN_NAME' with value 'x")),
        (
            unreadable("property 'SESSION_PASSWORD' with value 'hushä"),
            (None, "property 'SESSION_PASSWORD' has a value that the client does not take"),
        ),
        (ClientError(facts(61, "Unknown Queue"), 61), (61, "Unknown Queue")),
        (ClientError(facts(71, "Spool Over Quota")), (71, "Spool Over Quota")),
        (ClientError(facts(10, "")), (10, "SOLCLIENT_SUBCODE_SOMETHING")),
        (ClientError(TEXT), (76, "Permission Not Allowed")),
        (ClientError("plain\nwords"), (None, "plain words")),
        (ClientError(ClientError(facts(61, "Unknown Queue"))), (61, "Unknown Queue")),
        (ClientError(""), (None, "ClientError")),
        (ClientError(facts(0, "OK"), 0), (0, "the client gives no reason, as when the connection is lost meanwhile")),
        (
            ClientError(facts(7, "property 'SESSION_PASSWORD' with value 'hu'sh\n' of string length 129 exceeds"), 7),
            (7, "property 'SESSION_PASSWORD' has a value that the client does not take"),
        ),
        (
            ClientError(facts(7, "property 'SESSION_OAUTH2_ACCESS_TOKEN' has invalid value 'hush"), 7),
            (7, "property 'SESSION_OAUTH2_ACCESS_TOKEN' has a value that the client does not take"),
        ),
        (AuthenticationError(f"wrong password {facts(19, 'Unauthorized')}"), (None, "wrong password")),
    ],
)
def test_number_and_words_are_found_in_every_shape(error: Exception, expected: tuple[int | None, str]) -> None:
    assert subcode_and_reason(error) == expected


def test_a_lost_connection_has_no_reason_that_says_ok() -> None:
    """The client did say so of one when its broker was killed."""
    assert reason_of_text("OK").startswith("the client gives no reason")
    assert reason_of_text("Peer closed socket") == "Peer closed socket"


@pytest.mark.parametrize(
    ("subcode", "permanent"),
    [
        (Subcode.LOGIN_FAILURE, True),
        (Subcode.MSG_VPN_NOT_ALLOWED, True),
        (Subcode.MSG_VPN_UNAVAILABLE, True),
        (Subcode.UNTRUSTED_CERTIFICATE, True),
        (Subcode.COMMUNICATION_ERROR, False),
        (Subcode.TIMEOUT, False),
        (89, False),  # an unresolved host: name services fail too
    ],
)
def test_a_refused_connection_is_permanent_and_an_outage_is_not(subcode: int, permanent: bool) -> None:
    failure = connect_failed("tcp://here:1", ClientError(facts(subcode, "why"), subcode))
    assert (failure.permanent, failure.host, failure.reason) == (permanent, "tcp://here:1", "why")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "SSL error: 'unexpected eof'(0x0a000126) in connect for session '(c19,s1)_default', connection 'client",
            "no TLS connection: SSL error: 'unexpected eof'(0x0a000126)",
        ),
        (
            "Session '(c1,s1)_default': Bad SMF version of 0 when x=0/0in session state 'CONNECTING': client name 'a'",
            "Bad SMF version of 0 when x=0/0",
        ),
    ],
)
def test_what_the_client_says_of_its_own_state_is_left_out(said: str, reason: str) -> None:
    subcode = Subcode.COMMUNICATION_ERROR
    assert connect_failed("tcp://here:1", ClientError(facts(subcode, said), subcode)).reason == reason


def test_a_refused_name_is_no_matter_of_credentials() -> None:
    """Whoever had given one that no broker takes was asked for credentials."""
    subcode = Subcode.CLIENT_NAME_INVALID
    failure = connect_failed("tcp://here:1", ClientError(facts(subcode, "Client Name Parse Error"), subcode))
    assert failure.expected == "a client name that the broker takes, in connection.client_name"


def test_a_wrong_password_is_permanent_though_it_has_no_number() -> None:
    assert connect_failed("tcp://here:1", AuthenticationError("wrong password")).permanent


@pytest.mark.parametrize(
    ("subcode", "permanent"),
    [
        (Subcode.UNKNOWN_QUEUE_NAME, True),
        (Subcode.PERMISSION_NOT_ALLOWED, True),
        (Subcode.CLIENT_ACL_DENIED, True),
        (63, False),  # the most binds are there: one may leave
        (72, False),  # the queue is shut down: it may be opened
        (Subcode.TIMEOUT, False),
        (None, False),
    ],
)
def test_a_refused_bind_is_permanent_where_waiting_does_not_help(subcode: int | None, permanent: bool) -> None:
    failure = bind_failed("orders/0", ClientError("why", subcode))
    assert (failure.permanent, failure.queue) == (permanent, "orders/0")


@pytest.mark.parametrize(
    ("subcode", "refused"),
    [(30, True), (71, True), (69, True), (28, True), (Subcode.TIMEOUT, False), (Subcode.COMMUNICATION_ERROR, False)],
)
def test_a_message_is_refused_only_when_the_broker_said_so(subcode: int, refused: bool) -> None:
    assert isinstance(publish_failed("t", ClientError(facts(subcode, "why"))), PublishRefused) is refused


def test_a_message_whose_publisher_ended_may_be_spooled() -> None:
    failure = publish_failed("t", ClientError("Publisher Terminated can not get receipt"))
    assert not isinstance(failure, PublishRefused)
    assert failure.retriable


def test_another_request_says_what_could_not_be_done() -> None:
    assert str(request_failed("provision orders/0", ClientError(TEXT))) == (
        "cannot provision orders/0: Permission Not Allowed"
    )
