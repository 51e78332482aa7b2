"""The development broker with the queues of a whole group, filled on request, in a process of its own.

Argument: how many queues. Reports on standard output where it listens, as one JSON line. A line `COUNT KEYS FIRST` on
its standard input puts COUNT messages on the queues, of KEYS keys in turn, the first key being number FIRST; then, and
after an empty line, it reports what it has used and done so far. It leaves when its input ends.
"""

import sys
import time
from collections import Counter

import uvloop

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.answering import answer_lines
from lbg_runtime.cli.bench.arms.filled_broker import CountingEngine, Filler
from lbg_runtime.cli.bench.arms.shapes import shape_of
from lbg_runtime.cli.bench.arms.usage import memory_bytes
from lbg_runtime.cli.garbage import collect_seldom
from lbg_runtime.cli.log import quiet_log


async def _serve(queue_count: int) -> None:
    engine = CountingEngine("bench")
    async with BrokerServer(engine=engine) as server:
        filler = Filler(server, shape_of("bench", queue_count))
        collect_seldom()

        def answer(line: bytes) -> dict[str, object]:
            if line:
                filler.fill(*map(int, line.split()))
            return _facts(engine)

        await answer_lines(server.url, answer)


def _facts(engine: CountingEngine) -> dict[str, object]:
    feeds: Counter[str] = Counter()
    depth = 0
    for name in engine.queue_names(DEFAULT_VPN):
        status = engine.queue_status(DEFAULT_VPN, name)
        depth += status.depth
        feeds.update(flow.client_name for flow in status.flows if flow.active)
    return {
        "cpu_s": time.process_time(),
        "memory_bytes": memory_bytes(),
        "depth": depth,
        "feeds": feeds,
        "settle_frames": engine.settle_frames,
    }


if __name__ == "__main__":
    quiet_log()
    uvloop.run(_serve(int(sys.argv[1])))
