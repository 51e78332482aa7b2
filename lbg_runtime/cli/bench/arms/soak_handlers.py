"""Handlers of the members of `soak`: work that waits, fails now and then, and a look at the process every second."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import orjson

from lbg_runtime import Handlers, Message
from lbg_runtime.cli.bench.arms.usage import memory_bytes, messages_in_use
from lbg_runtime.cli.bench.soak import FOLDER_VARIABLE

LOOK_EVERY_S = 1.0

_WORK_S = (0.0, 0.010)
_FAILURES = 0.0005

handlers = Handlers()


class PretendedFailure(Exception):
    """A handler's occasional failure; the message is tried again."""


@handlers.handler("orders/>")
async def on_order(message: Message) -> None:  # noqa: ARG001 - the work does not depend on the order
    """Pause at every second message on average, and fail at one in two thousand."""
    if random.random() < _FAILURES:
        raise PretendedFailure("for the soak")
    if random.random() < 0.5:
        await asyncio.sleep(random.uniform(*_WORK_S))


@handlers.lifespan
async def watched() -> AsyncIterator[None]:
    """Write down what this process uses, for as long as it is a member."""
    watching = asyncio.create_task(_watch(Path(os.environ[FOLDER_VARIABLE]) / f"{os.getpid()}.figures.jsonl"))
    yield
    watching.cancel()


async def _watch(file: Path) -> None:
    with file.open("ab", buffering=0) as output:
        while True:
            line = {"memory_bytes": memory_bytes(), "native_messages": messages_in_use()}
            output.write(orjson.dumps(line) + b"\n")
            await asyncio.sleep(LOOK_EVERY_S)
