"""The page's server over a real socket: its routes, its feed, who may look, and its end."""

import asyncio
import http.client
import json
import socket
from contextlib import ExitStack
from dataclasses import replace

import pytest

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.dashboard import routes
from lbg_runtime.dashboard.routes import FILES
from lbg_runtime.dashboard.server import DashboardServer
from lbg_runtime.model.errors import UserError
from lbg_runtime.status import connections
from tests.patience import PATIENCE_S
from tests.status.asking import ask

pytestmark = pytest.mark.real_time

TOKEN = "a-token"
FACTS = ("/v1/feed", "/v1/why?key=k", "/v1/autoscale")


class FeedReader:
    """One viewer, on a connection of its own, read from a thread."""

    def __init__(self, port):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self._connection.request("GET", "/v1/feed")
        self.response = self._connection.getresponse()

    async def next(self):
        """The next event; None at the end."""
        return await asyncio.to_thread(self._next)

    async def until(self, reached):
        """Events until one of which this is so; that one."""
        while not reached(told := await self.next()):
            pass
        return told

    def _next(self):
        line = self.response.readline()
        if not line:
            return None
        assert line.startswith(b"data: ")
        assert self.response.readline() == b"\n"
        return json.loads(line.removeprefix(b"data: "))

    def close(self):
        self._connection.close()


@pytest.fixture
def viewer():
    readers = []

    async def view(port):
        # Not from here: the loop is the server's, too.
        readers.append(await asyncio.to_thread(FeedReader, port))
        return readers[-1]

    yield view
    for reader in readers:
        reader.close()


async def test_the_page_is_three_files_that_load_nothing_else(stage):
    async with stage() as group:
        await group.show()
        bodies = {path: await ask(group.port, path) for path in FILES}
    for path, answer in bodies.items():
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        for sign in (b"http:", b"https:", b"//cdn", b"@import", b"url(", b"innerHTML", b"<style", b" style="):
            assert sign not in answer.body.replace(b"http://www.w3.org/2000/svg", b""), (path, sign)
    assert [answer.headers["content-type"].partition(";")[0] for answer in bodies.values()] == [
        "text/html", "text/css", "text/javascript",
    ]  # fmt: skip


async def test_a_viewer_is_sent_the_group_and_then_each_move(stage, viewer):
    async with stage("a") as group:
        await group.show()
        reader = await viewer(group.port)
        assert reader.response.getheader("content-type").startswith("text/event-stream")
        told = await reader.next()
        assert told["whole"]
        if not told["members"]:
            told = await reader.until(lambda one: one["members"])
        assert told["members"]["0"][:2] == ["a", "active"]
        await group.start("b")
        seen = set()
        while len(seen) < 2:
            for _, _, queue, giver, taker, cause, gap in (await reader.next())["moves"]:
                assert (giver, taker, cause) == (0, 1, "hand-back")
                assert gap >= 0
                seen.add(queue)


async def test_a_kill_is_told(stage, viewer):
    """Within a second, of virtual time: `test_watch.py`."""
    async with stage() as group:
        await group.start("a", "b")
        await group.trial.until(
            lambda: sorted(group.trial.active().values()) == ["a", "a", "b", "b"], within_s=PATIENCE_S
        )
        await group.show()
        reader = await viewer(group.port)
        await reader.until(lambda one: one["queues"])
        group.trial.sessions["b"].kill()
        moved = 0
        while moved < 2:
            moved += len((await reader.next())["moves"])


async def test_a_key_is_found_as_lbg_why_finds_it(stage):
    async with stage("a") as group:
        await group.show()
        answer = await ask(group.port, "/v1/why?key=k%2Fx%26")
        assert answer.status == 200
        told = answer.told
        assert (told["key"], told["known"], told["disagree"]) == ("k/x&", False, [])
        assert told["queue"] == f"orders/{told['shard'] % 4}"
        (one,) = told["answers"]
        assert (one["member"], one["flow"]["state"]) == ("a", "active")
        for query in ("", "?key=a&key=b", "?key=", "?key=%0A", "?key=" + "x" * 251, "?key=%FF"):
            assert (await ask(group.port, "/v1/why" + query)).status == 400
        searches = [asyncio.create_task(ask(group.port, f"/v1/why?key={number}")) for number in range(12)]
        assert {one.status for one in await asyncio.gather(*searches)} <= {200, 503}


