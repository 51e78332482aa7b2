"""A client's credentials other than a password: files that somebody else maintains."""

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from lbg_runtime.config.regular_file import read_regular_file
from lbg_runtime.model.errors import ConfigError

LARGEST_TOKEN_BYTES = 65_000
"""The client refuses tokens a few hundred bytes longer, and quotes them in its error."""

_SENDABLE = re.compile("[!-~]+")


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate and its key in PEM files, which the client's library reads at each new session. The password
    appears in no representation."""

    certificate: str
    key: str
    key_password: str = field(default="", repr=False)

    def check(self) -> None:
        """Raise `ConfigError` if the files cannot be used, with the reason; the client would not give one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        password = self.key_password
        for name, path in (("certificate", self.certificate), ("key", self.key)):
            _content(f"connection.client_certificate.{name}", Path(path), "a file in PEM")
        try:
            # Given as a function: without a password, the library would ask for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: password)
        except (OSError, ssl.SSLError) as error:
            found = f"{self.certificate}, {self.key}: {getattr(error, 'reason', None) or 'cannot be used'}"
            expected = "a certificate in PEM, its own key, and the key's password if it has one"
            raise ConfigError("connection.client_certificate", found, expected) from None


@dataclass(frozen=True, slots=True)
class TokenFile:
    """An OAuth access token in a file that is replaced when the token is."""

    path: str
    issuer: str | None = None

    def read(self) -> str:
        """Return the present token; raises `ConfigError`, which does not show the token."""
        where = "connection.oauth.token_file"
        text = _content(where, Path(self.path), "a file with an access token")
        token = text.decode("ascii", errors="replace").strip()
        if not _SENDABLE.fullmatch(token) or len(token) > LARGEST_TOKEN_BYTES:
            found = "is empty" if not token else "holds something else"
            expected = f"an access token of at most {LARGEST_TOKEN_BYTES} visible ASCII characters"
            raise ConfigError(where, f"{self.path} {found}", expected)
        return token


def check_trust_store(path: str) -> None:
    """Raise `ConfigError` unless this is a directory with certificates; the client would not say what is wrong."""
    where, expected = "connection.tls.trust_store", "a directory with certificates of authorities in PEM"
    try:
        files = sorted(each for each in Path(path).iterdir() if each.is_file())
    except OSError as error:
        raise ConfigError(where, f"{path}: {error.strerror}", expected) from None
    if not any(_is_authority(each) for each in files):
        raise ConfigError(where, f"{path}: no certificate in it", expected)


def _is_authority(file: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except (OSError, ssl.SSLError):
        return False
    return True


def _content(where: str, path: Path, expected: str) -> bytes:
    try:
        return read_regular_file(path)
    except OSError as error:
        raise ConfigError(where, f"{path}: {error.strerror}", expected) from None
