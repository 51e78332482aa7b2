"""Sessions over TLS with the official client: both sides show who they are, and whoever cannot is told in one line."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.broker.server.tls import TlsFiles
from lbg_runtime.config.connection_settings import ConnectionSettings
from lbg_runtime.core.flow.events import FlowDown
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.session import Session, open_session
from lbg_runtime.transport.solace.credentials import TokenFile
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.certificates import KEY_PASSWORD, Certificates
from tests.transport.solace.steps import eventually

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def session_at(
    server: BrokerServer, certificates: Certificates, name: str = "127.0.0.1", **connection: Any
) -> AsyncIterator[Session]:
    settings = ConnectionSettings.model_validate(
        {
            "transport": "solace",
            "host": f"tcps://{name}:{server.port}",
            "tls": {"trust_store": str(certificates.trust_store)},
            **connection,
        }
    )
    async with open_session(settings, "member-1") as session:
        yield session


async def refusal_of(server: BrokerServer, certificates: Certificates, **connection: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        async with session_at(server, certificates, **connection):
            pass
    text = str(caught.value)
    assert "\n" not in text
    assert server.client_names() == []
    return text


def usernames_of(server: BrokerServer) -> list[str]:
    administration = server.engine.administration
    return [administration.client("default", name).username for name in administration.client_names("default")]


async def test_messages_go_over_tls(certificates: Certificates) -> None:
    async with BrokerServer(port=0, tls=certificates.broker()) as server:
        server.create_queue("q", ["a/>"])
        assert server.url == f"tcps://127.0.0.1:{server.port}"
        async with session_at(server, certificates, "localhost", username="ann") as session:
            await session.send(Message("a/b", b"x" * 100_000))
            assert server.engine.queue_depth("default", QueueName("q")) == 1
            assert usernames_of(server) == ["ann"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ({"expired": True}, "certificate has expired"),
        ({"stranger": True}, "unable to get local issuer certificate"),
        ({"names": ("broker.example",)}, "IP address mismatch"),
    ],
    ids=["expired", "another authority", "another host"],
)
async def test_a_broker_that_cannot_prove_who_it_is_gets_no_password(
    certificates: Certificates, kind: dict[str, Any], reason: str
) -> None:
    names = kind.pop("names", ())
    async with BrokerServer(port=0, tls=certificates.broker(*names, **kind)) as server:
        text = await refusal_of(server, certificates, password="hush")
        assert text.startswith(f"connection.host: tcps://127.0.0.1:{server.port}: The peer certificate ")
        assert reason in text
        assert text.endswith(
            "expected a certificate of the broker that is in date, names this host, and comes from an authority in "
            "connection.tls.trust_store"
        )
        assert "hush" not in text


async def test_verification_can_be_switched_off_by_name_alone(certificates: Certificates) -> None:
    async with (
        BrokerServer(port=0, tls=certificates.broker("broker.example", stranger=True, expired=True)) as server,
        session_at(server, certificates, tls={"verify": False}),
    ):
        assert server.client_names() == ["member-1"]


@pytest.mark.parametrize("store", ["nowhere", "empty"])
async def test_where_verification_is_switched_off_it_does_not_matter_what_is_in_the_trust_store(
    certificates: Certificates, tmp_path: Path, store: str
) -> None:
    (tmp_path / "empty").mkdir()
    tls = {"verify": False, "trust_store": str(tmp_path / store)}
    shown = {"certificate": str(certificates.client("billing"))}
    async with (
        BrokerServer(port=0, tls=certificates.broker(clients=True)) as server,
        session_at(server, certificates, tls=tls, client_certificate=shown),
    ):
        assert usernames_of(server) == ["billing"]


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_client_certificate_is_a_username(certificates: Certificates, encrypted: bool) -> None:
    file = certificates.client("billing")
    shown: dict[str, object] = {"certificate": str(file)}
    if encrypted:
        shown |= {"key": str(certificates.encrypted_key(file)), "key_password": KEY_PASSWORD}
    async with (
        BrokerServer(port=0, tls=certificates.broker(clients=True)) as server,
        session_at(server, certificates, client_certificate=shown, username="somebody else"),
    ):
        assert usernames_of(server) == ["billing"]


async def test_who_lacks_a_certificate_that_the_broker_trusts_is_refused(certificates: Certificates) -> None:
    async with BrokerServer(port=0, tls=certificates.broker(clients=True)) as server:
        text = await refusal_of(server, certificates, username="billing", password="x")
        assert "Basic Authentication Is Shutdown; expected connection.client_certificate or connection.oauth" in text
        file = certificates.client("intruder", stranger=True)
        text = await refusal_of(server, certificates, client_certificate={"certificate": str(file)})
        assert "no TLS connection" in text
        assert text.endswith("if there is one: in date, and from an authority that the broker trusts")
    async with BrokerServer(port=0, tls=certificates.broker()) as server:
        # It was never asked for its certificate, and so it is nobody.
        text = await refusal_of(
            server, certificates, client_certificate={"certificate": str(certificates.client("ann"))}
        )
        assert text.endswith("credentials that the broker accepts: the certificate in connection.client_certificate")


async def test_of_several_hosts_the_last_one_is_meant(certificates: Certificates) -> None:
    """The client tells of no other: without that, the broker with a wrong name would seem to refuse connections."""
    async with BrokerServer(port=0, tls=certificates.broker("elsewhere.example")) as server:
        hosts = f"tcps://127.0.0.1:{server.port},tcps://127.0.0.1:1"
        text = await refusal_of(server, certificates, host=hosts)
        assert text.startswith(f"connection.host: {hosts}: at the last host: TCP connection failure")


async def test_a_vpn_that_is_not_there_is_no_matter_of_credentials(certificates: Certificates) -> None:
    async with BrokerServer(port=0, tls=certificates.broker()) as server:
        text = await refusal_of(server, certificates, vpn="nowhere")
        assert text.endswith(
            "Message VPN Not Allowed; expected a message VPN of this broker in connection.vpn, which is enabled there"
        )


async def test_tls_and_plain_do_not_meet(certificates: Certificates) -> None:
    async with BrokerServer(port=0) as server:
        assert "no TLS connection" in await refusal_of(server, certificates)
    async with BrokerServer(port=0, tls=certificates.broker()) as server:
        text = await refusal_of(server, certificates, host=f"tcp://127.0.0.1:{server.port}")
        assert text.endswith(
            "expected a broker that can be reached at its port for clients, "
            "by tcps:// if that speaks TLS and by tcp:// if not"
        )


@pytest.fixture
def odd_files(certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("text").write_text("no certificate and no token")
    Path("long").write_text("t" * 65_001)
    Path("nothing").write_text("\n")
    os.mkfifo("pipe")
    file = certificates.client("ann")
    Path("cert").write_bytes(file.read_bytes())
    Path("key").write_bytes(certificates.encrypted_key(file).read_bytes())


@pytest.mark.parametrize(
    ("connection", "where"),
    [
        ({"tls": {"trust_store": "nowhere"}}, "connection.tls.trust_store: nowhere: No such file"),
        ({"tls": {"trust_store": "empty"}}, "connection.tls.trust_store: empty: no certificate in it"),
        ({"client_certificate": {"certificate": "gone"}}, "connection.client_certificate.certificate: gone: No such"),
        ({"client_certificate": {"certificate": "text"}}, "connection.client_certificate: text, text: "),
        ({"client_certificate": {"certificate": "cert", "key": "key"}}, "connection.client_certificate: cert, key: "),
        ({"oauth": {"token_file": "gone"}}, "connection.oauth.token_file: gone: No such file"),
        # Nobody ever writes to it.
        ({"oauth": {"token_file": "pipe"}}, "connection.oauth.token_file: pipe: not a regular file"),
        ({"oauth": {"token_file": "nothing"}}, "connection.oauth.token_file: nothing is empty"),
        ({"oauth": {"token_file": "text"}}, "connection.oauth.token_file: text holds something else"),
        ({"oauth": {"token_file": "long"}}, "connection.oauth.token_file: long holds something else"),
    ],
)
@pytest.mark.usefixtures("odd_files")
async def test_files_of_no_use_are_named_before_anything_is_sent(
    certificates: Certificates, connection: dict[str, Any], where: str
) -> None:
    async with BrokerServer(port=0, tls=certificates.broker(clients=True)) as server:
        assert (await refusal_of(server, certificates, **connection)).startswith(where)


async def test_a_certificate_that_was_renewed_in_its_file_is_shown_after_an_outage(certificates: Certificates) -> None:
    file = certificates.client("billing")
    renewed = certificates.client("renewed").read_bytes()
    async with (
        BrokerServer(port=0, tls=certificates.broker(clients=True)) as server,
        session_at(server, certificates, client_certificate={"certificate": str(file)}),
    ):
        await asyncio.to_thread(file.write_bytes, renewed)
        server.faults.drop()
        await eventually(lambda: usernames_of(server) == ["renewed"])


# -- tokens


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first-token\n")
    return path


def oauth(path: Path) -> dict[str, Any]:
    return {"oauth": {"token_file": str(path), "issuer": "https://issuer.example"}}


def tokens_of(server: BrokerServer) -> dict[str, str]:
    return server.engine.administration.accounts("default").tokens


async def test_a_token_stands_for_a_username(certificates: Certificates, token_file: Path) -> None:
    async with BrokerServer(port=0, tls=certificates.broker()) as server:
        text = await refusal_of(server, certificates, **oauth(token_file))
        assert "first-token" not in text
        assert text.endswith("credentials that the broker accepts: the access token in connection.oauth.token_file")
        tokens_of(server)["first-token"] = "billing"
        async with session_at(server, certificates, **oauth(token_file)):
            assert usernames_of(server) == ["billing"]


@pytest.mark.parametrize("change_before_the_cut", [True, False], ids=["in time", "with the outage"])
async def test_a_token_that_was_replaced_is_shown_after_an_outage(
    certificates: Certificates,
    token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    change_before_the_cut: bool,
) -> None:
    monkeypatch.setattr("lbg_runtime.transport.solace.token_follower.LOOK_S", 0.02 if change_before_the_cut else 60)
    events: list[object] = []
    async with BrokerServer(port=0, tls=certificates.broker()) as server:
        server.create_queue("q", ["a/>"])
        tokens_of(server)["first-token"] = "billing"
        async with session_at(server, certificates, **oauth(token_file)) as session:
            assert isinstance(session, SolaceTransport)
            await session.bind(QueueName("q"), Epoch(1), events.append)
            await asyncio.to_thread(token_file.write_text, "second-token")
            if change_before_the_cut:
                await eventually(lambda: getattr(session._session, "token", "") == "second-token")
            tokens_of(server).clear()
            tokens_of(server)["second-token"] = "renewed"
            server.faults.drop()
            await eventually(lambda: usernames_of(server) == ["renewed"])
    if change_before_the_cut:
        # The client came back by itself: the handle is the same, and what it holds can still be settled.
        assert not [event for event in events if isinstance(event, FlowDown)]


async def test_a_new_session_shows_the_former_token_while_there_is_no_other(
    certificates: Certificates, token_file: Path
) -> None:
    async with BrokerServer(port=0, tls=certificates.broker()) as server:
        tokens_of(server)["first-token"] = "billing"
        async with session_at(server, certificates, **oauth(token_file)) as session:
            assert isinstance(session, SolaceTransport)
            former = session._session
            assert former is not None
            await asyncio.to_thread(token_file.write_text, "")
            session._replace(former, "for a test")
            await eventually(lambda: session.is_connected)
            assert session._session is not former
            assert usernames_of(server) == ["billing"]


class ServiceOfTokens:
    """Takes tokens, as the client's service object does."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def update_property(self, _: str, token: str) -> None:
        self.taken.append(token)


