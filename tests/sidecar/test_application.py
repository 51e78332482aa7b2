"""The HTTP client against applications on real sockets that answer well, badly, slowly, or not at all."""

import asyncio
import errno
import socket
from contextlib import asynccontextmanager

import pytest

from lbg_runtime.config.sidecar_settings import SidecarSettings
from lbg_runtime.sidecar.application import (
    MAX_ANSWER_BYTES,
    NO_CONNECTION,
    ApplicationFailed,
    ApplicationUnreachable,
    HttpApplication,
    NotSent,
    Response,
)
from tests.addresses import OWN_HOST
from tests.listening import listening
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class RawServer:
    """Answers each request with given bytes; None hangs, an empty answer hangs up."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.asked = asyncio.Event()
        self.hung_up = asyncio.Event()
        """Whether a connection has come to its end."""
        self.writers = []

    async def serve(self, reader, writer):
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
                )
                self.requests.append((head.decode(), await reader.readexactly(length)))
                self.asked.set()
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    await reader.read()
                    return
                writer.write(answer)
                await writer.drain()
                if not answer:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.hung_up.set()
            writer.close()

    def close(self):
        for writer in self.writers:
            writer.close()


@asynccontextmanager
async def application(*answers, timeout_ms=PATIENCE_S * 1_000, unix=None, scheme="http", **settings):
    """A server that answers so, and the client for it."""
    raw = RawServer(*answers)
    async with listening(raw.serve, unix=unix) as place:
        address = f"unix:{place}" if unix else f"{scheme}://{OWN_HOST}:{place}"
        client = HttpApplication(address, SidecarSettings(application=address, **settings), timeout_ms)
        try:
            yield client, raw
        finally:
            await client.close()


async def test_a_request_has_its_headers_the_token_and_the_body():
    async with application(OK, application_token="s3cret") as (client, raw):
        response = await client.post("/a/b?c=d", {"content-type": "x/y", "lbg-key": "k"}, b"body")
    assert response == Response(200, "application/json", b"{}")
    head, body = raw.requests[0]
    assert head.startswith("POST /a/b?c=d HTTP/1.1\r\n")
    lines = head.lower().split("\r\n")
    assert {"content-type: x/y", "lbg-key: k", "dapr-api-token: s3cret"} <= set(lines)
    assert not any(line.startswith(("user-agent", "accept-encoding", "cookie")) for line in lines)
    assert body == b"body"


async def test_without_a_token_none_is_shown():
    async with application(OK) as (client, raw):
        await client.post("/a", {}, b"")
    assert "token" not in raw.requests[0][0].lower()


async def test_a_connection_is_used_again():
    async with application(OK) as (client, raw):
        for _ in range(5):
            await client.post("/a", {}, b"")
        assert len(raw.writers) == 1


@pytest.mark.parametrize("is_unix", [False, True])
async def test_an_answer_that_nobody_asked_for_is_none_to_what_is_asked_next(tmp_path, is_unix):
    async with application(OK, unix=str(tmp_path / "application.sock") if is_unix else None) as (client, raw):
        await client.post("/a", {}, b"first")
        raw.writers[0].write(b"HTTP/1.1 204 Once More\r\n\r\n")
        # A round trip on another connection: what was written before it has come.
        await client.probe()
        assert (await client.post("/a", {}, b"second")).status == 200
        assert [body for _, body in raw.requests] == [b"first", b"second"]
        assert len(raw.writers) == 3


@pytest.mark.parametrize("is_unix", [False, True])
async def test_what_is_not_wanted_any_more_when_there_is_a_connection_is_not_sent(tmp_path, is_unix):
    """Its process may have been stopped meanwhile, and others may have it."""
    asked = []

    def is_wanted():
        asked.append(len(raw.requests))
        return len(asked) > 2

    async with application(OK, unix=str(tmp_path / "app.sock") if is_unix else None) as (client, raw):
        for _ in range(2):
            with pytest.raises(NotSent):
                await client.post("/a", {}, b"late", is_wanted)
        assert (await client.post("/a", {}, b"wanted", is_wanted)).status == 200
        assert (await client.post("/a", {}, b"any")).status == 200
        assert [body for _, body in raw.requests] == [b"wanted", b"any"]
        assert (asked, len(raw.writers)) == ([0, 0, 0], 1)


@pytest.mark.parametrize("is_unix", [False, True])
async def test_however_many_events_are_unanswered_the_next_one_is_sent(tmp_path, is_unix):
    """The library sends a hundred at a time by itself, and another one would be taken for not reached."""
    count = 101
    async with application(None, unix=str(tmp_path / "application.sock") if is_unix else None) as (client, raw):
        posts = [asyncio.ensure_future(client.post("/a", {}, b"x")) for _ in range(count)]
        async with asyncio.timeout(PATIENCE_S):
            while len(raw.requests) < count:
                raw.asked.clear()
                await raw.asked.wait()
        for post in posts:
            post.cancel()
        await asyncio.wait(posts)
    assert all(post.cancelled() for post in posts)


@pytest.mark.parametrize("is_unix", [False, True])
async def test_a_probe_that_gets_no_connection_in_time_has_not_reached_the_application(tmp_path, monkeypatch, is_unix):
    monkeypatch.setattr("lbg_runtime.sidecar.application.PROBE_TIMEOUT_S", 0)
    async with application(OK, unix=str(tmp_path / "application.sock") if is_unix else None) as (client, _):
        with pytest.raises(ApplicationUnreachable, match=NO_CONNECTION):
            await client.probe()


async def test_an_event_for_which_there_is_no_connection_in_time_was_not_sent(monkeypatch):
    """What was not sent costs no attempt; without a bound of its own, it was one that had no answer."""

    async def hang(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr("lbg_runtime.sidecar.application.CONNECT_TIMEOUT_S", 0.01)
    monkeypatch.setattr("aiohttp.TCPConnector._create_connection", hang)
    # Bounds are remembered, so that this is a time that no other test has.
    async with application(OK, timeout_ms=60_001) as (client, _):
        with pytest.raises(ApplicationUnreachable, match=NO_CONNECTION):
            await client.post("/a", {}, b"x")


async def test_an_application_on_a_unix_socket_is_reached(tmp_path):
    path = str(tmp_path / "application.sock")
    async with application(OK, unix=path) as (client, raw):
        await client.probe()
        assert (await client.post("/a", {}, b"x")).status == 200
    assert raw.requests[0][0].startswith("POST /a HTTP/1.1\r\n")
    with pytest.raises(ApplicationUnreachable):
        await client.probe()


async def test_an_address_with_a_path_has_the_routes_below_it():
    raw = RawServer(OK)
    async with listening(raw.serve) as port:
        address = f"http://{OWN_HOST}:{port}/base"
        client = HttpApplication(address, SidecarSettings(application=address), 5_000)
        await client.post("/a", {}, b"")
        await client.post("b", {}, b"")
        await client.close()
    assert [head.split()[1] for head, _ in raw.requests] == ["/base/a", "/base/b"]


async def test_a_large_body_arrives_whole():
    body = bytes(range(256)) * 16_384
    async with application(OK) as (client, raw):
        await client.post("/a", {}, body)
    assert raw.requests[0][1] == body


@pytest.mark.parametrize("size", [0, 2, MAX_ANSWER_BYTES])
async def test_an_answer_that_does_not_say_how_long_it_is_is_read_whole(size):
    body = b"x" * size
    chunk = b"%x\r\n%b\r\n" % (size, body) if size else b""
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
    async with application(answer, OK) as (client, raw):
        assert (await client.post("/a", {}, b"")).body == body
        assert (await client.post("/a", {}, b"")).body == b"{}"
        assert len(raw.writers) == 1


@pytest.mark.parametrize("head", ["Content-Length: {}\r\n", "Connection: close\r\n"])
async def test_a_longer_answer_than_any_is_not_read(head):
    size = MAX_ANSWER_BYTES + 1
    answer = b"HTTP/1.1 200 OK\r\n" + head.format(size).encode() + b"\r\n" + b"x" * size
    async with application(answer, OK) as (client, raw):
        assert (await client.post("/a", {}, b"")).body is None
        assert (await client.post("/a", {}, b"")).body == b"{}"
        assert len(raw.writers) == 2


async def test_a_compressed_answer_is_not_blown_up():
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
    async with application(answer) as (client, _):
        assert (await client.post("/a", {}, b"")).body == b"{}"


async def test_a_redirection_is_an_answer():
    answer = b"HTTP/1.1 307 X\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"
    async with application(answer) as (client, raw):
        assert (await client.post("/a", {}, b"")).status == 307
        assert len(raw.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"\x16\x03\x01garbage\r\n\r\n",
        b"HTTP/1.1 999999 ?\r\n\r\n",
    ],
)
async def test_who_breaks_off_or_answers_no_http_has_failed(answer):
    async with application(answer) as (client, raw):

        async def close():
            await raw.asked.wait()
            raw.close()

        with pytest.raises(ApplicationFailed):
            await asyncio.gather(client.post("/a", {}, b""), close())


async def test_who_hangs_has_failed_after_its_time_and_is_hung_up_on():
    # Long enough for a connection, which the time is for as well.
    async with application(None, timeout_ms=1_000) as (client, raw):
        with pytest.raises(ApplicationFailed, match="no answer within 1000 ms"):
            await client.post("/a", {}, b"")
        await asyncio.wait_for(raw.hung_up.wait(), PATIENCE_S)


async def test_who_lets_no_connection_come_about_within_the_time_for_an_answer_is_not_reached():
    """As a host that is gone without a word; here the handshake is never answered."""
    async with application(None, scheme="https", timeout_ms=1_000) as (client, _):
        with pytest.raises(ApplicationUnreachable, match="no connection in time"):
            await client.post("/a", {}, b"")


async def test_a_cancelled_request_is_hung_up_on():
    async with application(None) as (client, raw):
        posting = asyncio.ensure_future(client.post("/a", {}, b""))
        await asyncio.wait_for(raw.asked.wait(), PATIENCE_S)
        posting.cancel()
        await asyncio.wait([posting])
        await asyncio.wait_for(raw.hung_up.wait(), PATIENCE_S)


async def test_nobody_who_listens_is_told_from_a_failure():
    async with application(OK) as (client, _):
        pass
    client = HttpApplication(client._base, SidecarSettings(application=client._base), 5_000)
    for call in (client.post("/a", {}, b""), client.probe(), client.subscriptions()):
        with pytest.raises(ApplicationUnreachable) as found:
            await call
        assert found.value.reason == "ConnectionRefusedError: Connection refused"
    await client.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name not known"), f"gaierror: [Errno {socket.EAI_NONAME}] Name not known"),
        (OSError(errno.EHOSTUNREACH, "Call failed"), "OSError: No route to host"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
async def test_why_an_application_is_not_reached_is_said_in_the_words_of_the_system(monkeypatch, error, reason):
    async def refuse(*_, **__):
        raise error

    async with application(OK) as (client, _):
        monkeypatch.setattr(asyncio, "open_connection", refuse)
        with pytest.raises(ApplicationUnreachable) as found:
            await client.probe()
    assert found.value.reason == reason


async def test_an_application_whose_host_can_be_no_name_is_away():
    # The settings refuse what has no form for the system; of this one, only who looks it up finds that.
    address = "http://xn--a:3000"
    client = HttpApplication(address, SidecarSettings(application=address), 5_000)
    with pytest.raises(ApplicationUnreachable):
        await client.probe()
    await client.close()


async def test_a_probe_without_a_path_asks_for_a_connection_only():
    async with application(None) as (client, raw):
        await client.probe()
        assert raw.requests == []


@pytest.mark.parametrize(
    ("code", "is_well"), [(200, True), (204, True), (299, True), (300, False), (404, False), (503, False)]
)
async def test_a_probe_with_a_path_asks_for_success(code, is_well):
    answer = f"HTTP/1.1 {code} X\r\nContent-Length: 0\r\n\r\n".encode()
    async with application(answer, health={"path": "/healthz"}) as (client, raw):
        if is_well:
            await client.probe()
        else:
            with pytest.raises(ApplicationFailed, match=f"HTTP {code} from /healthz"):
                await client.probe()
    assert raw.requests[0][0].startswith("GET /healthz ")


@pytest.mark.parametrize("code", [404, 405, 501])
async def test_a_server_that_knows_no_get_says_nothing_if_the_settings_have_subscriptions(code):
    """Python's own answers 501 without `do_GET`; otherwise the member would never join."""
    answer = f"HTTP/1.1 {code} X\r\nContent-Length: 0\r\n\r\n".encode()
    subscriptions = [{"topic": "orders/>", "route": "/orders"}]
    async with application(answer, subscriptions=subscriptions) as (client, _):
        assert await client.subscriptions() is None


@pytest.mark.parametrize("code", [405, 501])
async def test_it_is_away_if_nobody_says_what_it_gets(code):
    async with application(f"HTTP/1.1 {code} X\r\nContent-Length: 0\r\n\r\n".encode()) as (client, _):
        with pytest.raises(ApplicationFailed, match=f"HTTP {code}"):
            await client.subscriptions()


async def test_subscriptions_are_asked_for():
    async with application(OK) as (client, raw):
        assert await client.subscriptions() == b"{}"
    assert raw.requests[0][0].startswith("GET /dapr/subscribe ")
    async with application(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n") as (client, _):
        assert await client.subscriptions() is None
    async with application(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n") as (client, _):
        with pytest.raises(ApplicationFailed, match="HTTP 500"):
            await client.subscriptions()
    size = MAX_ANSWER_BYTES + 1
    async with application(b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n" % size + b" " * size) as (client, _):
        with pytest.raises(ApplicationFailed, match="more than 1048576 bytes from /dapr/subscribe"):
            await client.subscriptions()
