"""Whatever a test does to a group, its members keep the laws, and the kit does not say otherwise."""

import asyncio
import random

import pytest

from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.testing.group_context import running
from tests.testing.troubles import mend, trouble

ROUNDS = 12
KEYS = 5


class Story:
    """One run by a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.published: dict[str, list[bytes]] = {}

    def handlers(self) -> Handlers:
        handlers = Handlers()

        @handlers.handler("orders/>")
        async def handle(message):
            await asyncio.sleep(self.chance.choice((0, 0.1, 2)))
            if self.chance.random() < 0.1:
                raise ValueError("bad luck")

        return handlers

    async def publish(self, group):
        for _ in range(self.chance.randrange(8)):
            key = f"k{self.chance.randrange(KEYS)}"
            payloads = self.published.setdefault(key, [])
            payloads.append(b"%d" % len(payloads))
            await group.publish("orders/new", payloads[-1], key=key)


@pytest.mark.parametrize("mode", ["cooperative", "cycle"])
@pytest.mark.parametrize("seed", [3, 4, 121, 141, 179, 182, 1036])
async def test_order_survives_everything(seed, mode):
    story = Story(seed)
    settings = {"rebind": {"mode": mode, "interval": "10s"}}
    if mode == "cycle":
        settings["membership"] = {"mode": "static", "count": 3}
    async with running(story.handlers(), members=3, settings=settings, seed=seed) as group:
        for _ in range(ROUNDS):
            await story.publish(group)
            await group.advance(story.chance.choice((0, 0.5, 5, 20)))
            await trouble(story.chance, group)
        mend(group)
        await group.settled(within_s=600)
        group.assert_handled(story.published)
