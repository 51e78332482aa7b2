"""How a member comes to its sidecar, and what is refused."""

import asyncio
import json
from contextlib import nullcontext

import httpx
import pytest

from lbg_runtime import App, Handlers
from lbg_runtime.admin.stored import Difference
from lbg_runtime.cli.run import run
from lbg_runtime.config.load import parse_settings
from lbg_runtime.core.roles import CountedPlace
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.sidecar.sidecar import sidecar_app

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 2}


def settings(**sections):
    return parse_settings({"group": GROUP, **sections}, "test", {})


def test_an_app_of_handlers_does_not_pass_over_a_sidecar_in_silence():
    handlers = Handlers()

    @handlers.handler(">")
    async def handle(message):
        pass

    with pytest.raises(ConfigError, match="sidecar: set for an App of handlers"):
        App(handlers, settings(sidecar={}))


def test_a_sidecar_needs_its_section():
    with pytest.raises(ConfigError, match="sidecar: not set"):
        sidecar_app(settings())


def test_a_sidecar_is_the_member_that_it_is_said_to_be():
    counted = settings(sidecar={}, membership={"mode": "static"})
    assert sidecar_app(counted, member_index=1, member_count=2).membership.place == CountedPlace(1, 2)
    assert sidecar_app(settings(sidecar={}), member_id="a").membership.member == "a"


def test_the_time_of_an_attempt_is_the_sidecars_to_keep():
    [handler] = sidecar_app(settings(sidecar={}, failure={"timeout": "5s"})).handlers
    assert handler.failure.given.timeout_ms > 24 * 3_600_000


def test_several_members_cannot_share_one_application_and_one_port(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"group": GROUP, "sidecar": {}}))
    with pytest.raises(UserError, match="--processes: 2 with a sidecar"):
        run(config=config, processes=2, json=False, member_index=None, member_count=None)


class Watch:
    """Looks at stored settings that are what a test says."""

    def __init__(self):
        self.found = ()

    async def run(self):
        await asyncio.Event().wait()


@pytest.fixture
def served(monkeypatch):
    """What a sidecar would serve at its address, once it does."""
    found = []
    monkeypatch.setattr("lbg_runtime.sidecar.sidecar.SidecarServer", lambda app, _: nullcontext(found.append(app)))
    return found


def asking(served):
    transport = httpx.ASGITransport(served[0])
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:3500")


async def test_what_is_published_without_a_key_has_that_of_the_groups_rule(trial, served):
    group = {**GROUP, "provision": "create_missing", "key": "json:/customer"}
    async with trial.running(trial.app(group=group, sidecar={"listen": "127.0.0.1:3500"})):
        await trial.until(lambda: bool(served))
        async with asking(served) as client:
            answer = await client.post("/v1/publish/a", json={"customer": "ann"})
            assert (answer.status_code, answer.json()["key"]) == (200, "ann")
            assert (await client.post("/v1/publish/a", json={})).status_code == 400


async def test_nothing_is_published_while_the_group_hashes_otherwise_on_the_broker(trial, monkeypatch, served):
    """Keys went elsewhere than those of publishers that had started since."""
    watch = Watch()
    monkeypatch.setattr("lbg_runtime.runtime.app.watch_of", lambda *_: watch)
    async with trial.running(trial.app(sidecar={"listen": "127.0.0.1:3500"})):
        await trial.until(lambda: bool(served))
        async with asking(served) as client:
            assert (await client.post("/v1/publish/a?key=k")).status_code == 200
            watch.found = (Difference("group.hash_count", "8", "16"),)
            answer = await client.post("/v1/publish/a?key=k")
            assert (answer.status_code, answer.json()["fate"]) == (503, "refused")
            assert "the group on the broker now has 16" in answer.json()["error"]
            watch.found = ()
            assert (await client.post("/v1/publish/a?key=k")).status_code == 200
