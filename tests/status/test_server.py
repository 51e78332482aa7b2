"""The status API over a real socket: its routes, who may ask, a loop that does not answer, and its end.

More than 400 lines, as all of them are asked of one server.
"""

import asyncio
import re
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.metrics.reading import MemberReading
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.ids import MemberId
from lbg_runtime.status.access import Access, as_json
from lbg_runtime.status.picture import MemberPicture
from lbg_runtime.status.server import StatusServer
from tests.addresses import OWN_HOST
from tests.open_files import no_descriptor_left
from tests.patience import PATIENCE_S
from tests.status.asking import ShownMember, ask, flow, member

pytestmark = pytest.mark.real_time

READY = member(flow(0, FlowState.ACTIVE))
PROBES = ("/livez", "/readyz", "/startedz")
FACTS = ("/v1/status", "/v1/handled", "/v1/moves", "/v1/keys/k")
TOKEN = "a-token/of+ours"


@asynccontextmanager
async def serving(
    source: ShownMember | None, *, host: str = "127.0.0.1", token: str | None = None
) -> AsyncIterator[tuple[int, StatusServer]]:
    async with StatusServer(ListenAddress(host, 0), token) as server:
        if source is not None:
            server.show(source)
        yield server.address.port, server


async def test_a_member_that_is_well_says_so_on_every_route() -> None:
    async with serving(ShownMember(READY, changes=3)) as (port, _):
        told = {path: (await ask(port, path)).told for path in (*PROBES, *FACTS)}
        statuses = {(await ask(port, path)).status for path in told}
    assert statuses == {200}
    assert (told["/livez"], told["/startedz"]) == ({"live": True, "blocked_ms": 0}, {"started": True})
    assert told["/readyz"] == {"ready": True, "reasons": []}
    assert told["/v1/status"]["flows"]["orders/0"]["state"] == "active"  # type: ignore[index]
    assert [one["queue"] for one in told["/v1/moves"]["changes"]] == [0, 1, 2]  # type: ignore[attr-defined]
    whose = [[told[path][name] for name in ("member", "incarnation")] for path in FACTS[:3]]
    assert whose == [[READY.member, READY.incarnation]] * 3
    assert (told["/v1/keys/k"]["key"], told["/v1/keys/k"]["shard"]) == ("k", 3)


