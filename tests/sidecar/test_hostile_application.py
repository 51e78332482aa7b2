"""A whole member and an application on a real socket that answers in every wrong way, and dies in between."""

import asyncio
import json
import random
from collections import Counter

import pytest

from tests.addresses import OWN_HOST
from tests.listening import listening
from tests.patience import PATIENCE_S
from tests.sidecar.conftest import SidecarTrial

pytestmark = pytest.mark.real_time

KEYS, EACH = 6, 15

OK = b"HTTP/1.1 200 OK\r\n"

RIGHT = {
    "plain": OK + b"Content-Length: {length}\r\n\r\n{good}",
    "twice": OK + b"Content-Length: {length}\r\n\r\n{good}" + OK + b"Content-Length: 0\r\n\r\n",
    "and half a head": OK + b"Content-Length: {length}\r\n\r\n{good}" + OK + b"Content-Len",
    "with trailers": OK + b"Transfer-Encoding: chunked\r\n\r\n{chunk}\r\n{good}\r\n0\r\nX: y\r\n\r\n",
    "after a hint": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: {length}\r\n\r\n{good}",
}
WRONG = {
    "retry": OK + b"Content-Length: {length}\r\n\r\n{again}",
    "error": b"HTTP/1.1 500 X\r\nContent-Length: {length}\r\n\r\n{good}",
    "redirection": b"HTTP/1.1 307 X\r\nLocation: /orders\r\nContent-Length: 0\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + OK + b"\r\n",
    "a body that cannot be": b"HTTP/1.1 204 X\r\nContent-Length: {length}\r\n\r\n{again}",
    "garbage": b"\0\1\r\n\r\n",
    "nothing": b"",
    "cut": OK + b"Content-Length: 99\r\n\r\n{good}",
    "cut chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n{chunk}\r\n{good}\r\n",
    "cut without a length": b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n{half}",
}
HANGS_UP = {"nothing", "cut", "cut chunks", "cut without a length"}
OTHER = ("hangs", "dies")


class HostileApplication:
    """Books every event that it answers with success, and notes those that come out of order."""

    def __init__(self, seed: int, *, is_bulk: bool) -> None:
        self.booked: Counter[str] = Counter()
        self.out_of_order: list[tuple[str, int, int]] = []
        self.died = asyncio.Event()
        self._random = random.Random(seed)
        bulk = {"enabled": True, "maxMessagesCount": 3, "maxAwaitDurationMs": 20} if is_bulk else {}
        self._wants = json.dumps([{"topic": "orders/>", "route": "/orders", "bulkSubscribe": bulk}]).encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                headers = dict(line.split(": ", 1) for line in head[1:-2])
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if head[0].startswith("get"):
                    writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(self._wants) + self._wants)
                elif not await self._answer(reader, writer, headers, json.loads(body)):
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader, writer, headers, event) -> bool:
        entries = event.get("entries", [{"metadata": headers}])
        told = [(entry["metadata"]["lbg-key"], int(entry["metadata"]["lbg-fencing-token"])) for entry in entries]
        for key, number in told:
            # The last one comes again if the application died before its answer had arrived.
            if number not in (self.booked[key], self.booked[key] + 1):
                self.out_of_order.append((key, number, self.booked[key]))
        way = self._random.choice((*RIGHT, *RIGHT, *RIGHT, *WRONG, *OTHER))
        if way == "hangs":
            await reader.read()
        elif way == "dies":
            self.died.set()
        else:
            writer.write(self._written({**RIGHT, **WRONG}[way], entries))
            if way in RIGHT:
                self.booked.update(dict.fromkeys((key for key, number in told if number > self.booked[key]), 1))
        return way not in HANGS_UP and way not in OTHER

    def _written(self, answer: bytes, entries) -> bytes:
        def said(status: str) -> bytes:
            answers = [{"entryId": entry["entryId"], "status": status} for entry in entries if "entryId" in entry]
            return json.dumps({"statuses": answers} if answers else {"status": status}).encode()

        good = said("SUCCESS")
        again = said("RETRY").ljust(len(good))
        facts = {"length": b"%d" % len(good), "chunk": b"%x" % len(good)}
        facts |= {"good": good, "again": again, "half": again[: len(again) // 2]}
        for name, fact in facts.items():
            answer = answer.replace(b"{%s}" % name.encode(), fact)
        return answer


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_no_event_is_passed_over_whatever_is_answered(trial: SidecarTrial, is_bulk: bool) -> None:
    application = HostileApplication(1, is_bulk=is_bulk)
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def live_again_and_again() -> None:
        port = 0
        while True:
            application.died.clear()
            async with listening(application.serve, port=port) as port:
                if not address.done():
                    address.set_result(f"http://{OWN_HOST}:{port}")
                await application.died.wait()

    async with asyncio.TaskGroup() as tasks:
        living = tasks.create_task(live_again_and_again())
        app = trial.app(
            sidecar={"application": await address, "listen": "off", "health": {"interval": "50ms"}},
            failure={"timeout": "300ms", "backoff": {"initial": "5ms", "maximum": "20ms"}},
        )
        async with trial.at_work(app):
            await trial.publish(KEYS * EACH, keys=KEYS)
            await trial.until(lambda: sum(trial.depths()) == 0, within_s=PATIENCE_S)
        living.cancel()
    assert application.out_of_order == []
    assert application.booked == {f"k{number}": EACH for number in range(KEYS)}
