"""The listener's TLS against a peer in the same process, without sockets."""

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.certificates import Certificates


def client_context(certificates: Certificates, certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.authority_file))
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> list[str]:
    """What the log says of it."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(down, up, server_hostname="localhost"),
        server.wrap_bio(up, down, server_side=True),
    ]
    with capture_logs() as logs:
        for _ in range(4):
            for side in sides:
                with suppress(ssl.SSLError):
                    side.do_handshake()
    return [line["reason"] for line in logs if line["event"] == "handshake_failed"]


def test_a_handshake_that_succeeds_leaves_no_line(certificates: Certificates) -> None:
    server = certificates.broker(clients=True).context()
    assert shake_hands(server, client_context(certificates, certificates.client("ann"))) == []
    assert shake_hands(server, client_context(certificates)) == []


@pytest.mark.parametrize(
    ("kind", "reason"),
    [({"expired": True}, "certificate has expired"), ({"stranger": True}, "unable to get local issuer certificate")],
    ids=["expired", "stranger"],
)
def test_a_certificate_that_is_not_accepted_leaves_a_line_with_the_reason(
    certificates: Certificates, kind: dict[str, bool], reason: str
) -> None:
    server = certificates.broker(clients=True).context()
    (told, *_) = shake_hands(server, client_context(certificates, certificates.client("bob", **kind)))
    assert told == reason


def test_a_client_that_does_not_trust_the_broker_leaves_a_line(certificates: Certificates) -> None:
    server = certificates.broker(stranger=True).context()
    (told, *_) = shake_hands(server, client_context(certificates))
    assert told == "TLSV1_ALERT_UNKNOWN_CA"


def test_what_is_no_tls_leaves_a_line(certificates: Certificates) -> None:
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    received.write(b"GET / HTTP/1.1\r\n\r\n")
    side = certificates.broker().context().wrap_bio(received, sent, server_side=True)
    with capture_logs() as logs, pytest.raises(ssl.SSLError):
        side.do_handshake()
    assert [line["reason"] for line in logs] == ["HTTP_REQUEST"]
