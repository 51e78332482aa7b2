"""Turns the client's exceptions into the project's errors; the only place that knows the client's numbers."""

import re
from collections.abc import Mapping
from enum import IntEnum

from lbg_runtime.model.errors import (
    BindFailed,
    ConnectFailed,
    PublishFailed,
    PublishRefused,
    RequestRefused,
    SubscribeFailed,
    TransportError,
)


class Subcode(IntEnum):
    """The client's subcodes that matter here."""

    TIMEOUT = 10
    KEEP_ALIVE_FAILURE = 11
    SESSION_NOT_ESTABLISHED = 12
    COMMUNICATION_ERROR = 14
    LOGIN_FAILURE = 19
    MSG_VPN_NOT_ALLOWED = 45
    CLIENT_NAME_INVALID = 46
    MSG_VPN_UNAVAILABLE = 47
    CLIENT_USERNAME_IS_SHUTDOWN = 48
    DYNAMIC_CLIENTS_NOT_ALLOWED = 49
    UNKNOWN_QUEUE_NAME = 61
    CLIENT_ACL_DENIED = 67
    PERMISSION_NOT_ALLOWED = 76
    FLOW_ACTIVE_FLOW_INDICATION_UNSUPPORTED = 88
    FAILED_LOADING_TRUSTSTORE = 98
    UNTRUSTED_CERTIFICATE = 99
    UNTRUSTED_COMMONNAME = 100
    CERTIFICATE_DATE_INVALID = 101
    FAILED_LOADING_CERTIFICATE_AND_KEY = 102
    BASIC_AUTHENTICATION_IS_SHUTDOWN = 103


_FATE_UNKNOWN = frozenset(
    {Subcode.TIMEOUT, Subcode.KEEP_ALIVE_FAILURE, Subcode.SESSION_NOT_ESTABLISHED, Subcode.COMMUNICATION_ERROR}
)
"""Subcodes that say that the connection failed, not the message."""

_PERMANENT = frozenset(Subcode) - _FATE_UNKNOWN

_SUBSCRIPTION_REFUSALS = frozenset({23, 25, 26, 31, 68, 80})
"""A broker's refusals of a subscription: already present, invalid, another reason, too many, not allowed, not on behalf
of others.
"""

_REFUSALS_OF_A_QUEUE = frozenset({63, 72, Subcode.PERMISSION_NOT_ALLOWED, 159})
"""A broker's refusals to browse a queue that exists: too many flows, egress is off, not allowed there, partitions."""

_NULL_POINTER = 2
"""The subcode if a function was given nothing to work on, as happens at times in the library's own clean-up."""

_NOTHING_THERE = "SOLCLIENT_SUBCODE_TRANSACTION_FAILURE"
"""For transactions, the client gives the name of the subcode instead of its number."""

_BROKER_CERTIFICATE = (
    "a certificate of the broker that is in date, names this host, and comes from an authority in "
    "connection.tls.trust_store"
)
_VPN = "a message VPN of this broker in connection.vpn, which is enabled there"
_ACTIVE = "of a redundant pair, the one that is active, once one of them is"
_REPLICATION_IS_STANDBY = 95
_SERVICE_UNAVAILABLE = 115
_EXPECTED: Mapping[int, str] = {
    Subcode.MSG_VPN_NOT_ALLOWED: _VPN,
    Subcode.MSG_VPN_UNAVAILABLE: f"{_VPN}; {_ACTIVE}",
    _REPLICATION_IS_STANDBY: f"a broker in service: {_ACTIVE}",
    _SERVICE_UNAVAILABLE: f"a broker in service: {_ACTIVE}",
    Subcode.CLIENT_NAME_INVALID: "a client name that the broker takes, in connection.client_name",
    Subcode.CLIENT_USERNAME_IS_SHUTDOWN: "a client username that is enabled on the broker",
    Subcode.CLIENT_ACL_DENIED: "an ACL profile of the client username that lets it connect from here",
    Subcode.FAILED_LOADING_TRUSTSTORE: "a directory with certificates in connection.tls.trust_store",
    Subcode.UNTRUSTED_CERTIFICATE: _BROKER_CERTIFICATE,
    Subcode.UNTRUSTED_COMMONNAME: _BROKER_CERTIFICATE,
    Subcode.CERTIFICATE_DATE_INVALID: _BROKER_CERTIFICATE,
    Subcode.FAILED_LOADING_CERTIFICATE_AND_KEY: "files that belong together in connection.client_certificate",
    Subcode.BASIC_AUTHENTICATION_IS_SHUTDOWN: "connection.client_certificate or connection.oauth, no password",
}
_TLS_EXPECTED = (
    "a broker that speaks TLS there, and takes connection.client_certificate if there is one: in date, and from an "
    "authority that the broker trusts"
)

_NO_REASON = "the client gives no reason, as when the connection is lost meanwhile"
"""The client's own text for this is `OK`."""

