"""Whatever handlers, middleware and hooks do, and whatever happens to their member meanwhile: nothing is lost, out of
order or settled without success, effects are there once, journals are valid, figures are true, and the member comes
to rest.

`drawn_worlds` has the pieces. Some worlds of each story are tried here; `python -m tests.runtime.test_drawn_worlds
FIRST BEHIND` tries all stories with these numbers, a thousand in some minutes, and prints what is wrong.
"""

import asyncio
import logging
import random
import sys

import pytest
import structlog

from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.guard.memory import Entry, MemoryGuard
from lbg_runtime.metrics.reading import LanesReading
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.failure import Then
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.dispatch.error_queue import ErrorQueue
from lbg_runtime.runtime.dispatch.seen_keys import SeenKeys
from lbg_runtime.runtime.dispatch.troubles import Troubles
from lbg_runtime.runtime.handlers.batches import _Line
from lbg_runtime.runtime.handlers.failure_policy import FailurePolicy
from lbg_runtime.runtime.handlers.hooks import QueueHooks, _Assignment
from lbg_runtime.runtime.handlers.middleware import _Turn
from lbg_runtime.runtime.handlers.publishing import Confirms
from lbg_runtime.runtime.handlers.resources import _Work
from lbg_runtime.runtime.journal import MemberJournal
from lbg_runtime.runtime.meters import MemberMeters
from lbg_runtime.runtime.parking.parked_queue import ParkedQueue
from lbg_runtime.runtime.runners.attempts import Attempt, InterruptedBy, RunningAttempts
from lbg_runtime.runtime.runners.batch_turns import BatchTurns
from tests.runtime.drawn_worlds import drawn
from tests.runtime.every_step import World
from tests.runtime.mishaps import MISHAPS, TROUBLES, faults
from tests.runtime.worlds import (
    ParkingWorld,
    PartitionedWorld,
    RestripedBackWorld,
    RestripedWorld,
    SharedParkingWorld,
    SharedWorld,
    StoppedWorld,
)

