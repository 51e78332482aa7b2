"""A development broker that reports what it uses, or a peer that does none of a broker's work; for `broker`.

Arguments: `broker`, and how many queues with one subscription each; `stored`, the same with a store; or `bare`, and how
many messages it has ready. Reports on standard output where it listens, as one JSON line. Every line on its standard
input is answered by a line with what it has used and done; it leaves when its input ends.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import uvloop

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.broker.store.store import Store
from lbg_runtime.cli.bench.arms.answering import answer_lines
from lbg_runtime.cli.bench.arms.raw_client import (
    FLOW,
    PAYLOAD_BYTES,
    WINDOW,
    message_frame,
    numbered,
    queue_name,
    topic_of,
)
from lbg_runtime.cli.bench.arms.usage import memory_bytes
from lbg_runtime.cli.garbage import collect_seldom
from lbg_runtime.cli.log import quiet_log
from lbg_runtime.smf.assured_ctrl import ClientAck, publisher_ack_body, read_assured
from lbg_runtime.smf.frame import FrameReader, Protocol, decode_frame, protocol_of
from lbg_runtime.smf.message import read_published
from lbg_runtime.smf.response import OK, answer


class BarePeer(asyncio.Protocol):
    """Cuts its input into frames, confirms messages and sends ready ones. Keeps, looks up and orders nothing."""

    def __init__(self, ready: Sequence[bytes]) -> None:
        self._ready = ready
        self._reader = FrameReader(1 << 30)
        self._transport: asyncio.Transport | None = None
        self._received = 0
        self._sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._reader.feed(data)
        before = self._received
        while (raw := self._reader.next_frame()) is not None:
            if protocol_of(raw) == Protocol.MESSAGE:
                self._received += 1
            else:
                self._send_more(raw)
        if self._received != before:
            body = publisher_ack_body(FLOW, self._received)
            self._transport.write(answer(Protocol.ASSURED_CTRL, body, OK))

    def _send_more(self, raw: bytes) -> None:
        request = read_assured(decode_frame(raw).body)
        if isinstance(request, ClientAck) and self._transport is not None:
            start, self._sent = self._sent, min(len(self._ready), (request.received_id or 0) + WINDOW)
            self._transport.write(b"".join(self._ready[start : self._sent]))


def ready_deliveries(count: int) -> list[bytes]:
    """What a broker sends to a flow that takes this many messages."""
    frames = []
    for number in range(count):
        relay = read_published(message_frame(FLOW, number + 1, topic_of(0), numbered(number, PAYLOAD_BYTES))).relay
        prefix = relay.delivery_prefix(number + 1, number, FLOW, redelivered=False)
        frames.append(prefix + relay.rest)
    return frames


async def _serve_broker(queue_count: int, store: Store | None = None) -> None:
    async with BrokerServer(store=store) as server:
        for queue in range(queue_count):
            server.create_queue(queue_name(queue), [topic_of(queue)])
        gc.collect()
        collect_seldom()
        counting_s = 0.0

        def answer(_: bytes) -> dict[str, object]:
            nonlocal counting_s
            began_s = time.process_time()
            names = server.engine.queue_names(DEFAULT_VPN)
            depth = sum(server.engine.queue_depth(DEFAULT_VPN, name) for name in names)
            # For ten thousand queues this takes as long as one message of each.
            counting_s += time.process_time() - began_s
            cpu_s = time.process_time() - counting_s
            return {"cpu_s": cpu_s, "memory_bytes": memory_bytes(), "depth": depth}

        await answer_lines(server.url, answer)


async def _serve_stored(queue_count: int) -> None:
    with TemporaryDirectory(prefix="lbg-bench-") as folder:
        await _serve_broker(queue_count, Store.open(Path(folder) / "store"))


async def _serve_bare(count: int) -> None:
    ready = ready_deliveries(count)
    listener = await asyncio.get_running_loop().create_server(lambda: BarePeer(ready), "127.0.0.1", 0)
    async with listener:
        host = f"tcp://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        await answer_lines(host, lambda _: {"cpu_s": time.process_time(), "memory_bytes": memory_bytes()})


if __name__ == "__main__":
    quiet_log()
    serve = {"broker": _serve_broker, "stored": _serve_stored, "bare": _serve_bare}[sys.argv[1]]
    uvloop.run(serve(int(sys.argv[2])))
