"""A member of the group of `group_broker`, in a process of its own, on the official client's fast path.

Arguments, as one JSON object: `host`, `queues`, `index`, `count` (of members), `max_in_flight`, `runners`, `wait_ms`
(shortest and longest wait of the handler; both 0 for one that does nothing), `raises` (how often the handler fails for
each message before it succeeds). Every line on its standard input is answered by a line with what it has handled since
the line before; it leaves when its input ends.
"""

import asyncio
import base64
import logging
import os
import random
import sys
import time
from array import array
from dataclasses import asdict
from typing import Any, BinaryIO

import orjson
import uvloop

from lbg_runtime.cli.bench.arms.shapes import TOPIC, shape_of
from lbg_runtime.cli.bench.arms.usage import memory_bytes, messages_in_use
from lbg_runtime.cli.lines import read_lines
from lbg_runtime.cli.log import quiet_log
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers


class PretendedFailure(Exception):
    """What a handler raises that is meant to fail."""


class Account:
    """What was handled since the last `take`. Keeps nothing per key, as what the runtime keeps is measured."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._first_ns = self._last_ns = self._first_cpu_ns = 0
        self._failures: dict[int, int] = {}
        """How often each message has failed that has not yet succeeded."""
        self._raised = 0

    def fail(self, message: Message, times: int) -> None:
        """Raise, unless this message has already failed this many times."""
        number = int(message.message_id or "")
        failed = self._failures.get(number, 0)
        if failed < times:
            self._failures[number] = failed + 1
            self._raised += 1
            raise PretendedFailure(f"failure {failed + 1} of {times}")
        self._failures.pop(number, None)

    def note(self, message: Message) -> None:
        self._last_ns = time.monotonic_ns()
        if not self._numbers:
            self._first_ns, self._first_cpu_ns = self._last_ns, time.process_time_ns()
        self._numbers.append(int(message.message_id or ""))

    def take(self) -> dict[str, object]:
        """Return what was handled, and start again from nothing."""
        numbers, self._numbers = self._numbers, array("q")
        raised, self._raised = self._raised, 0
        return {
            "raised": raised,
            "first_ns": self._first_ns,
            "last_ns": self._last_ns,
            "cpu_ns": time.process_time_ns() - self._first_cpu_ns,
            "numbers": base64.b64encode(numbers.tobytes()).decode(),
            "memory_bytes": memory_bytes(),
            "native_messages": messages_in_use(),
        }


async def _run(told: dict[str, Any], answers: BinaryIO) -> None:
    account = Account()
    handlers = Handlers()
    shortest_s, longest_s = (part / 1_000 for part in told["wait_ms"])

    raises: int = told["raises"]
    if raises:

        @handlers.handler(TOPIC)
        async def handle(message: Message) -> None:
            account.fail(message, raises)
            account.note(message)
    elif longest_s:

        @handlers.handler(TOPIC)
        async def handle(message: Message) -> None:
            await asyncio.sleep(random.uniform(shortest_s, longest_s))
            account.note(message)
    else:

        @handlers.handler(TOPIC)
        async def handle(message: Message) -> None:
            account.note(message)

    shape = shape_of("bench", told["queues"])
    settings = Settings.model_validate(
        {
            "connection": {"transport": "solace", "host": told["host"], "client_name": f"member-{told['index']}"},
            "transport": {"client_path": "fast"},
            "group": asdict(shape),
            # Short delays, so that every member soon has its queues.
            "membership": {"mode": "static", "index": told["index"], "count": told["count"], "settle": "200ms"},
            "rebind": {"standbys": 0, "min_tenure": "0ms"},
            "failure": {"backoff": {"initial": "1ms", "maximum": "1ms"}},
            "dispatch": {"max_in_flight": told["max_in_flight"], "runners": told["runners"]},
        }
    )
    app = App(handlers, settings)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(app.run())
        async for _ in read_lines(sys.stdin.fileno()):
            answers.write(orjson.dumps(account.take()) + b"\n")
            answers.flush()
        app.stop()
        report = await running
    if not report.is_clean:
        raise SystemExit("it left something behind")


if __name__ == "__main__":
    # Every failure of a handler is a warning, and there may be a million of them.
    quiet_log(logging.ERROR)
    # Answers are long, and nothing else that this process prints may come in between.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        uvloop.run(_run(orjson.loads(sys.argv[1]), output))