COUNTS = {
    World: 60,
    ParkingWorld: 20,
    StoppedWorld: 12,
    SharedWorld: 12,
    SharedParkingWorld: 8,
    PartitionedWorld: 12,
    RestripedWorld: 6,
    RestripedBackWorld: 6,
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


def _nothing(*_):
    pass


def _always_true(*_):
    return True


async def _wait_for_nothing(*_):
    pass


async def _cut_without_waiting(_, call, handling):
    call.is_cut = True
    call.task.cancel()


def _begin_all(_, call):
    for place in call.places.values():
        place.handling.route.attempts.begin(place.handling)


def _forget_who_must_not_begin(line, call):
    for item, place in list(call.places.items()):
        try:
            place.handling.route.attempts.look_before_begin(place.handling)
        except asyncio.CancelledError:
            del call.places[item], line._calls[item]
        else:
            place.handling.route.attempts.begin(place.handling)


def _recall(attempts, queue, epoch):
    attempts._end_waiting(queue, epoch, InterruptedBy.RECALL)


def _interrupt_unseen(attempt, _):
    attempt.task.cancel()


def _open_at_once(hooks, *given, open_for=QueueHooks.open_for):
    open_for(hooks, *given)
    return True


async def _move_nowhere(queue, handling, report):
    return queue._targets[report.then].queue


def _record_as_settled(journal, *given, handled=MemberJournal.handled, **_):
    handled(journal, *given, is_settled=True)


def _tell_nothing_of_parked(troubles, handling, report, to, *, moved=Troubles.moved):
    if report.then is not Then.PARK:
        moved(troubles, handling, report, to)


def _count_unsettled(meters, handling, _, *, ended=MemberMeters.ended):
    ended(meters, handling, is_settled=True)


def _count_no_failure(troubles, *given, attempt_failed=Troubles.attempt_failed, **more):
    attempt_failed(troubles, *given, **more)
    troubles._counts.failed_attempts -= 1


def _hold_nothing(_):
    return LanesReading(0, 0, 0)


async def _always(guard, message, effect):
    entry = guard.entries.setdefault(message.key, Entry(None))
    entry.value = effect(entry.value)
    return True


PLANTED = {
    "a batch that is cut short is not waited for": (73, _Line, "_cut_short", _cut_without_waiting),
    "a batch begins with what others may have": (73, _Line, "_begin_attempts", _begin_all),
    "what a batch leaves out is forgotten": (3950, _Line, "_begin_attempts", _forget_who_must_not_begin),
    "what was not called counts as tried": (21, RunningAttempts, "recall_put_off", _recall),
    "a handler that took too long is believed": (8, Attempt, "interrupt", _interrupt_unseen),
    "a failed message is tried again at once": (1, FailurePolicy, "delay_ms", lambda *_: 0),
    "no message is the first of its key": (0, SeenKeys, "meet", lambda *_: False),
    "what fails for good is thrown away": (1, ErrorQueue, "take", _move_nowhere),
    "what is published is not waited for": (76, Confirms, "all", _wait_for_nothing),
    "what middleware swallows counts as handled": (3, _Turn, "result", lambda *_: None),
    "what middleware leaves is not waited for": (3, _Turn, "until_ended", _wait_for_nothing),
    "messages come before on_assigned is done": (2, QueueHooks, "open_for", _open_at_once),
    "on_revoked is called while messages are handled": (101, QueueHooks, "count", lambda *_: None),
    "on_assigned does not wait for the epoch before": (31, _Assignment, "_wait_for_the_one_before", _wait_for_nothing),
    "a guard has each effect again": (2, MemoryGuard, "once", _always),
    "all is recorded as settled": (0, MemberJournal, "handled", _record_as_settled),
    "what goes back counts as handled": (1, MemberMeters, "ended", _count_unsettled),
    "what fails is not counted": (1, Troubles, "attempt_failed", _count_no_failure),
    "what is parked is not counted": (0, Troubles, "moved", _tell_nothing_of_parked),
    "nothing is said to lie in a parking queue": (0, ParkedQueue, "counts", (0, 0)),
    "a queue that came has no pause": (0, MemberMeters, "first_started", _nothing),
    "nothing is said to be held": (0, Dispatcher, "held", _hold_nothing),
    "nothing is said to be in flight": (0, FlowMachine, "in_flight", 0),
    "settlements leave before their records": (131, MemberJournal, "flush", lambda _: None),
    "what waits for its batch is handled though its queue has stopped": (5, Dispatcher, "_hold_what_waits", _nothing),
    "keys of a shard that was away count as known": (3, Dispatcher, "forget_keys", _nothing),
    "a thread that is at work is not waited for": (6, _Work, "abandon", _always_true),
    "nobody takes the place of a thread that hangs": (6, Dispatcher, "_replace_stuck_runner", _nothing),
    "what waits behind a gate begins though it was taken back": (1471, RunningAttempts, "look_before_begin", _nothing),
    "a batch of a queue that leaves waits for more": (352, BatchTurns, "leave", _nothing),
    "a batch of a shard that leaves waits for more": (13, BatchTurns, "move", _nothing),
}
"""Mistakes, to show that they would be found, and from which seed on they are looked for."""

PLANTED_ELSEWHERE = {
    "what is parked is not counted": ParkingWorld,
    "nothing is said to lie in a parking queue": ParkingWorld,
    "what waits for its batch is handled though its queue has stopped": StoppedWorld,
    "a batch of a shard that leaves waits for more": RestripedWorld,
    "keys of a shard that was away count as known": RestripedBackWorld,
}
"""The stories in which some are looked for; others are in worlds of one member."""


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_would_be_found(mistake, monkeypatch):
    first, *change = PLANTED[mistake]
    story = PLANTED_ELSEWHERE.get(mistake, World)
    monkeypatch.setattr(*change)
    assert any(faults_of(story, seed) for seed in range(first, first + 100))


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for seed in range(*map(int, sys.argv[1:3])):
        for story in COUNTS:
            if found := faults_of(story, seed):
                print(story.__name__, seed, *found, sep="\n  ", flush=True)  # noqa: T201 - what it is for
