"""Hot keys beyond every cap, while members are killed and stopped: judged by the laws, and nothing is left."""

import asyncio
import random

import pytest

from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.registry import Handlers

SETTINGS = {
    "dispatch": {"max_in_flight": 8, "max_waiting_per_key": 2, "max_held": 40},
    "failure": {"timeout": "2s", "backoff": {"initial": "50ms", "maximum": "500ms"}},
}


@pytest.mark.parametrize("seed", range(4))
async def test_the_laws_hold_and_everything_is_handled(lbg_running, seed):
    chance = random.Random(seed)
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def handle(message: Message) -> None:
        if message.key == "hot":
            await asyncio.sleep(chance.uniform(0, 0.2))
        if chance.random() < 0.03:
            raise ConnectionError

    async with lbg_running(handlers, members=("a", "b"), settings=SETTINGS, seed=seed) as group:
        for number in range(60):
            await group.publish("orders/new", *[f"{number}"] * 4, key="hot")
            await group.publish("orders/new", f"{number}", key=f"k{number % 12}")
            if number == 20:
                group.kill("a")
                group.start("a")
            if number == 40:
                await group.stop("b")
        await group.settled()
        assert len(group.handled("hot")) >= 240
