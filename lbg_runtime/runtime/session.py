"""Opens the session with the broker that the settings ask for; if that is `embedded`, starts the broker as well."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import structlog

from lbg_runtime.config.connection_settings import ConnectionSettings, TransportKind
from lbg_runtime.config.listen_address import is_encodable
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import BrokerRefusal, ConfigError, ConnectFailed, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.transport.base import Browser, Connection, Messenger, Transport

if TYPE_CHECKING:
    from lbg_runtime.broker.server.server import BrokerServer
    from lbg_runtime.transport.solace.credentials import ClientCertificate, TokenFile

_log = structlog.get_logger(__name__)

DEFAULT_SMF_PORT = 55555

_TO_LISTEN_ON = re.compile(r"(?:tcp://)?(?:(?P<name>[^:/\[\]]+)|\[(?P<number>[^/\[\]]+)\])(?::(?P<port>[0-9]{1,5}))?")
"""An address for an embedded broker. It needs a name, as without one it would be every address of the machine; an
address of IPv6 is in brackets."""

_REACHABLE = "a broker that can be reached at its port for clients, by tcps:// if that speaks TLS and by tcp:// if not"


class Session(Transport, Messenger, Browser, Connection, Protocol):
    """What a member needs from a transport."""


@asynccontextmanager
async def open_session(
    settings: ConnectionSettings,
    client_name: str,
    client_path: ClientPathChoice = ClientPathChoice.AUTO,
    *,
    reconnects: bool = True,
    max_in_flight: int | None = None,
    carries_traces: bool = False,
    embedded_group: GroupShape | None = None,
) -> AsyncIterator[Session]:
    """Connect, and close at the end. Without `reconnects`, a lost connection is final.

    `max_in_flight`: the number of deliveries at which a flow's intake will be closed, if known. `carries_traces`: trace
    contexts of messages are read and written in the vendor's form, too. `embedded_group`: a group whose queues an
    embedded broker has from the moment when it can be reached.

    Raises `ConfigError` if nobody answers, the port is taken, or a file named in the settings is unusable.
    """
    # Imported here, because the client starts a thread when it is imported.
    from lbg_runtime.transport.solace.settings import SolaceSettings
    from lbg_runtime.transport.solace.transport import SolaceTransport

    certificate, token_file = checked_credentials(settings)
    async with _broker(settings, embedded_group) as hosts:
        solace = SolaceSettings(
            hosts=hosts,
            client_name=settings.client_name or client_name,
            vpn=settings.vpn,
            username=settings.username,
            password=settings.password.get_secret_value(),
            # None without verification: the client would refuse a directory that does not exist, and with an empty one
            # it shows no certificate of its own either.
            trust_store_path=settings.tls.trust_store if settings.tls.verify else None,
            validate_certificate=settings.tls.verify,
            client_certificate=certificate,
            token_file=token_file,
            client_path=client_path,
            reconnects=reconnects,
            max_in_flight=max_in_flight,
            carries_traces=carries_traces,
        )
        session = SolaceTransport(solace)
        try:
            await session.open()
        except ConnectFailed as error:
            usual = f"credentials that the broker accepts{_shown(settings)}" if error.permanent else _REACHABLE
            raise ConfigError("connection.host", f"{error.host}: {error.reason}", error.expected or usual) from None
        try:
            yield session
        finally:
            await session.close()


def _shown(settings: ConnectionSettings) -> str:
    """Names the credentials for errors: settings can have several usernames, and the client speaks of one even if it
    has shown none."""
    if settings.client_certificate is not None:
        return ": the certificate in connection.client_certificate"
    if settings.oauth is not None:
        return ": the access token in connection.oauth.token_file"
    return f": those of username {settings.username}"


def checked_credentials(settings: ConnectionSettings) -> "tuple[ClientCertificate | None, TokenFile | None]":
    """The credentials of a session besides a password; raises `ConfigError` if a file named in the settings is
    unusable."""
    # Imported here, as the library for certificates is needed only for a session.
    from lbg_runtime.transport.solace.credentials import ClientCertificate, TokenFile, check_trust_store

    certificate, token_file = None, None
    if (shown := settings.client_certificate) is not None:
        key_password = shown.key_password.get_secret_value()
        certificate = ClientCertificate(shown.certificate, shown.key or shown.certificate, key_password)
        certificate.check()
    if settings.oauth is not None:
        token_file = TokenFile(settings.oauth.token_file, settings.oauth.issuer)
        token_file.read()
    if settings.tls.verify and settings.tls.trust_store is not None:
        check_trust_store(settings.tls.trust_store)
    return certificate, token_file


@asynccontextmanager
async def _broker(settings: ConnectionSettings, group: GroupShape | None) -> AsyncIterator[tuple[str, ...]]:
    """The broker's addresses; an embedded one runs as long as this context."""
    if settings.transport is TransportKind.SOLACE:
        yield settings.host
        return
    # Imported here, because a member of a group on PubSub+ does not need a broker.
    from lbg_runtime.broker.server.server import BrokerServer

    host, port = embedded_address(settings.host[0])
    server = BrokerServer(host, port, tells_clients=False)
    if group is not None:
        _make_queues(server, group)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(server)
        except UserError as error:
            # Usually another member's embedded broker has the port, and this member wants to join its group.
            expected = "a free port, or connection.transport: solace (LBG_TRANSPORT=solace) to join who listens there"
            raise ConfigError("connection.host", f"{settings.host[0]}: {error.found}", expected) from None
        _log.info("embedded_broker_started", host=server.url)
        yield (server.url,)


def _make_queues(server: "BrokerServer", group: GroupShape) -> None:
    # Publishers that waited for the port come before the member does, and what they send before a queue exists is
    # confirmed and lost. A refusal can be ignored here: the member asks for the same queues, and the broker tells it.
    with suppress(BrokerRefusal):
        for index in reversed(range(group.queue_count)):
            server.create_queue(group.queue_name(index), group.subscriptions(index))


def embedded_address(host: str) -> tuple[str, int]:
    """Host and port that an embedded broker listens on; raises `ConfigError`."""
    found = _TO_LISTEN_ON.fullmatch(host)
    port = DEFAULT_SMF_PORT if found is None or found["port"] is None else int(found["port"])
    if found is None or port > 65_535 or not is_encodable(found["name"] or found["number"]):
        raise ConfigError("connection.host", repr(host), "tcp://HOST:PORT to listen on, as transport is embedded")
    return found["name"] or found["number"], port