def test_a_token_file_in_which_something_is_wrong_leaves_the_former_token(token_file: Path) -> None:
    from lbg_runtime.transport.solace.session import SolaceSession

    service, source, unused = ServiceOfTokens(), TokenFile(str(token_file)), cast(Any, None)
    session = SolaceSession(service, unused, unused, "first-token")
    with capture_logs() as logged:
        for text, wrong in (("", "is empty"), ("no token", "holds something else"), ("first-token", None)):
            token_file.write_text(text)
            with pytest.raises(ConfigError, match=wrong) if wrong else nullcontext():
                session.follow_token(source)
            assert (session.token, service.taken) == ("first-token", [])
        for _ in range(2):
            token_file.write_text("second-token")
            session.follow_token(source)
    assert [each["event"] for each in logged] == ["token_renewed"]
    assert service.taken == ["second-token"]


def test_the_brokers_own_files_are_looked_at_before_it_listens(tmp_path: Path, certificates: Certificates) -> None:
    files = certificates.broker()
    key = certificates.encrypted_key(certificates.client("ann"))
    nothing = tmp_path / "nothing"
    nothing.write_text("")
    for wrong, words in (
        (TlsFiles(tmp_path / "gone", files.key), "--tls-cert, --tls-key: .*gone: No such file"),
        (TlsFiles(files.certificate, nothing), "--tls-cert, --tls-key"),
        (TlsFiles(files.certificate, key), "the key is encrypted"),
        (TlsFiles(files.certificate, files.key, nothing), "--client-ca"),
    ):
        with pytest.raises(UserError, match=words):
            wrong.context()