async def test_metrics_are_told_as_prometheus_scrapes_them() -> None:
    async with serving(ShownMember(READY)) as (port, _):
        answer = await ask(port, "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers, "which has what versions is nobody's business"
    assert b'lbg_messages_handled_total{queue="1"} 7.0\n' in answer.body
    assert b"\nlbg_member_up 1.0\n" in answer.body


async def test_members_of_one_process_tell_of_themselves_alone() -> None:
    other = replace(READY, member=MemberId("b"))
    async with serving(ShownMember(READY)) as (first, _), serving(ShownMember(other)) as (second, _):
        bodies = [(await ask(port, "/metrics")).body for port in (first, second, first)]
    assert [b'member="a"' in body for body in bodies] == [True, False, True]
    assert [b'member="b"' in body for body in bodies] == [False, True, False]


async def test_how_much_was_handled_is_told_by_queue() -> None:
    async with serving(ShownMember(READY)) as (port, _):
        told = (await ask(port, "/v1/handled")).told
    handled = {"handled": {"0": 7, "12": 1}, "keys_parked": 2, "standing_still": {}}
    assert told == {"member": "a", "incarnation": 5, **handled}


async def test_before_the_member_has_begun_only_its_loop_is_told_of() -> None:
    async with serving(None) as (port, _):
        assert (await ask(port, "/livez")).status == 200
        for path in (*PROBES[1:], *FACTS):
            answer = await ask(port, path)
            assert (answer.status, answer.told["error"]) == (503, "the member has not begun yet")
        assert [(await ask(port, f"/{name}z")).told[name] for name in ("ready", "started")] == [False, False]
        scraped = (await ask(port, "/metrics")).body
        assert b"\nlbg_member_up 1.0\n" in scraped
        assert b"\nlbg_member_started 0.0\n" in scraped
        assert b"lbg_messages" not in scraped


async def test_what_a_member_waits_for_before_it_begins_is_told() -> None:
    async with StatusServer(ListenAddress("127.0.0.1", 0), None, lambda: "its application is away") as server:
        for path in (*PROBES[1:], *FACTS):
            answer = await ask(server.address.port, path)
            assert answer.told["error"] == "the member has not begun yet: its application is away"


async def test_a_member_that_is_not_ready_says_why() -> None:
    async with serving(ShownMember(member(flow(0, FlowState.BINDING)))) as (port, _):
        answer = await ask(port, "/readyz")
        assert answer.status == 503
        (reason,) = answer.told["reasons"]  # type: ignore[misc]
        assert (reason["queue"], reason["state"]) == ("orders/0", "binding")
        assert (await ask(port, "/startedz")).status == 200


async def test_a_key_may_be_any_text() -> None:
    keys = {"k": "k", "a%2Fb/c": "a/b/c", "k/": "k/", "%C3%A4%3F%23%25": "ä?#%", "%EF%BF%BD": "\ufffd", "": ""}
    async with serving(ShownMember(READY)) as (port, _):
        assert {path: (await ask(port, f"/v1/keys/{path}")).told["key"] for path in keys} == keys


async def test_a_target_with_scheme_and_host_is_that_of_its_path_at_this_host() -> None:
    """As a proxy sends it; its host counts, whatever the header says."""
    async with serving(ShownMember(READY)) as (port, _):
        here = f"HTTP://127.0.0.1:{port}"
        for path in ("/v1/keys/a%2Fb", "/v1/moves?limit=1", "/livez"):
            assert (await ask(port, here + path, host="elsewhere")).body == (await ask(port, path)).body
        assert (await ask(port, here)).status == 404
        assert [(await ask(port, f"http://{other}/livez")).status for other in ("elsewhere", "")] == [421, 421]


async def test_a_request_that_makes_no_sense_is_told_so() -> None:
    limits = ("0", "1001", "-1", "x", "", "9" * 5_000)
    async with serving(ShownMember(READY)) as (port, _):
        answers = [await ask(port, f"/v1/moves?limit={limit}") for limit in limits]
        assert [(answer.status, answer.told["where"]) for answer in answers] == [(400, "limit")] * len(limits)
        assert answers[0].told["error"] == "limit: '0'; expected a whole number from 1 to 1000"
        answers = [await ask(port, f"/v1/keys/{key}") for key in ("%FF", "impossible")]
        assert [(answer.status, answer.told["where"]) for answer in answers] == [(400, "key")] * 2


async def test_as_many_changes_are_told_as_are_asked_for() -> None:
    async with serving(ShownMember(READY, changes=200)) as (port, _):
        told = {query: (await ask(port, f"/v1/moves{query}")).told for query in ("", "?limit=2", "?limit=1000")}
    assert [len(one["changes"]) for one in told.values()] == [100, 2, 200]  # type: ignore[arg-type]


async def test_there_are_no_other_routes() -> None:
    paths = ("/", "/v1", "/v1/status/", "/livez/", "/v1%2Fkeys/k", "/docs", "/%2e%2e/etc/passwd")
    async with serving(ShownMember(READY)) as (port, _):
        answers = {path: await ask(port, path) for path in paths}
    found = {path: (answer.status, answer.told) for path, answer in answers.items()}
    assert found == dict.fromkeys(paths, (404, {"error": "there is no such route"}))


# -- who may ask


async def test_nothing_but_get_is_answered() -> None:
    methods = ("HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE")
    async with serving(ShownMember(READY)) as (port, _):
        for method in methods:
            answer = await ask(port, "/v1/status", method=method, headers={"Origin": "http://page.example"})
            assert (method, answer.status, answer.headers["allow"]) == (method, 405, "GET")
            assert not any(name.startswith("access-control") for name in answer.headers)


async def test_a_page_that_rebound_its_name_to_loopback_learns_nothing() -> None:
    hosts = ("page.example", "127.0.0.1.page.example", "192.0.2.1:80", "", "localhost.", "[::1", "127.0.0.1:x")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with serving(ShownMember(READY), token=TOKEN) as (port, _):
        for path in ("/livez", "/v1/status"):
            found = {host: (await ask(port, path, host=host, headers=headers)).status for host in hosts}
            assert found == dict.fromkeys(hosts, 421)


async def test_a_page_of_another_origin_is_refused_and_a_link_to_here_is_not() -> None:
    async with serving(ShownMember(READY)) as (port, _):
        for site, mode, status in (
            ("cross-site", "no-cors", 403),
            ("cross-site", "cors", 403),
            ("same-site", "cors", 403),
            ("cross-site", "navigate", 200),
            ("same-origin", "cors", 200),
            ("none", "navigate", 200),
        ):
            headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
            assert (await ask(port, "/v1/status", headers=headers)).status == status


async def test_loopback_has_many_names() -> None:
    hosts = ("localhost", "LocalHost:1", "127.0.0.1", "127.0.0.2:80", "[::1]:8080", "[::1]")
    async with serving(ShownMember(READY)) as (port, _):
        found = {host: (await ask(port, "/v1/status", host=host)).status for host in hosts}
        assert found == dict.fromkeys(hosts, 200)


async def test_who_does_not_show_the_token_learns_whether_probes_pass_and_no_more() -> None:
    wrong = ("", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", f"Bearer ä{TOKEN}")
    async with serving(ShownMember(member(flow(0, FlowState.BINDING))), token=TOKEN) as (port, _):
        for headers in ({}, *({"Authorization": shown} for shown in wrong)):
            for path in FACTS:
                answer = await ask(port, path, headers=headers)
                assert (headers, answer.status, answer.headers["www-authenticate"]) == (headers, 401, "Bearer")
                assert TOKEN.encode() not in answer.body
            told = [(await ask(port, path, headers=headers)).told for path in PROBES]
            assert told == [{"live": True}, {"ready": False}, {"started": True}]


async def test_who_shows_the_token_learns_everything() -> None:
    async with serving(ShownMember(READY), token=TOKEN) as (port, _):
        for scheme in ("Bearer", "bearer"):
            headers = {"Authorization": f"{scheme} {TOKEN}"}
            answers = [await ask(port, path, headers=headers) for path in (*PROBES, *FACTS)]
            assert {answer.status for answer in answers} == {200}
            assert answers[0].told == {"live": True, "blocked_ms": 0}
            assert {answer.headers["cache-control"] for answer in answers} == {"no-store"}


async def test_off_loopback_the_token_says_who_may_ask_and_not_the_host() -> None:
    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await as_json({})(scope, receive, send)

    async def status(*headers: tuple[bytes, bytes]) -> object:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            raise AssertionError("nobody reads a body")

        # Not over a socket, as no test opens one to others.
        access = Access(inner, ListenAddress("192.0.2.1", 9280), TOKEN)
        await access({"type": "http", "method": "GET", "path": "/v1/status", "headers": headers}, receive, send)
        return sent[0]["status"]

    host = (b"host", b"orders-0.orders:9280")
    assert await status(host) == 401
    assert await status(host, (b"authorization", f"Bearer {TOKEN}".encode())) == 200
    assert await status(host, *[(b"authorization", f"Bearer {TOKEN}".encode())] * 2) == 401


# -- a member that does not answer


@pytest.fixture
def member_elsewhere() -> Callable[..., AbstractAsyncContextManager[tuple[int, asyncio.AbstractEventLoop]]]:
    """A server for a member whose loop runs in a thread of its own, so that it can be blocked."""

    @asynccontextmanager
    async def start() -> AsyncIterator[tuple[int, asyncio.AbstractEventLoop]]:
        here = asyncio.get_running_loop()
        begun: asyncio.Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = here.create_future()

        async def live() -> None:
            may_end = asyncio.Event()
            async with serving(ShownMember(READY)) as (port, _):
                here.call_soon_threadsafe(begun.set_result, (port, asyncio.get_running_loop(), may_end))
                await may_end.wait()

        thread = threading.Thread(target=asyncio.run, args=(live(),))
        thread.start()
        port, loop, may_end = await begun
        try:
            yield port, loop
        finally:
            loop.call_soon_threadsafe(may_end.set)
            await asyncio.to_thread(thread.join, PATIENCE_S)

    return start


async def until_alive(port: int) -> None:
    """Bounded by the test's own limit."""
    while True:
        # While it lets go of all who wait, it does so with whoever comes meanwhile.
        with suppress(ConnectionResetError):
            if (await ask(port, "/livez")).status == 200:
                return


async def test_a_blocked_loop_is_told_while_it_is_blocked_and_not_after(
    member_elsewhere: Callable[..., AbstractAsyncContextManager[tuple[int, asyncio.AbstractEventLoop]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    within_ms = 200
    monkeypatch.setattr("lbg_runtime.status.member_loop.ANSWER_WITHIN_MS", within_ms)
    async with member_elsewhere() as (port, loop):
        await until_alive(port)
        release = threading.Event()
        loop.call_soon_threadsafe(release.wait, PATIENCE_S)
        first = await ask(port, "/livez")
        assert first.status == 503
        assert first.told["blocked_ms"] >= within_ms  # type: ignore[operator]
        second = await ask(port, "/livez")
        assert second.told["blocked_ms"] >= first.told["blocked_ms"] + within_ms  # type: ignore[operator]
        for path in ("/readyz", "/startedz", *FACTS):
            answer = await ask(port, path)
            assert (answer.status, answer.told["error"]) == (503, "the member's event loop does not answer")
        scraped = (await ask(port, "/metrics")).body
        assert b"\nlbg_member_up 0.0\n" in scraped
        (blocked_s,) = re.findall(rb"\nlbg_member_loop_blocked_seconds (\S+)\n", scraped)
        assert float(blocked_s) * 1_000 > second.told["blocked_ms"]  # type: ignore[operator]
        release.set()
        await until_alive(port)
        # What it owed before is forgotten.
        release.clear()
        blocked_again_s = time.monotonic()
        loop.call_soon_threadsafe(release.wait, PATIENCE_S)
        again = await ask(port, "/livez")
        release.set()
        assert within_ms <= again.told["blocked_ms"] <= (time.monotonic() - blocked_again_s) * 1_000  # type: ignore[operator]


@pytest.mark.parametrize("paths", [("/readyz", "/startedz"), ("/metrics",)])
async def test_many_who_ask_at_once_take_the_time_of_one_from_the_member(
    paths: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting(ShownMember):
        looks = 0

        def picture(self) -> MemberPicture:
            self.looks += 1
            return super().picture()

        def reading(self) -> MemberReading:
            self.looks += 1
            return super().reading()

    # For as long as this test takes on any machine.
    monkeypatch.setattr("lbg_runtime.status.shared.KEPT_S", 600)
    source = Counting(READY)
    async with serving(source, token=TOKEN) as (port, _):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        asked = [ask(port, path, headers=headers) for path in paths for _ in range(10)]
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
    assert source.looks == 1


async def test_a_source_that_fails_is_no_blocked_loop(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ShownMember):
        def picture(self) -> None:  # type: ignore[override]
            raise ZeroDivisionError

    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with serving(Broken(READY)) as (port, _):
        assert (await ask(port, "/v1/status")).status == 500
        assert (await ask(port, "/livez")).status == 200
    assert [type(context["exception"]) for context in told] == [ZeroDivisionError]
    assert "a question about the member failed" in caplog.text


async def test_while_there_is_no_descriptor_left_whoever_connects_is_let_go_and_the_log_is_spared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(ShownMember(READY)) as (port, _):
        # Once it has answered, its loop has what it needs, the spare descriptor included.
        assert (await ask(port, "/livez")).status == 200
        with ExitStack() as clients:
            # More than one, as other threads of this process may close descriptors: who gets one of those is served.
            some = [clients.enter_context(socket.socket()) for _ in range(4)]
            with no_descriptor_left():
                for client in some:
                    client.connect(("127.0.0.1", port))
                told, _, _ = await asyncio.to_thread(select.select, some, [], [], PATIENCE_S)
            assert told
            for client in told:
                with suppress(ConnectionResetError):
                    assert client.recv(1) == b""
        await until_alive(port)
    assert not caplog.records


# -- its end


async def test_it_ends_with_its_context_and_the_port_is_free_again() -> None:
    async with serving(ShownMember(READY), host=OWN_HOST) as (port, server):
        assert (await ask(port, "/livez", at=OWN_HOST)).status == 200
        address = server.address
    with pytest.raises(ConnectionRefusedError):
        await ask(port, "/livez", at=OWN_HOST)
    async with StatusServer(address, None):
        assert (await ask(port, "/livez", at=OWN_HOST)).status == 200
    assert not [thread for thread in threading.enumerate() if thread.name == "lbg-status"]


async def test_clients_that_hold_their_connections_do_not_keep_it() -> None:
    with capture_logs() as log:
        async with serving(ShownMember(READY)) as (port, _):
            silent, half, kept = (socket.create_connection(("127.0.0.1", port), PATIENCE_S) for _ in range(3))
            half.sendall(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n")
            kept.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await asyncio.to_thread(kept.recv, 12) == b"HTTP/1.1 200"
    for connection in (silent, half, kept):
        connection.close()
    assert [entry["event"] for entry in log] == ["status_served"]


async def test_an_address_that_cannot_be_had_is_a_mistake_of_the_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            await StatusServer(ListenAddress("127.0.0.1", port), None).__aenter__()
    assert str(caught.value) == (
        f"ops.status: 127.0.0.1:{port}: Address already in use; expected an address of this machine with a free port"
    )
    with pytest.raises(ConfigError, match=r"ops\.status: 192\.0\.2\.1:0: Cannot assign requested address"):
        await StatusServer(ListenAddress("192.0.2.1", 0), "token").__aenter__()
