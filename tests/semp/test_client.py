"""Requests to a broker's administration, and what is made of each answer that they may get, or of none.

More than 400 lines, as all of them are of one client.
"""

import asyncio
import errno
import json
import socket

import httpx
import pytest

from lbg_runtime.model.errors import SempRefused, SempUnreachable
from lbg_runtime.semp.address import SempApi, path_of
from lbg_runtime.semp.client import PAUSES_S, SempAccount, SempClient

ACCOUNT = SempAccount("https://broker:943/", "admin", "top secret")
QUEUES = ("msgVpns", "default", "queues")


def ok(data, **more):
    return httpx.Response(200, json={"data": data, "meta": {"responseCode": 200, **more}})


def refusal(code, status=400):
    error = {"code": code, "status": "SOME", "description": "because\n of   it"}
    return httpx.Response(status, json={"meta": {"responseCode": status, "error": error}})


class Broker:
    """Answers requests from a list, in order, and keeps them."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self):
        return SempClient(ACCOUNT, transport=httpx.MockTransport(self))


@pytest.mark.parametrize(
    ("segments", "path"),
    [
        (("msgVpns", "my vpn", "queues", "a/b"), "/SEMP/v2/config/msgVpns/my%20vpn/queues/a%2Fb"),
        (("x", "*>?#&%+,ü"), "/SEMP/v2/config/x/%2A%3E%3F%23%26%25%2B%2C%C3%BC"),
        (("x", "..", "."), "/SEMP/v2/config/x/%2E%2E/%2E"),
        (("x", ("smf", "a,b/>")), "/SEMP/v2/config/x/smf,a%2Cb%2F%3E"),
    ],
)
def test_nothing_in_a_name_can_look_like_a_path(segments, path):
    assert path_of(SempApi.CONFIG, segments) == path


async def test_a_name_reaches_the_wire_as_it_was_encoded():
    broker = Broker(ok({"queueName": "a/b %2F"}))
    async with broker.client() as client:
        await client.get(SempApi.MONITOR, (*QUEUES, "a/b %2F*>"), select=("queueName", "msgs.count"))
    (request,) = broker.requests
    assert request.url.raw_path == (
        b"/SEMP/v2/monitor/msgVpns/default/queues/a%2Fb%20%252F%2A%3E?select=queueName,msgs.count"
    )
    assert request.url.host == "broker"


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(302, headers={"location": "http://xn--0/"}),
        httpx.Response(302, headers={"location": "http://[::1"}),
        OSError(errno.EMFILE, "Too many open files"),
        ValueError("not an address"),
    ],
)
async def test_whatever_a_request_raises_is_a_broker_out_of_reach(answer):
    async with Broker(answer).client() as client:
        with pytest.raises(SempUnreachable):
            await client.get(SempApi.CONFIG, QUEUES)


class CutOff(Exception):
    """What a fence says from some moment on."""


class Slow:
    """Never ready, and says so after a while."""

    def __init__(self, after_s):
        self.after_s = after_s
        self.asked_at_s = []

    async def __call__(self, request):
        self.asked_at_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.after_s)
        return httpx.Response(503)

    def client(self):
        return SempClient(ACCOUNT, transport=httpx.MockTransport(self))


async def test_a_fence_is_asked_before_every_attempt_and_every_request():
    broker = Broker(httpx.Response(503), ok(None), ok(None), httpx.Response(503), ok(None))
    allowed = [True, True, True, True, False]

    async def insist():
        if not allowed.pop(0):
            raise CutOff

    async with broker.client() as client:
        client.fence(insist)
        await client.delete((*QUEUES, "a"))
        await client.delete((*QUEUES, "b"))
        with pytest.raises(CutOff):
            await client.delete((*QUEUES, "c"))
    assert [each.url.path[-1] for each in broker.requests] == ["a", "a", "b", "c"]


@pytest.mark.parametrize(("after_s", "asked_at_s"), [(7, [0, 7.25]), (4, [0, 4.25, 8.75]), (60, [0])])
async def test_behind_a_fence_all_attempts_together_have_one_time_limit(after_s, asked_at_s):
    async def insist():
        """Nobody has taken over."""

    broker = Slow(after_s)
    async with broker.client() as client:
        client.fence(insist)
        with pytest.raises(SempUnreachable, match="no answer within 10 s"):
            await client.delete((*QUEUES, "q"))
    assert asyncio.get_running_loop().time() == 10
    assert broker.asked_at_s == asked_at_s


@pytest.mark.parametrize(("after_s", "asked_at_s"), [(1, [0, 1.25]), (60, [0])])
async def test_a_client_with_a_bound_gives_up_a_request_with_all_its_attempts(after_s, asked_at_s):
    broker = Slow(after_s)
    async with SempClient(ACCOUNT, transport=httpx.MockTransport(broker), within_s=2) as client:
        with pytest.raises(SempUnreachable, match="no answer within 2 s"):
            await client.delete((*QUEUES, "q"))
    assert asyncio.get_running_loop().time() == 2
    assert broker.asked_at_s == asked_at_s


async def test_without_a_fence_each_attempt_has_its_own():
    broker = Slow(7)
    async with broker.client() as client:
        with pytest.raises(SempUnreachable, match="HTTP 503"):
            await client.delete((*QUEUES, "q"))
    assert len(broker.asked_at_s) == len(PAUSES_S) + 1


def test_authorities_that_cannot_be_read_are_a_broker_out_of_reach(monkeypatch):
    def no_descriptors(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(httpx, "AsyncClient", no_descriptors)
    with pytest.raises(SempUnreachable, match="Too many open files"):
        SempClient(ACCOUNT)


async def test_a_name_of_dots_is_no_step_back():
    broker = Broker(ok(None))
    async with broker.client() as client:
        await client.delete((*QUEUES, ".."))
    assert broker.requests[0].url.raw_path == b"/SEMP/v2/config/msgVpns/default/queues/%2E%2E"


async def test_verbs_and_bodies():
    broker = Broker(ok({"n": 1}), ok({"n": 2}), ok(None), ok(None))
    async with broker.client() as client:
        await client.create(QUEUES, {"queueName": "q"})
        await client.update((*QUEUES, "q"), {"maxTtl": 1})
        await client.delete((*QUEUES, "q"))
        await client.act((*QUEUES, "q", "deleteMsgs"))
    asked = [(each.method, each.url.path, each.content) for each in broker.requests]
    assert asked == [
        ("POST", "/SEMP/v2/config/msgVpns/default/queues", b'{"queueName":"q"}'),
        ("PATCH", "/SEMP/v2/config/msgVpns/default/queues/q", b'{"maxTtl":1}'),
        ("DELETE", "/SEMP/v2/config/msgVpns/default/queues/q", b""),
        ("PUT", "/SEMP/v2/action/msgVpns/default/queues/q/deleteMsgs", b"{}"),
    ]
    assert broker.requests[0].headers["authorization"].startswith("Basic ")
    # A broker refuses a body of which it is not told that it is JSON.
    json_type = "application/json"
    assert [each.headers.get("content-type") for each in broker.requests] == [json_type, json_type, None, json_type]


async def test_attributes_are_checked_as_they_are_read():
    answer = httpx.Response(
        200,
        json={
            "data": {"queueName": "q", "maxTtl": 1, "egressEnabled": True},
            "meta": {"responseCode": 200},
            "collections": {"msgs": {"count": 4}},
        },
    )
    async with Broker(answer).client() as client:
        found = await client.get(SempApi.MONITOR, (*QUEUES, "q"))
    assert (found.text("queueName"), found.number("maxTtl"), found.flag("egressEnabled")) == ("q", 1, True)
    assert found.count("msgs") == 4
    for read in (
        lambda: found.text("maxTtl"),
        lambda: found.number("egressEnabled"),
        lambda: found.flag("maxTtl"),
        lambda: found.text("missing"),
        lambda: found.count("txFlows"),
    ):
        with pytest.raises(SempUnreachable, match="https://broker:943"):
            read()


async def test_each_object_of_a_list_has_its_own_counts():
    counts = [{"msgs": {"count": 4}, "txFlows": None}, {"msgs": {"count": 0}}]
    answer = {"data": [{"n": 1}, {"n": 2}, {"n": 3}], "meta": {"responseCode": 200}, "collections": counts}
    async with Broker(httpx.Response(200, json=answer)).client() as client:
        first, second, third = await client.find_all(SempApi.MONITOR, QUEUES)
    assert [first.count("msgs"), second.count("msgs")] == [4, 0]
    for each, collection in ((first, "txFlows"), (third, "msgs")):
        with pytest.raises(SempUnreachable, match=f"no count of {collection}"):
            each.count(collection)


async def test_all_pages_are_asked_for_at_the_same_broker():
    # Only what identifies the page is taken from the address: a broker behind a proxy knows itself by another name.
    def page(number):
        return {
            "cursorQuery": "%3Ccursor",
            "nextPageUri": f"http://elsewhere/SEMP/x?count=100&cursor=%3Ccursor{number}",
        }

    broker = Broker(ok([{"n": 1}, {"n": 2}], paging=page(1)), ok([{"n": 3}], paging=page(2)), ok([]))
    async with broker.client() as client:
        found = await client.find_all(SempApi.CONFIG, QUEUES, where=("queueName==a,b/*", "n>1"), select=("n",))
    assert [each.number("n") for each in found] == [1, 2, 3]
    queries = [each.url.query for each in broker.requests]
    assert queries == [
        b"select=n&where=queueName%3D%3Da%2Cb%2F%2A,n%3E1&count=100",
        b"count=100&cursor=%3Ccursor1",
        b"count=100&cursor=%3Ccursor2",
    ]
    assert {each.url.host for each in broker.requests} == {"broker"}


async def test_pages_without_an_end_are_an_error():
    paging = {"cursorQuery": "c", "nextPageUri": "http://broker/?cursor=c"}
    broker = Broker(*(ok([{"n": 1}], paging=paging) for _ in range(3)))
    async with broker.client() as client:
        with pytest.raises(SempUnreachable, match="no end"):
            await client.find_all(SempApi.CONFIG, QUEUES)


@pytest.mark.parametrize("uri", ["http://[bad", "http://broker/?cursor=\x00"])
async def test_a_next_page_that_is_nowhere_is_an_error(uri):
    broker = Broker(ok([{"n": 1}], paging={"nextPageUri": uri}))
    async with broker.client() as client:
        with pytest.raises(SempUnreachable):
            await client.find_all(SempApi.CONFIG, QUEUES)


async def test_the_code_of_an_error_counts_and_not_the_http_status():
    async with Broker(refusal(6), refusal(6, status=404)).client() as client:
        for status in (400, 404):
            with pytest.raises(SempRefused) as caught:
                await client.get(SempApi.CONFIG, (*QUEUES, "a/b"))
            error = caught.value
            assert (error.code, error.status, error.description) == (6, "SOME", "because of it")
            assert error.http_status == status
            assert error.request == "GET /SEMP/v2/config/msgVpns/default/queues/a%2Fb"


async def test_what_does_not_exist_is_found_to_be_none_and_is_deleted_already():
    async with Broker(refusal(6), refusal(6), refusal(72), refusal(72), ok({"n": 1})).client() as client:
        assert await client.find(SempApi.MONITOR, (*QUEUES, "q")) is None
        await client.delete((*QUEUES, "q"))
        with pytest.raises(SempRefused, match="because of it"):
            await client.find(SempApi.MONITOR, (*QUEUES, "q"))
        with pytest.raises(SempRefused, match="because of it"):
            await client.delete((*QUEUES, "q"))
        found = await client.find(SempApi.MONITOR, (*QUEUES, "q"))
    assert found is not None
    assert found.number("n") == 1


async def test_why_a_change_was_refused_is_told():
    async with Broker(refusal(11)).client() as client:
        with pytest.raises(SempRefused, match="because of it"):
            await client.update((*QUEUES, "q"), {"maxTtl": 1})


async def test_a_wrong_password_is_a_refusal_of_its_own():
    async with Broker(httpx.Response(401, text="<html>")).client() as client:
        with pytest.raises(SempRefused, match="password refused") as caught:
            await client.get(SempApi.CONFIG, ("about", "api"))
    assert (caught.value.code, caught.value.http_status) == (0, 401)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(404, text="not here"),
        httpx.Response(302, headers={"location": "https://elsewhere/"}),
        httpx.Response(500, json={"error": "other"}),
        httpx.Response(500, json={"data": {"n": 1}, "meta": {"responseCode": 500}}),
        httpx.Response(200, json=[]),
        ok([]),
        ok(None),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout(""),
    ],
)
async def test_whatever_is_no_answer_of_semp_is_one_error(answer):
    broker = Broker(answer)
    async with broker.client() as client:
        with pytest.raises(SempUnreachable) as caught:
            await client.get(SempApi.CONFIG, (*QUEUES, "q"))
    assert caught.value.retriable
    assert len(broker.requests) == 1


ELSEWHERE = "the broker's management API at semp.url, by https:// if it speaks TLS and by http:// if it does not"


def because_of(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason", "expected"),
    [
        (httpx.ReadTimeout(""), "no answer within 10 s", None),
        (httpx.RemoteProtocolError("no HTTP,\n of course."), "no HTTP, of course", ELSEWHERE),
        (httpx.ReadError(""), "ReadError", None),
        (
            because_of(httpx.ConnectError("all failed"), OSError(errno.ECONNREFUSED, "[Errno 111] Call failed")),
            "Connection refused",
            ELSEWHERE,
        ),
        (
            because_of(httpx.ConnectError("all failed"), socket.gaierror(socket.EAI_NONAME, "Name not known")),
            "Name not known",
            ELSEWHERE,
        ),
        (
            because_of(
                httpx.ConnectError("all failed"),
                ExceptionGroup("of a name's addresses", [OSError("first"), OSError(errno.EHOSTUNREACH, "last")]),
            ),
            "No route to host",
            ELSEWHERE,
        ),
    ],
)
async def test_why_there_is_no_answer_is_said_in_the_words_of_the_system(error, reason, expected):
    async with Broker(error).client() as client:
        with pytest.raises(SempUnreachable) as caught:
            await client.get(SempApi.CONFIG, QUEUES)
    assert (caught.value.reason, caught.value.expected) == (reason, expected)


async def test_a_broker_that_is_not_ready_is_asked_again_for_a_while():
    broker = Broker(httpx.Response(503), refusal(89, status=503), ok({"n": 1}))
    loop = asyncio.get_running_loop()
    async with broker.client() as client:
        began = loop.time()
        assert (await client.create(QUEUES, {})).number("n") == 1
        assert loop.time() - began == pytest.approx(sum(PAUSES_S[:2]))


async def test_a_refusal_says_whether_an_earlier_attempt_may_have_done_what_was_asked():
    async with Broker(refusal(10), httpx.Response(503), refusal(10)).client() as client:
        repeated = []
        for _ in range(2):
            with pytest.raises(SempRefused) as caught:
                await client.create(QUEUES, {})
            repeated.append(caught.value.is_repeated)
    assert repeated == [False, True]


async def test_a_proxy_of_the_environment_is_not_so_much_as_read(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "no-such-scheme://nowhere")
    async with SempClient(ACCOUNT, tls=False):
        pass


async def test_whoever_is_cancelled_while_a_client_is_closed_leaves_no_connection():
    """The library closes one after another: those that were still to come stayed open."""

    class Connections(httpx.AsyncBaseTransport):
        left = 3

        async def aclose(self):
            while self.left:
                await asyncio.sleep(0.1)
                self.left -= 1

    async def use():
        async with SempClient(ACCOUNT, transport=connections):
            pass

    connections = Connections()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15):
            await use()
    await asyncio.sleep(1)
    assert connections.left == 0


async def test_a_broker_that_stays_unready_is_given_up():
    broker = Broker(*(httpx.Response(503) for _ in range(len(PAUSES_S) + 1)))
    async with broker.client() as client:
        with pytest.raises(SempUnreachable, match="503"):
            await client.create(QUEUES, {})
    assert broker.answers == []


QUOTES = [
    lambda password: f"password {password} is not valid",
    lambda password: f"unexpected value {json.dumps(password)}",
    lambda password: f"in {json.dumps({'clientUsername': 'members', 'password': password})}",
    lambda password: password.encode().hex(),
]


@pytest.mark.parametrize("quote", QUOTES)
@pytest.mark.parametrize(
    "password", ["hidden", 'hid"den', "hid\\den", "hid\tden", "hid\nden", "hid  den", "hidd\u00e9n"]
)
async def test_no_error_shows_the_password(password, quote):
    quoting = {"code": 11, "status": "SOME", "description": quote(password)}
    quoted = httpx.Response(400, json={"meta": {"responseCode": 400, "error": quoting}})
    broker = Broker(httpx.Response(401), quoted, httpx.ConnectError("refused"), httpx.Response(500))
    async with broker.client() as client:
        for _ in range(4):
            with pytest.raises((SempRefused, SempUnreachable)) as caught:
                await client.create(("msgVpns", "default", "clientUsernames"), {"password": password})
            said = f"{caught.value} {caught.value!r} {json.dumps(caught.value.__dict__)}"
            assert "secret" not in said
            assert "hid" not in said
            assert password.encode().hex() not in said
    assert "secret" not in repr(ACCOUNT)