async def test_a_key_is_known_to_who_has_it_parked(stage, monkeypatch):
    async with stage("a") as group:
        await group.show()
        (answer,) = await group.watch.why("k")
        parked = replace(answer, sight=replace(answer.sight, parked=2))

        async def why(key):
            return [parked]

        monkeypatch.setattr(group.watch, "why", why)
        told = (await ask(group.port, "/v1/why?key=k")).told
        assert (told["known"], told["answers"][0]["parked"]) == (True, 2)


async def test_only_get_is_answered_and_only_to_who_names_loopback(stage):
    async with stage() as group:
        await group.show()
        for path in (*FILES, *FACTS):
            assert (await ask(group.port, path, method="POST")).status == 405
            refused = await ask(group.port, path, host="page.example")
            assert refused.status == 421
            assert not any(name.startswith("access-control") for name in refused.headers)
        assert (await ask(group.port, "/etc/passwd")).status == (await ask(group.port, "/../x")).status == 404


async def test_with_a_token_the_page_alone_is_for_everybody(stage):
    async with stage(token=TOKEN) as group:
        await group.show(token=TOKEN)
        assert {(await ask(group.port, path)).status for path in FILES} == {200}
        assert {(await ask(group.port, path)).status for path in (*FACTS, "/other")} == {401}
        shown = await ask(group.port, FACTS[1], headers={"Authorization": f"Bearer {TOKEN}"})
        assert shown.status == 200


async def test_beyond_loopback_there_is_no_page_without_a_token(stage):
    async with stage() as group:
        await group.show()
        shape, function = group.settings.group.shape(), group.settings.group.hash_function
        with pytest.raises(UserError, match=r"--listen: 0\.0\.0\.0:0; expected an address on loopback"):
            DashboardServer(group.watch, shape, function, ListenAddress("0.0.0.0", 0), None)  # noqa: S104
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = ListenAddress("127.0.0.1", taken.getsockname()[1])
            with pytest.raises(UserError, match=r"--listen: .* already in use"):
                await DashboardServer(group.watch, shape, function, address, None).__aenter__()


async def test_viewers_that_never_read_take_nothing_from_the_page_and_the_autoscaler(stage, monkeypatch):
    monkeypatch.setattr(routes, "MAX_FEEDS", 3)
    async with stage() as group:
        await group.show()
        with ExitStack() as ending:
            deaf = [ending.enter_context(socket.create_connection(("127.0.0.1", group.port))) for _ in range(70)]
            for each in deaf:
                each.sendall(b"GET /v1/feed HTTP/1.1\r\nHost: localhost\r\n\r\n")
            statuses = [(await asyncio.to_thread(each.recv, 12))[-3:] for each in deaf]
            assert sorted(statuses) == [b"200"] * 3 + [b"503"] * 67
            assert (await ask(group.port, "/")).status == 200
            assert "semp" in (await ask(group.port, "/v1/autoscale")).told["error"]


async def test_a_feed_outlasts_the_time_for_a_request(stage, viewer, monkeypatch):
    # Long enough for the viewer to ask on a busy machine.
    monkeypatch.setattr(connections, "REQUEST_WITHIN_S", 1.0)
    monkeypatch.setattr(routes, "SIGN_OF_LIFE_S", 0.1)
    async with stage() as group:
        await group.show()
        reader = await viewer(group.port)
        began_s = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began_s < 1.5:
            assert await reader.next() is not None


async def test_viewers_do_not_keep_it(stage, viewer):
    async with stage() as group:
        await group.show()
        reader = await viewer(group.port)
        await reader.next()
        ended_s = asyncio.get_running_loop().time()
    # A viewer stays for ever.
    assert asyncio.get_running_loop().time() - ended_s < PATIENCE_S
    while await reader.next() is not None:
        pass
