"""Members that come and go, and handlers that take their time, fail and hang, by a seed."""

import asyncio
import random
from collections import Counter


class Visitors:
    """Makes no member itself: `member(index)` is to be added. The caller runs member 0, all the time."""

    def __init__(self, trial, seed):
        self.trial = trial
        self.chance = random.Random(seed)
        self.running = Counter()
        self.overlaps = []
        self.troubled_until_s = asyncio.get_running_loop().time() + 60

    async def work(self, message):
        self.running[message.key] += 1
        if self.running[message.key] > 1:
            self.overlaps.append((message.key, message.key_sequence))
        try:
            await asyncio.sleep(self.chance.uniform(0, 0.05))
            if asyncio.get_running_loop().time() < self.troubled_until_s:
                luck = self.chance.random()
                if luck < 0.02:
                    await asyncio.sleep(1_000)
                elif luck < 0.1:
                    raise ValueError("bad luck")
        finally:
            self.running[message.key] -= 1

    async def play(self, rounds, keys, *, with_outages):
        """While member 0 runs: publish a message of each key in each round; ends when all that was published is
        handled."""
        others = [asyncio.ensure_future(self.come_and_go(index, with_outages)) for index in (1, 2)]
        for _ in range(rounds):
            await self.trial.publish(keys, keys)
            await asyncio.sleep(self.chance.uniform(0, 1))
        await asyncio.gather(*others)
        await self.trial.until(lambda: sum(self.trial.depths()) == 0, within_s=3_600)

    async def come_and_go(self, index, with_outages):
        for _ in range(3):
            await asyncio.sleep(self.chance.uniform(0, 5))
            async with self.trial.running(self.member(index)):
                await asyncio.sleep(self.chance.uniform(0, 8))
                if with_outages:
                    name = self.chance.choice((f"member-{index}", "member-0"))
                    self.trial.sessions[name].drop_connection(self.chance.uniform(0, 3))
                    await asyncio.sleep(self.chance.uniform(0, 5))


def first_handlings(sequences):
    return {key: list(dict.fromkeys(numbers)) for key, numbers in sequences.items()}
