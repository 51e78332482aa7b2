"""Settings of the session with the broker: its address, the client's name, and how both sides prove who they are."""

import re
from enum import Enum
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from lbg_runtime.config.broker_names import (
    LARGEST_PASSWORD_BYTES,
    LARGEST_USERNAME_BYTES,
    LARGEST_VPN_BYTES,
    given_client_name,
)
from lbg_runtime.config.fields import (
    Host,
    Secret,
    Section,
    SettingProblem,
    Text,
    no_longer_than,
    printable_text,
    split_hosts,
)

_TLS_SCHEMES = ("tcps://", "wss://", "https://")

ClientUsername = Annotated[Text, AfterValidator(printable_text), AfterValidator(no_longer_than(LARGEST_USERNAME_BYTES))]
# The client would quote a longer one in its refusal.
ClientPassword = Annotated[Secret, AfterValidator(no_longer_than(LARGEST_PASSWORD_BYTES))]


MOST_HOSTS = 16
"""A longer list is refused by the client when it is to connect."""

_JSON_WEB_TOKEN = re.compile(r"\s*eyJ[\w-]{10,}(\.[\w-]*){2,4}\s*")


def _path_of_secret(value: object) -> object:
    """The path of a file with a key or a token. One of these in its place is refused without being shown."""
    if isinstance(value, str) and ("-----BEGIN " in value or _JSON_WEB_TOKEN.fullmatch(value)):
        raise SettingProblem((), "what the file is to hold", "the path of the file")
    return value


SecretPath = Annotated[Text, BeforeValidator(_path_of_secret)]


class TransportKind(Enum):
    """Where the broker runs."""

    EMBEDDED = "embedded"
    """A development broker inside this process, listening on `connection.host`."""
    SOLACE = "solace"
    """The broker at `connection.host`."""


class TlsSettings(Section, frozen=True):
    """How the other side of a `tcps://` or `https://` address proves its identity: the broker, or an application."""

    trust_store: Text | None = None
    """Directory with the certificates of trusted authorities, in PEM. `connection` needs it for verification; `semp`
    and `sidecar` also take a single file, and use the system's authorities without one."""
    verify: bool = True
    """Whether the certificate must come from one of these authorities, be in date, and name the host. If `false`,
    anybody on the way there can pose as the other side."""


LARGEST_KEY_PASSWORD_BYTES = 1_024
"""The limit of the TLS library."""


class ClientCertificateSettings(Section, frozen=True):
    """A certificate with which this client logs in, instead of a password. Its common name is the username."""

    certificate: SecretPath
    """PEM file with the certificate, and with those between it and its authority."""
    key: SecretPath | None = None
    """PEM file with the private key. Not needed if the key is in the file of the certificate."""
    key_password: Annotated[Secret, AfterValidator(no_longer_than(LARGEST_KEY_PASSWORD_BYTES))] = SecretStr("")
    """Password of the key, if it is encrypted; at most 1,024 bytes."""


class OAuthSettings(Section, frozen=True):
    """An access token with which this client logs in, instead of a password."""

    token_file: SecretPath
    """File with the token. Something else keeps it fresh: it is read again when it changes, and at each connection."""
    issuer: Text | None = None
    """Tells the broker who issued the token, if the broker cannot see that from the token."""


class ConnectionSettings(Section, frozen=True):
    """The session with the broker."""

    transport: TransportKind = TransportKind.EMBEDDED
    host: Annotated[tuple[Host, ...], BeforeValidator(split_hosts), Field(min_length=1)] = ("tcp://127.0.0.1:55555",)
    """Addresses of the broker, in order of preference. With `transport: embedded`, the one address to listen on."""
    vpn: Annotated[Text, AfterValidator(no_longer_than(LARGEST_VPN_BYTES))] = "default"
    """Message VPN of the broker; at most 32 bytes."""
    username: ClientUsername = "default"
    """Client username. If the group has one of its own, the one that its queues belong to."""
    password: ClientPassword = SecretStr("")
    """Password of the client username; at most 128 bytes."""
    client_name: Annotated[Text, AfterValidator(given_client_name)] | None = None
    """Client name, unique on the broker; at most 159 bytes. Without it, it is made from group, member, host and
    process."""
    tls: TlsSettings = TlsSettings()
    client_certificate: ClientCertificateSettings | None = None
    oauth: OAuthSettings | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is used with every host."""
        return all(host.startswith(_TLS_SCHEMES) for host in self.host)

    @model_validator(mode="after")
    def _one_proof_of_who_it_is(self) -> Self:
        given = [name for name in ("client_certificate", "oauth") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SettingProblem(("oauth",), "given with client_certificate", "one of the two")
        if given and self.password.get_secret_value():
            raise SettingProblem((given[0],), "given with a password", "one of the two")
        if given and not self.is_encrypted:
            # A token that is shown to whoever listens there is no longer a secret.
            expected = "tcps:// in front of every connection.host"
            raise SettingProblem((given[0],), "given for a host without TLS", expected)
        return self

    @model_validator(mode="after")
    def _verifying_takes_authorities(self) -> Self:
        named = any(host.startswith(_TLS_SCHEMES) for host in self.host)
        if self.transport is TransportKind.SOLACE and named and self.tls.verify and self.tls.trust_store is None:
            expected = "a directory with the certificates of trusted authorities"
            raise SettingProblem(("tls", "trust_store"), "not set, for a host with TLS", expected)
        return self

    @model_validator(mode="after")
    def _embedded_listens_on_one_address(self) -> Self:
        if self.transport is TransportKind.EMBEDDED and len(self.host) > 1:
            raise SettingProblem(
                ("host",), f"{len(self.host)} hosts", "one address to listen on, as transport is embedded"
            )
        if len(self.host) > MOST_HOSTS:
            raise SettingProblem(("host",), f"{len(self.host)} hosts", f"at most {MOST_HOSTS}")
        return self
