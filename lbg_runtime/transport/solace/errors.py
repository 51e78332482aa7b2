"""From what the client raises to the project's errors; the only place that knows the client's numbers."""

import re
from collections.abc import Mapping
from enum import IntEnum

from lbg_runtime.model.errors import BindFailed, ConnectFailed, PublishFailed, PublishRefused, TransportError

CUT_TEXT = "text must not contain NUL: the client library would truncate it"
"""Why a message is refused, on both paths."""


class Subcode(IntEnum):
    """The client's reasons that mean something here."""

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


_PERMANENT = frozenset(Subcode) - {
    Subcode.TIMEOUT,
    Subcode.KEEP_ALIVE_FAILURE,
    Subcode.SESSION_NOT_ESTABLISHED,
    Subcode.COMMUNICATION_ERROR,
}

_FATE_UNKNOWN = frozenset(Subcode) - _PERMANENT
"""The connection failed, not the message."""

_SUBSCRIPTION_REFUSALS = frozenset({23, 25, 26, 31, 68, 80})
"""Already present, invalid, of another reason, too many, not allowed, not for others: what a broker says of one."""

_NOTHING_THERE = "SOLCLIENT_SUBCODE_TRANSACTION_FAILURE"
"""With transactions the client gives the name of its number."""

_BROKER_CERTIFICATE = (
    "a certificate of the broker that is in date, names this host, and comes from an authority in "
    "connection.tls.trust_store"
)
_EXPECTED: Mapping[int, str] = {
    Subcode.FAILED_LOADING_TRUSTSTORE: "a directory with certificates in connection.tls.trust_store",
    Subcode.UNTRUSTED_CERTIFICATE: _BROKER_CERTIFICATE,
    Subcode.UNTRUSTED_COMMONNAME: _BROKER_CERTIFICATE,
    Subcode.CERTIFICATE_DATE_INVALID: _BROKER_CERTIFICATE,
    Subcode.FAILED_LOADING_CERTIFICATE_AND_KEY: "files that belong together in connection.client_certificate",
    Subcode.BASIC_AUTHENTICATION_IS_SHUTDOWN: "connection.client_certificate or connection.oauth, no password",
}
_TLS_EXPECTED = "a broker that speaks TLS there, and trusts connection.client_certificate if there is one"

_SESSION_NAME = re.compile(r"^Session '[^']*': ")
_SECRET = re.compile(r"('\w*(?:PASSWORD|TOKEN)\w*') (?:with|has invalid) value '.*", re.DOTALL)
"""What the client says of a secret that it does not take, up to its end: a secret may hold quotes, and be cut off."""
_TEXT_SUBCODE = re.compile(r"Error Info Sub code: \[(\d+)\]")
_FACTS_REASON = re.compile(r"'error_info_contents': [\"'](.+)[\"']\}$", re.DOTALL)
_TEXT_REASON = re.compile(r"Error: \[(.*?)\]", re.DOTALL)


def subcode_and_reason(error: BaseException) -> tuple[int | None, str]:
    """The client's number, where there is one, and one line of words, out of the shapes its exceptions have.

    No secret is in it.
    """
    subcode = getattr(error, "sub_code", None)
    content = error.args[0] if error.args else ""
    if isinstance(content, BaseException):
        return subcode_and_reason(content)
    if isinstance(error, UnicodeDecodeError):
        # An error's text, which ends within a character.
        content = error.object.decode(errors="ignore")
    if isinstance(content, dict):
        subcode = subcode if subcode is not None else content.get("error_info_sub_code")
        content = content.get("error_info_contents") or content.get("sub_code") or content
    text = str(content)
    if subcode is None and (found := _TEXT_SUBCODE.search(text)):
        subcode = int(found[1])
    if found := _TEXT_REASON.search(text):
        text = found[1]
    # Some texts end in the dictionary that they sum up, which says more.
    text, _, facts = text.partition(" {'")
    if subcode is not None and (found := _FACTS_REASON.search(facts)):
        text = found[1]
    text = _SECRET.sub(r"\1 has a value that the client does not take", text)
    return subcode, " ".join(text.split()) or type(error).__name__


def connect_failed(host: str, error: BaseException) -> ConnectFailed:
    """Why no session could be made."""
    subcode, reason = subcode_and_reason(error)
    # The exception for a wrong password is the one that carries no number.
    permanent = subcode in _PERMANENT or type(error).__name__ == "AuthenticationError"
    if subcode == Subcode.COMMUNICATION_ERROR and "SSL" in reason:
        return ConnectFailed(host, f"no TLS connection: {reason}", expected=_TLS_EXPECTED)
    expected = None if subcode is None else _EXPECTED.get(subcode)
    return ConnectFailed(host, _SESSION_NAME.sub("", reason), permanent=permanent, expected=expected)


def bind_failed(queue: str, error: BaseException) -> BindFailed:
    """Why a flow could not be bound."""
    subcode, reason = subcode_and_reason(error)
    return BindFailed(queue, reason, permanent=subcode in _PERMANENT)


def publish_failed(topic: str, error: BaseException) -> PublishFailed:
    """Why a message was not confirmed: refused where the broker answered so, else its fate is unknown."""
    subcode, reason = subcode_and_reason(error)
    if not subcode or subcode in _FATE_UNKNOWN:
        return PublishFailed(topic, reason)
    return PublishRefused(topic, reason)


def is_commit_refused(error: BaseException) -> bool:
    """Whether the broker has rolled a transaction back, so that nothing of it was published.

    Not where its failure names no reason: after a broken connection the client commits once more what may have been
    committed before, and is told that there is nothing.
    """
    return type(error).__name__ == "TransactionRollbackError" and getattr(error, "sub_code", None) != _NOTHING_THERE


def is_subscription_refused(error: BaseException) -> bool:
    """Whether it is the broker that refused a subscription: neither the connection nor the client itself."""
    return subcode_and_reason(error)[0] in _SUBSCRIPTION_REFUSALS


def request_failed(what: str, error: BaseException) -> TransportError:
    """Why another request to the broker failed; `what` completes the sentence `cannot ...`."""
    return TransportError(f"cannot {what}: {subcode_and_reason(error)[1]}")
