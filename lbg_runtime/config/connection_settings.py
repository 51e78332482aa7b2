"""The session with the broker, as settings have it: where, in what name, and how both sides show who they are."""

from enum import Enum
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from lbg_runtime.config.broker_names import (
    LARGEST_CLIENT_NAME_BYTES,
    LARGEST_PASSWORD_BYTES,
    LARGEST_USERNAME_BYTES,
    LARGEST_VPN_BYTES,
)
from lbg_runtime.config.fields import Host, Secret, Section, SettingProblem, Text, no_longer_than, split_hosts

ClientUsername = Annotated[Text, AfterValidator(no_longer_than(LARGEST_USERNAME_BYTES))]
# Of a longer one the client would say what it is.
ClientPassword = Annotated[Secret, AfterValidator(no_longer_than(LARGEST_PASSWORD_BYTES))]


class TransportKind(Enum):
    """Where the broker is."""

    EMBEDDED = "embedded"
    """A development broker inside this process, listening on `connection.host`."""
    SOLACE = "solace"
    """The broker at `connection.host`."""


class TlsSettings(Section):
    """How the broker of a `tcps://` or `https://` address proves who it is."""

    trust_store: Text | None = None
    """Directory with the certificates of trusted authorities in PEM. `connection` needs it to verify; `semp` takes a
    single file too, and the system's authorities without it."""
    verify: bool = True
    """Whether the certificate must come from one of them, be in date, and name the host. Off, anybody in between can
    be the broker."""


LARGEST_KEY_PASSWORD_BYTES = 1_024
"""The library for TLS takes no longer one."""


class ClientCertificateSettings(Section):
    """By what this client shows who it is, instead of a password; its username is the common name in there."""

    certificate: Text
    """File in PEM: the certificate, and those between it and its authority."""
    key: Text | None = None
    """File in PEM; None where the key is in the same file."""
    key_password: Annotated[Secret, AfterValidator(no_longer_than(LARGEST_KEY_PASSWORD_BYTES))] = SecretStr("")
    """Of a key that is encrypted; at most 1,024 bytes."""


class OAuthSettings(Section):
    """By what this client shows who it is, instead of a password."""

    token_file: Text
    """File with an access token, kept fresh by others: it is read again when it changes and at each connection."""
    issuer: Text | None = None
    """Tells the broker whose token it is, where it cannot see it from the token."""


class ConnectionSettings(Section):
    """The session with the broker."""

    transport: TransportKind = TransportKind.EMBEDDED
    host: Annotated[tuple[Host, ...], BeforeValidator(split_hosts), Field(min_length=1)] = ("tcp://127.0.0.1:55555",)
    """Where the broker listens, in order of preference; for `embedded` the one address to listen on."""
    vpn: Annotated[Text, AfterValidator(no_longer_than(LARGEST_VPN_BYTES))] = "default"
    """Message VPN of the broker; at most 32 bytes."""
    username: ClientUsername = "default"
    """Client username; the one that the group's queues belong to, where the group has its own."""
    password: ClientPassword = SecretStr("")
    """Of the client username; at most 128 bytes."""
    client_name: Annotated[Text, AfterValidator(no_longer_than(LARGEST_CLIENT_NAME_BYTES))] | None = None
    """Unique on the broker, at most 159 bytes; made from group, member, host and process where it is not given."""
    tls: TlsSettings = TlsSettings()
    client_certificate: ClientCertificateSettings | None = None
    oauth: OAuthSettings | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether every host is spoken to by TLS."""
        return all(host.startswith(("tcps://", "wss://", "https://")) for host in self.host)

    @model_validator(mode="after")
    def _one_proof_of_who_it_is(self) -> Self:
        given = [name for name in ("client_certificate", "oauth") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SettingProblem(("oauth",), "given with client_certificate", "one of the two")
        if given and self.password.get_secret_value():
            raise SettingProblem((given[0],), "given with a password", "one of the two")
        if given and not self.is_encrypted:
            # Shown to whoever listens there, a token is no secret any more.
            expected = "tcps:// in front of every connection.host"
            raise SettingProblem((given[0],), "given for a host without TLS", expected)
        return self

    @model_validator(mode="after")
    def _verifying_takes_authorities(self) -> Self:
        named = any(host.startswith(("tcps://", "wss://", "https://")) for host in self.host)
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
        return self
