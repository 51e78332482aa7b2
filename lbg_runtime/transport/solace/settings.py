"""What a session with PubSub+ needs to know; imports nothing of the client."""

from dataclasses import dataclass, field

from lbg_runtime.config.settings import ReceivePathChoice


@dataclass(frozen=True, slots=True)
class SolaceSettings:
    """Connection of one transport. The password appears in no representation."""

    hosts: tuple[str, ...]
    """Tried in order, each `tcp://HOST:PORT` or `tcps://HOST:PORT` for TLS."""
    client_name: str
    """Unique among the clients of the message VPN: a second connection of a name ends the first."""
    vpn: str = "default"
    username: str = "default"
    password: str = field(default="", repr=False)
    connect_timeout_ms: int = 10_000
    """For each host; the first connection is tried once."""
    reconnect_wait_ms: int = 1_000
    """Between attempts to come back, which never end. At most 60 000."""
    keep_alive_interval_ms: int = 3_000
    keep_alive_limit: int = 3
    """Unanswered keep-alives after which the connection counts as lost."""
    trust_store_path: str | None = None
    """Directory with the certificates of trusted authorities, for TLS."""
    validate_certificate: bool = True
    receive_path: ReceivePathChoice = ReceivePathChoice.AUTO

    @property
    def host_list(self) -> str:
        """The hosts as one string, for the client and for messages to the user."""
        return ",".join(self.hosts)

    def properties(self) -> dict[str, str | int | bool]:
        """The client's own names for all of this."""
        properties: dict[str, str | int | bool] = {
            "solace.messaging.transport.host": self.host_list,
            "solace.messaging.service.vpn-name": self.vpn,
            "solace.messaging.client.name": self.client_name,
            "solace.messaging.authentication.scheme": "AUTHENTICATION_SCHEME_BASIC",
            "solace.messaging.authentication.basic.username": self.username,
            "solace.messaging.authentication.basic.password": self.password,
            "solace.messaging.transport.connection-attempts-timeout": self.connect_timeout_ms,
            "solace.messaging.transport.connection-retries": 0,
            "solace.messaging.transport.reconnection-attempts": -1,
            "solace.messaging.transport.reconnection-attempts-wait-interval": self.reconnect_wait_ms,
            "solace.messaging.transport.keep-alive-interval": self.keep_alive_interval_ms,
            "solace.messaging.transport.keep-alive-without-response-limit": self.keep_alive_limit,
            "solace.messaging.tls.cert-validated": self.validate_certificate,
        }
        if self.trust_store_path is not None:
            properties["solace.messaging.tls.trust-store-path"] = self.trust_store_path
        return properties
