"""The settings of a session with PubSub+; imports nothing of the client."""

from dataclasses import dataclass, field

from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.transport.solace.credentials import ClientCertificate, TokenFile

WIDEST_WINDOW = 255
NARROWEST_WINDOW = 32
"""The narrowest window of a flow. A narrower one costs too many acknowledgements: 1.7 frames per message with a window
of 1, 0.34 with 8."""

KEEP_ALIVE_INTERVAL_MS = 3_000
KEEP_ALIVE_LIMIT = 3
"""After so many unanswered keep-alives, the connection counts as lost."""

TOKEN_PROPERTY = "solace.messaging.authentication.oauth2.access-token"  # noqa: S105  # the name, not a token


@dataclass(frozen=True, slots=True)
class SolaceSettings:
    """How one transport connects. The password appears in no representation."""

    hosts: tuple[str, ...]
    """The addresses, tried in order; each `tcp://HOST:PORT`, or `tcps://HOST:PORT` for TLS."""
    client_name: str
    """Unique among the clients of the message VPN: a second connection with the same name ends the first."""
    vpn: str = "default"
    username: str = "default"
    password: str = field(default="", repr=False)
    client_certificate: ClientCertificate | None = None
    """If set, the name and password are not sent."""
    token_file: TokenFile | None = None
    """If set, the name and password are not sent."""
    connect_timeout_ms: int = 10_000
    """For each host. When the transport is opened, each host is tried once."""
    reconnect_wait_ms: int = 1_000
    """The time between two attempts to reconnect, which never end. At most 60 000."""
    reconnects: bool = True
    """False: the first lost connection ends the session; for a client that one of the same name may have replaced."""
    trust_store_path: str | None = None
    """Directory with the certificates of trusted authorities, for TLS."""
    validate_certificate: bool = True
    client_path: ClientPathChoice = ClientPathChoice.AUTO
    max_in_flight: int | None = None
    """The number of deliveries at which a flow's intake is closed, if known."""
    carries_traces: bool = False
    """Whether the vendor's trace context of a received message is put among its properties, and the context among the
    properties of a message to be published is also written in the vendor's form."""

    @property
    def flow_window(self) -> int:
        """How many messages may be in transit on a flow; so many still come after its intake has been closed.

        Half of the number that closes it. While the intake is closed, the client sends a frame for every second message
        that comes (docs/protocol.md), and only the window bounds how many are held beyond the cap.
        """
        if self.max_in_flight is None:
            return WIDEST_WINDOW
        return min(WIDEST_WINDOW, max(NARROWEST_WINDOW, self.max_in_flight // 2))

    @property
    def host_list(self) -> str:
        """The hosts as one string, for the client and for messages to the user."""
        return ",".join(self.hosts)

    def properties(self, token: str = "") -> dict[str, str | int | bool]:
        """These settings under the client's own names; `token` is the one to present if there is a token file."""
        properties: dict[str, str | int | bool] = {
            "solace.messaging.transport.host": self.host_list,
            "solace.messaging.service.vpn-name": self.vpn,
            "solace.messaging.client.name": self.client_name,
            **self._authentication(token),
            "solace.messaging.transport.connection-attempts-timeout": self.connect_timeout_ms,
            "solace.messaging.transport.connection-retries": 0,
            "solace.messaging.transport.reconnection-attempts": -1 if self.reconnects else 0,
            "solace.messaging.transport.reconnection-attempts-wait-interval": self.reconnect_wait_ms,
            "solace.messaging.transport.keep-alive-interval": KEEP_ALIVE_INTERVAL_MS,
            "solace.messaging.transport.keep-alive-without-response-limit": KEEP_ALIVE_LIMIT,
            "solace.messaging.tls.cert-validated": self.validate_certificate,
            "solace.messaging.tls.cert-reject-expired": self.validate_certificate,
            "solace.messaging.tls.cert-validate-servername": self.validate_certificate,
        }
        if self.trust_store_path is not None:
            properties["solace.messaging.tls.trust-store-path"] = self.trust_store_path
        return properties

    def _authentication(self, token: str) -> dict[str, str]:
        prefix = "solace.messaging.authentication"
        if self.client_certificate is not None:
            shown = self.client_certificate
            properties = {
                f"{prefix}.scheme": "AUTHENTICATION_SCHEME_CLIENT_CERTIFICATE",
                f"{prefix}.client-cert.file": shown.certificate,
                f"{prefix}.client-cert.private-key-file": shown.key,
            }
            if shown.key_password:
                properties[f"{prefix}.client-cert.private-key-password"] = shown.key_password
            return properties
        if self.token_file is not None:
            properties = {f"{prefix}.scheme": "AUTHENTICATION_SCHEME_OAUTH2", TOKEN_PROPERTY: token}
            if self.token_file.issuer is not None:
                properties[f"{prefix}.oauth2.issuer-identifier"] = self.token_file.issuer
            return properties
        return {
            f"{prefix}.scheme": "AUTHENTICATION_SCHEME_BASIC",
            f"{prefix}.basic.username": self.username,
            f"{prefix}.basic.password": self.password,
        }
