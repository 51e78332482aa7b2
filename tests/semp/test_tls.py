"""The administrator's client and HTTPS: who cannot prove who it is gets no password and no token."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from lbg_runtime.admin.account import open_semp
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.errors import ConfigError, SempRefused, SempUnreachable
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.client import SempAccount, SempClient
from tests.certificates import Certificates

pytestmark = pytest.mark.real_time

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 4, "queue_count": 2}
VPN = ("msgVpns", "default")


def serve(certificates: Certificates, *names: str, **kind: bool) -> SempServer:
    return SempServer(Engine(), lambda _: None, port=0, tls=certificates.broker(*names, **kind).context())


def settings_for(server: SempServer, **semp: Any) -> Settings:
    section = {"url": server.url, "password": "admin", **semp}
    return parse_settings({"group": GROUP, "semp": section}, "test", {})


@pytest.mark.parametrize("store", ["trust_store", "authority_file"])
async def test_the_broker_is_asked_over_tls(certificates: Certificates, store: str) -> None:
    tls = {"trust_store": str(getattr(certificates, store))}
    async with serve(certificates) as server:
        assert server.url.startswith("https://127.0.0.1:")
        async with open_semp(settings_for(server, tls=tls)) as client:
            found = await client.get(SempApi.CONFIG, VPN)
            assert found.text("msgVpnName") == "default"


async def test_without_a_trust_store_the_authorities_of_the_system_count(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that its administrator has added; OpenSSL finds them by this name."""
    async with serve(certificates) as server:
        async with open_semp(settings_for(server)) as client:
            with pytest.raises(SempUnreachable, match="its certificate is refused"):
                await client.get(SempApi.CONFIG, VPN)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority_file))
        async with open_semp(settings_for(server)) as client:
            await client.get(SempApi.CONFIG, VPN)


async def test_a_mounted_secret_is_a_trust_store(certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "ca.crt").write_bytes(certificates.authority_file.read_bytes())
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "ca.crt").symlink_to("..data/ca.crt")
    async with serve(certificates) as server:
        async with open_semp(settings_for(server, tls={"trust_store": str(tmp_path)})) as client:
            await client.get(SempApi.CONFIG, VPN)
        (tmp_path / "ca.crt").unlink()
        with pytest.raises(ConfigError, match=rf"semp\.tls\.trust_store: {tmp_path}: no certificate in it; "):
            open_semp(settings_for(server, tls={"trust_store": str(tmp_path)}))


@pytest.mark.parametrize(
    ("names", "kind", "reason"),
    [
        ((), {"expired": True}, "certificate has expired"),
        ((), {"stranger": True}, "unable to get local issuer certificate"),
        (("broker.example",), {}, "IP address mismatch"),
    ],
    ids=["expired", "another authority", "another host"],
)
async def test_a_broker_that_cannot_prove_who_it_is_is_told_nothing(
    certificates: Certificates, names: tuple[str, ...], kind: dict[str, bool], reason: str
) -> None:
    tls = {"trust_store": str(certificates.trust_store)}
    async with serve(certificates, *names, **kind) as server:
        async with open_semp(settings_for(server, tls=tls)) as client:
            with pytest.raises(SempUnreachable) as caught:
                await client.get(SempApi.CONFIG, VPN)
        text = str(caught.value)
        assert text.startswith(f"no SEMP answer from {server.url}: its certificate is refused: ")
        assert reason in text
        assert text.endswith("names this host, and comes from an authority in semp.tls.trust_store")
        async with open_semp(settings_for(server, tls={"verify": False})) as client:
            await client.get(SempApi.CONFIG, VPN)


async def test_an_authority_that_comes_into_the_trust_store_later_counts_for_a_client_that_has_been_refused(
    certificates: Certificates, tmp_path: Path
) -> None:
    """The live page and its autoscaler had no numbers any more until it was started anew."""
    # Of its own, as the other tests are not to trust it.
    store = tmp_path
    certificates.authority.cert_pem.write_to_path(str(store / "authority.pem"))
    async with (
        serve(certificates, stranger=True) as server,
        open_semp(settings_for(server, tls={"trust_store": str(store)})) as client,
    ):
        (store / "half.pem").write_bytes(certificates.stranger.cert_pem.bytes()[:99])
        for _ in range(2):
            with pytest.raises(SempUnreachable, match="unable to get local issuer certificate"):
                await client.get(SempApi.CONFIG, VPN)
        certificates.stranger.cert_pem.write_to_path(str(store / "half.pem"))
        with pytest.raises(SempUnreachable):
            await client.get(SempApi.CONFIG, VPN)
        await client.get(SempApi.CONFIG, VPN)


@pytest.mark.parametrize(
    ("scheme", "is_tls", "reason"),
    [
        ("http", True, "Server disconnected without sending a response"),
        ("https", False, "no TLS connection: WRONG_VERSION_NUMBER"),
        ("http", None, "Connection refused"),
    ],
    ids=["without TLS to TLS", "TLS to none", "nobody there"],
)
async def test_an_address_that_is_wrong_is_named_with_what_was_expected(
    certificates: Certificates, scheme: str, is_tls: bool | None, reason: str
) -> None:
    tls = certificates.broker().context() if is_tls else None
    async with SempServer(Engine(), lambda _: None, port=0, tls=tls) as server:
        url = f"{scheme}://127.0.0.1:{1 if is_tls is None else server.port}"
        async with SempClient(SempAccount(url, "admin", "admin"), tls=False) as client:
            with pytest.raises(SempUnreachable) as caught:
                await client.get(SempApi.CONFIG, VPN)
    expected = "the broker's management API at semp.url, by https:// if it speaks TLS and by http:// if it does not"
    assert str(caught.value) == f"no SEMP answer from {url}: {reason}; expected {expected}"


async def test_a_token_takes_the_place_of_name_and_password() -> None:
    shown: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        shown.append(request.headers["authorization"])
        return httpx.Response(401)

    account = SempAccount("https://broker:943", "admin", "hush", token="of-mine")
    assert "of-mine" not in repr(account)
    async with SempClient(account, transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(SempRefused, match="token refused"):
            await client.get(SempApi.CONFIG, VPN)
    assert shown == ["Bearer of-mine"]


@pytest.mark.parametrize(
    ("semp", "words"),
    [
        ({"url": "https://b:1", "token": "t", "password": "p"}, "semp.token: given with a password; expected one of"),
        ({"url": "http://b:1", "token": "t"}, "semp.token: given for an address without TLS; expected https://"),
        ({"url": "https://b:1", "token": "two words"}, "semp.token: a value that is not shown; expected visible ASCII"),
    ],
)
def test_a_token_that_would_not_stay_one_is_refused(semp: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings({"group": GROUP, "semp": semp}, "test", {})
    assert words in str(caught.value)
    assert "two words" not in str(caught.value)


def test_a_token_comes_from_a_file(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("of-mine\n")
    semp = {"url": "https://b:1", "token": f"file:{tmp_path}/token"}
    settings = parse_settings({"group": GROUP, "semp": semp}, "test", {})
    assert settings.semp is not None
    assert settings.semp.token is not None
    assert settings.semp.token.get_secret_value() == "of-mine"
    assert "of-mine" not in repr(settings)
