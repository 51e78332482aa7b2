"""How long a scrape of a member takes, over HTTP: `python -m tests.metrics.bench [QUEUES]`. No test.

The member is a real one, on a memory broker in this process, and owns all its queues; scrapes come one after another on
one connection, as a monitoring system's do. The CPU time is that of the whole process, the asking side included.
"""

import asyncio
import http.client
import logging
import statistics
import sys
import time

import structlog

from lbg_runtime.cli.live.group import free_ports
from lbg_runtime.config.load import parse_settings
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport

SCRAPES = 100
BOUND_S = 120


def scrape(connection: http.client.HTTPConnection) -> bytes:
    connection.request("GET", "/metrics")
    return connection.getresponse().read()


def measured(port: int, queues: int) -> str:
    """In a thread, as the loop is the member's."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND_S)
    deadline_s = time.monotonic() + BOUND_S
    while f'lbg_queues{{state="active"}} {queues}.0\n'.encode() not in scrape(connection):
        if time.monotonic() > deadline_s:
            raise TimeoutError("not every queue is fed to the member")
    took_ms, began_cpu_s, size = [], time.process_time(), 0
    for _ in range(SCRAPES):
        began_s = time.perf_counter()
        size = len(scrape(connection))
        took_ms.append((time.perf_counter() - began_s) * 1_000)
    cpu_ms = (time.process_time() - began_cpu_s) * 1_000 / SCRAPES
    connection.close()
    middle, worst = statistics.median(took_ms), max(took_ms)
    return (
        f"{queues} queues, {size} bytes: median {middle:.1f} ms, worst {worst:.1f} ms, {cpu_ms:.1f} ms of CPU for each"
    )


async def measure(queues: int) -> str:
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def handle(_: object) -> None:
        pass

    (port,) = free_ports(1)
    group = {"name": "orders", "hash_prefix": "h", "hash_count": queues, "queue_count": queues}
    settings = parse_settings(
        {
            "group": {**group, "provision": "create_missing"},
            "membership": {"id": "a", "settle": "0ms"},
            "ops": {"status": f"127.0.0.1:{port}"},
        },
        "bench",
        {},
    )
    app = App(handlers, settings, session=MemoryTransport(MemoryBroker(), "a"))
    running = asyncio.create_task(app.run())
    try:
        # It listens from its first steps on.
        await asyncio.sleep(1)
        return await asyncio.to_thread(measured, port, queues)
    finally:
        app.stop_now()
        await running


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sys.stdout.write(asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)) + "\n")