_SESSION_NAME = re.compile(r"^Session '[^']*': ")
_OWN_STATE = re.compile(r" ?in (?:connect for session|session state) '.*", re.DOTALL)
"""What the client says about its own state after the reason; usually cut off."""
_SECRET = re.compile(r"('\w*(?:PASSWORD|TOKEN)\w*') (?:with|has invalid) value '.*", re.DOTALL)
"""The client's complaint about a secret that it does not take, up to the end of the text: a secret may contain quotes,
and may be cut off.
"""
_TEXT_SUBCODE = re.compile(r"Error Info Sub code: \[(\d+)\]")
_FACTS_REASON = re.compile(r"'error_info_contents': [\"'](.+)[\"']\}$", re.DOTALL)
_TEXT_REASON = re.compile(r"Error: \[(.*?)\]", re.DOTALL)


def subcode_and_reason(error: BaseException) -> tuple[int | None, str]:
    """The client's subcode, if there is one, and one line of text, extracted from the shapes its exceptions have.

    It contains no secret.
    """
    subcode = getattr(error, "sub_code", None)
    content = error.args[0] if error.args else ""
    if isinstance(content, BaseException):
        return subcode_and_reason(content)
    if isinstance(error, UnicodeDecodeError):
        # This is the text of another error, cut within a character.
        content = error.object.decode(errors="ignore")
    if isinstance(content, dict):
        subcode = subcode if subcode is not None else content.get("error_info_sub_code")
        content = content.get("error_info_contents") or content.get("sub_code") or content
    text = str(content)
    if subcode is None and (found := _TEXT_SUBCODE.search(text)):
        subcode = int(found[1])
    if found := _TEXT_REASON.search(text):
        text = found[1]
    # Some texts end with a dictionary of which they are the summary, and which says more.
    text, _, facts = text.partition(" {'")
    if subcode is not None and (found := _FACTS_REASON.search(facts)):
        text = found[1]
    text = _SECRET.sub(r"\1 has a value that the client does not take", text)
    return subcode, reason_of_text(" ".join(text.split()) or type(error).__name__)


def reason_of_text(text: str) -> str:
    """The client's text for an error or an event; where it says `OK`, it has no reason."""
    return _NO_REASON if text == "OK" else text


def connect_failed(host: str, error: BaseException) -> ConnectFailed:
    """Why no session could be opened."""
    subcode, reason = subcode_and_reason(error)
    reason = _OWN_STATE.sub("", _SESSION_NAME.sub("", reason))
    if "," in host:
        # The client does not say what was wrong with the others.
        reason = f"at the last host: {reason}"
    # Only the exception for a wrong password has no number.
    permanent = subcode in _PERMANENT or type(error).__name__ == "AuthenticationError"
    if subcode == Subcode.COMMUNICATION_ERROR and "SSL" in reason:
        return ConnectFailed(host, f"no TLS connection: {reason}", expected=_TLS_EXPECTED)
    expected = None if subcode is None else _EXPECTED.get(subcode)
    return ConnectFailed(host, reason, permanent=permanent, expected=expected)


def bind_failed(queue: str, error: BaseException) -> BindFailed:
    """Why a flow could not be bound."""
    subcode, reason = subcode_and_reason(error)
    return BindFailed(queue, reason, permanent=subcode in _PERMANENT)


def is_of_clean_up(error: BaseException) -> bool:
    """Whether the error of a bind comes from the library's own clean-up after it, and says nothing about the bind."""
    return subcode_and_reason(error)[0] == _NULL_POINTER


def has_queue_refused(queue: str, error: BaseException) -> bool:
    """Whether the queue of a failed bind exists; raises `TransportError` if the error does not tell."""
    subcode, _ = subcode_and_reason(error)
    if subcode == Subcode.UNKNOWN_QUEUE_NAME:
        return False
    if subcode in _REFUSALS_OF_A_QUEUE:
        return True
    raise request_failed(f"look for {queue}", error) from error


def publish_failed(topic: str, error: BaseException) -> PublishFailed:
    """Why a message was not confirmed: a refusal if the broker said so, otherwise the message's fate is unknown."""
    subcode, reason = subcode_and_reason(error)
    if not subcode or subcode in _FATE_UNKNOWN:
        return PublishFailed(topic, reason)
    return PublishRefused(topic, reason)


def is_commit_refused(error: BaseException) -> bool:
    """Whether the broker has rolled a transaction back, so that none of it was published.

    False if the failure names no reason: after a broken connection, the client repeats a commit, and is told that there
    is no such transaction, although the commit may have succeeded before.
    """
    return type(error).__name__ == "TransactionRollbackError" and getattr(error, "sub_code", None) != _NOTHING_THERE


def is_subscription_refused(error: BaseException) -> bool:
    """Whether the broker refused the subscription, rather than that the connection or the client failed."""
    return subcode_and_reason(error)[0] in _SUBSCRIPTION_REFUSALS


def subscribe_failed(subscription: str, error: BaseException) -> SubscribeFailed:
    """Why direct messages could not be subscribed to."""
    return SubscribeFailed(subscription, subcode_and_reason(error)[1], permanent=is_subscription_refused(error))


def request_failed(what: str, error: BaseException) -> TransportError:
    """Why another request to the broker failed; `what` completes the sentence `cannot ...`."""
    subcode, reason = subcode_and_reason(error)
    if subcode and subcode not in _FATE_UNKNOWN:
        return RequestRefused(what, reason)
    return TransportError(f"cannot {what}: {reason}")
