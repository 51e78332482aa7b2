"""Members that come, go, lose their connection, handlers that fail and hang: the promises hold all the same."""

import asyncio
import random
from collections import Counter

import pytest

MEMBERS = 3
KEYS = 6
MESSAGES = 180
SECTIONS = {
    "rebind": {"interval": "3s", "drain_timeout": "4s"},
    "failure": {"timeout": "2s", "backoff": {"initial": "50ms", "maximum": "1s"}},
    "dispatch": {"max_in_flight": 8, "runners": 4},
}
QUICK = {"rebind": {"drain_timeout": "4s", "min_tenure": "1s"}}


class Story:
    """One run by a seed; ends when everything published is handled."""

    def __init__(self, trial, seed, mode):
        self.trial = trial
        self.mode = mode
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

    def member(self, index):
        if self.mode == "cycle":
            return self.trial.member(index, MEMBERS, work=self.work, **SECTIONS)
        return self.trial.discovered(f"member-{index}", work=self.work, **SECTIONS | QUICK)

    async def play(self, *, with_outages):
        trial = self.trial
        async with trial.running(self.member(0)):
            await trial.until(lambda: len(trial.active()) == 4)
            others = [asyncio.ensure_future(self._come_and_go(index, with_outages)) for index in (1, 2)]
            for _ in range(MESSAGES // KEYS):
                await trial.publish(KEYS, KEYS)
                await asyncio.sleep(self.chance.uniform(0, 1))
            await asyncio.gather(*others)
            await trial.until(lambda: sum(trial.depths()) == 0, within_s=3_600)

    async def _come_and_go(self, index, with_outages):
        trial = self.trial
        for _ in range(3):
            await asyncio.sleep(self.chance.uniform(0, 5))
            async with trial.running(self.member(index)):
                await asyncio.sleep(self.chance.uniform(0, 8))
                if with_outages:
                    name = self.chance.choice((f"member-{index}", "member-0"))
                    trial.sessions[name].drop_connection(self.chance.uniform(0, 3))
                    await asyncio.sleep(self.chance.uniform(0, 5))


def _first_handlings(sequences):
    return {key: list(dict.fromkeys(numbers)) for key, numbers in sequences.items()}


EVERYTHING = {f"k{number}": list(range(1, MESSAGES // KEYS + 1)) for number in range(KEYS)}


@pytest.mark.parametrize("mode", ["cycle", "cooperative"])
@pytest.mark.parametrize("seed", range(4))
async def test_members_that_come_and_go_keep_the_order_without_overlap(trial, seed, mode):
    story = Story(trial, seed, mode)
    await story.play(with_outages=False)
    assert _first_handlings(trial.sequences()) == EVERYTHING
    assert story.overlaps == []
    assert len(trial.handled) == MESSAGES, "nothing was handled twice, as nothing was lost from sight"


@pytest.mark.parametrize("mode", ["cycle", "cooperative"])
@pytest.mark.parametrize("seed", range(100, 105))
async def test_outages_cost_repetition_and_never_a_message_or_its_place(trial, seed, mode):
    story = Story(trial, seed, mode)
    await story.play(with_outages=True)
    assert _first_handlings(trial.sequences()) == EVERYTHING
