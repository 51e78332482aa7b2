"""A steady load of keyed messages, for demos, measurements and rehearsals."""

import asyncio
from dataclasses import dataclass

import orjson

from lbg_runtime.core.chance import RandomSource
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.pace import Pace

_TICK_S = 0.005
_BATCH = 50
"""How many messages are sent between two turns of the event loop, if no rate is given."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to publish. With neither count nor duration, the load goes on until it is cancelled."""

    topic: str
    keys: tuple[str, ...]
    count: int | None = None
    """Total number of messages."""
    rate_per_s: float | None = None
    """None: as fast as the broker confirms."""
    duration_s: float | None = None


def numbered_keys(count: int) -> tuple[str, ...]:
    """The keys `1` to `count`: numbers, so that every hash function takes them."""
    return tuple(str(number) for number in range(1, count + 1))


def load_payload(key: str, number: int) -> bytes:
    """The payload of a generated message, counted from 1."""
    return orjson.dumps({"key": key, "number": number})


async def run_load(publisher: HashedPublisher, plan: LoadPlan, chance: RandomSource) -> None:
    """Send the planned messages, each with a random key; return when the last one is sent.

    Waits while too much is unconfirmed, so an outage delays the load but does not end it. The publisher reports what
    the broker refuses, and the load goes on.
    """
    try:
        async with asyncio.timeout(plan.duration_s):
            await _send_all(publisher, plan, chance)
    except TimeoutError:
        return  # the duration is over


async def _send_all(publisher: HashedPublisher, plan: LoadPlan, chance: RandomSource) -> None:
    loop = asyncio.get_running_loop()
    pace = None if plan.rate_per_s is None else Pace(plan.rate_per_s, loop.time())
    number = 0
    while plan.count is None or number < plan.count:
        due = _BATCH if pace is None else pace.due(loop.time())
        for _ in range(due if plan.count is None else min(due, plan.count - number)):
            number += 1
            key = plan.keys[min(int(chance.uniform(0, len(plan.keys))), len(plan.keys) - 1)]
            await publisher.submit(plan.topic, load_payload(key, number), key=key)
        await asyncio.sleep(0 if pace is None else _TICK_S)
