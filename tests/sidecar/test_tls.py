"""An application at an `https` address: one that cannot prove who it is gets no event and no token."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lbg_runtime.config.connection_settings import TlsSettings
from lbg_runtime.config.sidecar_settings import SidecarSettings
from lbg_runtime.config.trust import trust
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.sidecar.application import ApplicationUnreachable, HttpApplication
from tests.certificates import Certificates

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def serving(certificates: Certificates, *names: str, **kind: bool) -> AsyncIterator[tuple[str, list[str]]]:
    """The address of an application with such a certificate, and the tokens that it has been shown."""
    tokens: list[str] = []

    async def take(request: web.Request) -> web.Response:
        tokens.append(request.headers["dapr-api-token"])
        return web.Response()

    server = web.Server(take)
    runner = web.ServerRunner(server)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificates.broker(*names, **kind).context())
        await site.start()
        yield f"https://127.0.0.1:{runner.addresses[0][1]}", tokens
    finally:
        await runner.cleanup()


async def post(address: str, **tls: Any) -> int:
    settings = SidecarSettings.model_validate({"application": address, "application_token": "s3cret", "tls": tls})
    client = HttpApplication(address, settings, 5_000)
    try:
        return (await client.post("/orders", {}, b"")).status
    finally:
        await client.close()


@pytest.mark.parametrize("store", ["trust_store", "authority_file"])
async def test_an_application_with_a_certificate_of_an_authority_in_the_settings_is_served(
    certificates: Certificates, store: str
) -> None:
    async with serving(certificates) as (address, tokens):
        assert await post(address, trust_store=str(getattr(certificates, store))) == 200
    assert tokens == ["s3cret"]


@pytest.mark.parametrize(
    ("names", "kind", "has_store", "reason"),
    [
        ((), {}, False, "unable to get local issuer certificate"),
        ((), {"stranger": True}, True, "unable to get local issuer certificate"),
        ((), {"expired": True}, True, "certificate has expired"),
        (("application.example",), {}, True, "IP address mismatch"),
    ],
    ids=["no store", "another authority", "expired", "another host"],
)
async def test_an_application_that_cannot_prove_who_it_is_is_told_nothing(
    certificates: Certificates, names: tuple[str, ...], kind: dict[str, bool], has_store: bool, reason: str
) -> None:
    tls = {"trust_store": str(certificates.trust_store)} if has_store else {}
    async with serving(certificates, *names, **kind) as (address, tokens):
        with pytest.raises(ApplicationUnreachable, match=reason):
            await post(address, **tls)
        assert tokens == []
        assert await post(address, verify=False) == 200


async def test_an_application_whose_authority_comes_into_the_trust_store_later_is_served_from_then_on(
    certificates: Certificates, tmp_path: Path
) -> None:
    # Of its own, as the other tests are not to trust it.
    store = tmp_path
    certificates.authority.cert_pem.write_to_path(str(store / "authority.pem"))
    async with serving(certificates, stranger=True) as (address, tokens):
        tls = {"trust_store": str(store)}
        settings = SidecarSettings.model_validate({"application": address, "application_token": "s3cret", "tls": tls})
        client = HttpApplication(address, settings, 5_000)
        try:
            (store / "half.pem").write_bytes(certificates.stranger.cert_pem.bytes()[:99])
            for _ in range(2):
                with pytest.raises(ApplicationUnreachable, match="unable to get local issuer certificate"):
                    await client.post("/orders", {}, b"")
            certificates.stranger.cert_pem.write_to_path(str(store / "half.pem"))
            with pytest.raises(ApplicationUnreachable):
                await client.post("/orders", {}, b"")
            assert (await client.post("/orders", {}, b"")).status == 200
        finally:
            await client.close()
    assert tokens == ["s3cret"]


async def test_a_trust_store_is_read_again_once_for_all_that_were_refused_together_and_for_nobody_who_is_not_there(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read on the member's loop, which an application that is away would keep busy."""
    reads: list[str] = []

    def counted(settings: TlsSettings, section: str) -> ssl.SSLContext | bool:
        reads.append(section)
        return trust(settings, section)

    monkeypatch.setattr("lbg_runtime.sidecar.application.trust", counted)
    async with serving(certificates, stranger=True) as (address, tokens):
        settings = SidecarSettings.model_validate(
            {"application": address, "tls": {"trust_store": str(certificates.authority_file)}}
        )
        client = HttpApplication(address, settings, 5_000)
        ends = await asyncio.gather(*(client.post("/orders", {}, b"") for _ in range(5)), return_exceptions=True)
    assert all("certificate" in str(end) for end in ends)
    assert reads == ["sidecar.tls"] * 2, "at the start, and then for all five"
    with pytest.raises(ApplicationUnreachable, match="refused"):
        await client.post("/orders", {}, b"")
    await client.close()
    assert (len(reads), tokens) == (2, [])


async def test_authorities_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"sidecar\.tls\.trust_store: {tmp_path}: no certificate in it; expected a "):
        await post("https://127.0.0.1:1", trust_store=str(tmp_path))
