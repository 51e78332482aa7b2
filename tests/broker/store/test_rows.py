"""What administrators leave in a store: with all else that one request changes, or not at all."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import orjson
import pytest

from lbg_runtime.broker.semp.app import make_app
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.broker.store.store import Store
from lbg_runtime.model.errors import BrokerRefusal, StoreFailed, UserError

VPN = "/SEMP/v2/config/msgVpns/default"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@contextmanager
def left_at_once(path: Path) -> Iterator[BrokerServer]:
    """A broker that dies at the end: what it has not written by then is gone."""
    store = Store.open(path)
    try:
        yield BrokerServer(store=store)
    finally:
        store.close()


def http(server: BrokerServer) -> httpx.AsyncClient:
    app = make_app(server.engine, server.carry_out, kept=server, write_down=server.write_down)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://broker", auth=("admin", "admin"))


def writes_of(store: Store) -> list[str]:
    """Grows by one with every write that is complete."""
    writes: list[str] = []
    store._connection.set_trace_callback(lambda statement: writes.append(statement) if statement == "COMMIT" else None)
    return writes


async def test_a_request_that_changes_several_rows_is_one_write(path):
    with left_at_once(path) as server:
        writes = writes_of(server._store)
        async with http(server) as client:
            # The first request of all makes the objects that every VPN has.
            assert len((await client.get(f"{VPN}/aclProfiles")).json()["data"]) == 1
            assert len(writes) == 1
            await client.post(f"{VPN}/aclProfiles", json={"aclProfileName": "narrow"})
            exception = {"publishTopicExceptionSyntax": "smf", "publishTopicException": "a/>"}
            await client.post(f"{VPN}/aclProfiles/narrow/publishTopicExceptions", json=exception)
            assert len(writes) == 3
            assert (await client.delete(f"{VPN}/aclProfiles/narrow")).status_code == 200
        assert len(writes) == 4
    with left_at_once(path) as server:
        assert {kind for kind, _, _ in server.rows()} == {"client profile", "ACL profile", "client username"}


async def test_a_deleted_profile_of_a_disabled_username_keeps_no_broker_from_starting(path):
    with left_at_once(path) as server:
        async with http(server) as client:
            await client.post(f"{VPN}/clientProfiles", json={"clientProfileName": "old"})
            ann = {"clientUsername": "ann", "clientProfileName": "old", "enabled": False}
            await client.post(f"{VPN}/clientUsernames", json=ann)
            assert (await client.delete(f"{VPN}/clientProfiles/old")).status_code == 200
    with left_at_once(path) as server:
        async with http(server) as client:
            with pytest.raises(BrokerRefusal, match="Client Username Is Shutdown"):
                server.engine.connect("default", "ann", "", "ann")
            enabled = await client.patch(f"{VPN}/clientUsernames/ann", json={"enabled": True})
            assert enabled.json()["meta"]["error"]["description"] == "clientProfileName old does not exist"
            other = {"enabled": True, "clientProfileName": "default"}
            assert (await client.patch(f"{VPN}/clientUsernames/ann", json=other)).status_code == 200
        server.engine.connect("default", "ann", "", "ann")


@pytest.mark.parametrize("there_count", [1, 2])
async def test_a_store_with_only_some_of_the_objects_that_every_vpn_has_gets_the_others(path, there_count):
    with left_at_once(path) as server:
        async with http(server) as client:
            await client.get(f"{VPN}/aclProfiles")
        every = server.rows()
        for kind, keys, _ in every[there_count:]:
            server.put_row(kind, keys, None)
        server.write_down()
    for _ in range(2):
        with left_at_once(path) as server:
            async with http(server) as client:
                assert (await client.get(f"{VPN}/clientUsernames/default")).status_code == 200
            assert server.rows() == every


async def test_a_client_profile_of_an_older_version_has_what_that_one_did_not_know(path):
    with left_at_once(path) as server:
        async with http(server) as client:
            await client.post(f"{VPN}/clientProfiles", json={"clientProfileName": "old", "elidingDelay": 5})
        kind, keys, body = server.rows()[-1]
        row = orjson.loads(body)
        del row["tcpKeepaliveCount"]
        server.put_row(kind, keys, orjson.dumps(row))
        server.write_down()
    with left_at_once(path) as server:
        async with http(server) as client:
            seen = (await client.get(f"{VPN}/clientProfiles/old")).json()["data"]
    assert (seen["tcpKeepaliveCount"], seen["elidingDelay"]) == (5, 5)


async def test_what_has_no_effect_on_a_vpn_comes_back_too(path):
    with left_at_once(path) as server:
        async with http(server) as client:
            assert (await client.patch(VPN, json={"maxEndpointCount": 5})).status_code == 200
    with left_at_once(path) as server:
        async with http(server) as client:
            assert (await client.get(VPN)).json()["data"]["maxEndpointCount"] == 5


@pytest.mark.parametrize("damaged", [b"{", b"{}", b"[]"])
async def test_a_damaged_row_is_refused_in_one_line(path, damaged):
    with left_at_once(path) as server:
        async with http(server) as client:
            await client.get(f"{VPN}/aclProfiles")
        server.put_row(*server.rows()[-1][:2], damaged)
        server.write_down()
    with left_at_once(path) as server:
        with pytest.raises(UserError, match=r"it is damaged: .*; expected an undamaged store") as refused:
            http(server)
        assert "\n" not in str(refused.value)


def test_a_store_that_has_lost_its_rows_is_refused_in_one_line(path):
    with left_at_once(path):
        pass
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE row")
    with left_at_once(path) as server, pytest.raises(UserError, match=f"^store {path}: no such table: row; expected"):
        http(server)


async def test_what_administrators_say_and_cannot_be_kept_ends_the_broker(path):
    with left_at_once(path) as server:
        async with http(server) as client:
            await client.get(f"{VPN}/aclProfiles")
            server._store._connection.execute("PRAGMA max_page_count = 1")
            answers = [
                (await client.post(f"{VPN}/aclProfiles", json={"aclProfileName": f"{number}"})).status_code
                for number in range(200)
            ]
        assert answers[-1] == 503
        with pytest.raises(StoreFailed):
            await server.failed()
    with left_at_once(path) as server:
        assert len([kind for kind, _, _ in server.rows() if kind == "ACL profile"]) == 1 + answers.count(200)


async def test_of_a_vpn_only_what_administrators_changed_is_kept(path):
    async def ways_to_log_in(client: httpx.AsyncClient) -> list[object]:
        row = (await client.get(VPN)).json()["data"]
        return [row[f"authentication{name}"] for name in ("BasicType", "BasicEnabled", "ClientCertEnabled")]

    with left_at_once(path) as server:
        # As `--client-ca` has it: a broker that is started without it is not to refuse everybody.
        accounts = server.engine.administration.accounts("default")
        accounts.takes_certificates, accounts.takes_passwords = True, False
        async with http(server) as client:
            await client.patch(VPN, json={"authenticationBasicType": "internal"})
            assert await ways_to_log_in(client) == ["internal", False, True]
    with left_at_once(path) as server:
        async with http(server) as client:
            assert await ways_to_log_in(client) == ["internal", True, False]
            await client.patch(VPN, json={"authenticationBasicEnabled": False})
    with left_at_once(path) as server:
        async with http(server) as client:
            assert await ways_to_log_in(client) == ["internal", False, False]
