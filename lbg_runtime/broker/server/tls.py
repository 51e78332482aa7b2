"""TLS of the development broker's listeners: the certificate it presents, and the authorities it trusts."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import structlog

from lbg_runtime.model.errors import UserError

HANDSHAKE_TIMEOUT_S = 10.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a listener."""

    certificate: Path
    """The broker's own certificate, followed by any intermediate ones."""
    key: Path
    """Not encrypted: the broker is for development, and asks for no password."""
    client_authorities: Path | None = None
    """Certificates of the authorities that may vouch for clients. If set, clients log in only by certificate or by
    token."""

    def context(self) -> ssl.SSLContext:
        """Make the TLS context; raises `UserError` for unusable files."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sslobject_class = _Watched
        try:
            # Without a password callback the library would ask for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ssl.SSLError, _Encrypted) as error:
            expected = "a certificate and its key, not encrypted, in PEM"
            raise UserError("--tls-cert, --tls-key", _reason(error, self.certificate, self.key), expected) from None
        if self.client_authorities is not None:
            try:
                context.load_verify_locations(self.client_authorities)
            except (OSError, ssl.SSLError) as error:
                reason = _reason(error, self.client_authorities)
                raise UserError("--client-ca", reason, "certificates of authorities in PEM") from None
            # Not required by TLS: a client without one is refused at login, with an answer that its library
            # understands.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def common_name(certificate: object) -> str | None:
    """The common name in a peer's certificate, as Python presents it; None if there is none."""
    if not isinstance(certificate, dict):
        return None
    names = (pair[1] for part in certificate.get("subject", ()) for pair in part if pair[0] == "commonName")
    return next(names, None)


class _Watched(ssl.SSLObject):
    """Tells why a handshake failed: the event loop closes such a connection without a word, and its client is not told
    why either."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error.reason or str(error)
            _log.warning("handshake_failed", reason=reason)
            raise


class _Encrypted(Exception):
    """The key is encrypted."""


def _no_password() -> str:
    raise _Encrypted("the key is encrypted")


def _reason(error: Exception, *files: Path) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        missing = next((file for file in files if not file.is_file()), files[0])
        return f"{missing}: {error.strerror or error}"
    names = ", ".join(map(str, files))
    return f"{names}: {getattr(error, 'reason', None) or error}"
