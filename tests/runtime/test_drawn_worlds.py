"""Whatever handlers, middleware and hooks do, and whatever happens to their member meanwhile: nothing is lost, out of
order or settled without success, effects are there once, journals are valid, and the member comes to rest.

`drawn_worlds` has the pieces. Some worlds of each story are tried here; `python -m tests.runtime.test_drawn_worlds
FIRST BEHIND` tries all stories with these numbers, a thousand in some minutes, and prints what is wrong.
"""

import logging
import random
import sys

import pytest
import structlog

from lbg_runtime.model.errors import LbgError
from tests.runtime.drawn_worlds import drawn
from tests.runtime.every_step import World
from tests.runtime.mishaps import MISHAPS, TROUBLES, faults
from tests.runtime.worlds import (
    ParkingWorld,
    PartitionedWorld,
    RestripedWorld,
    SharedParkingWorld,
    SharedWorld,
    StoppedWorld,
)

COUNTS = {
    World: 80,
    ParkingWorld: 30,
    StoppedWorld: 20,
    SharedWorld: 20,
    SharedParkingWorld: 12,
    PartitionedWorld: 20,
    RestripedWorld: 12,
}
"""How many worlds of each story are tried here."""

TROUBLED = ("provision", "has_queue", "subscribe", "bind", "send", "send", "send")
"""Calls of a transport that fail, or take long, in some worlds."""


def faults_of(story, seed):
    """What is wrong with the world of a seed: up to three mishaps happen, and calls of the transport may fail."""
    chance, known = random.Random(f"what happens {seed}"), sorted(MISHAPS | story.MISHAPS)
    last = chance.choice([200, 400, 700])
    mishaps = [(chance.randrange(1, last), chance.choice(known)) for _ in range(chance.choice([0, 1, 1, 1, 2, 2, 3]))]
    trouble = {}
    # A queue that stops would do so for good.
    if chance.random() < 0.25 and story is not StoppedWorld:
        for call in chance.sample(TROUBLED, chance.randint(1, 2)):
            trouble[call, chance.randint(1, 12)] = chance.choice(TROUBLES[call][:-1] or TROUBLES[call])
    may_raise = (LbgError, ExceptionGroup) if trouble else ()
    return faults(drawn(story, seed), mishaps, trouble=trouble, may_raise=may_raise)


@pytest.mark.parametrize("story", COUNTS)
def test_whatever_is_drawn_keeps_the_laws(story):
    found = {seed: faults_of(story, seed) for seed in range(COUNTS[story])}
    assert {seed: lines for seed, lines in found.items() if lines} == {}


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for seed in range(*map(int, sys.argv[1:3])):
        for story in COUNTS:
            if found := faults_of(story, seed):
                print(story.__name__, seed, *found, sep="\n  ", flush=True)  # noqa: T201 - what it is for
