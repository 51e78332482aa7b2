"""Whatever happens to a member, and whenever: its shell loses nothing, keeps the order, and leaves nothing behind.

The machines' histories are all tried elsewhere; this is about what stands between them and the loop: who wakes whom,
what a cancellation cuts short, what is still on its way. `every_step` tells the stories. Here a few steps of each are
tried, others for each mishap; `python -m tests.runtime.test_every_step` tries them all, then pairs of mishaps, which
takes a quarter of an hour.
"""

import asyncio
import gc
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import pytest
import structlog

from lbg_runtime.broker.engine.effects import ActivityChanged, FlowEnded
from lbg_runtime.core.flow.events import HandBackRequested, UnbindFinished
from lbg_runtime.model.errors import (
    BindFailed,
    ConnectFailed,
    LbgError,
    PublishFailed,
    PublishRefused,
    RequestRefused,
    SubscribeFailed,
    TransportError,
)
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.flow_runner import FlowRunner
from lbg_runtime.runtime.runners.pool import RunnerPool
from lbg_runtime.runtime.supervisor import Supervisor
from tests.runtime.distant_session import LATENCY_S
from tests.runtime.every_step import ParkingWorld, SharedWorld, World, play


@cache
def steps_of(world_class):
    """How many there are while member a is there, if nothing happens."""
    return play(world_class).steps


@dataclass(frozen=True)
class Mishap:
    """`happen(world)` is called between two steps of the loop."""

    happen: Callable[[World], None]
    repeats: bool = True
    """Whether messages may be handled again that were handled before."""


def _cut(seconds):
    return lambda world: world.members["a"].session.drop_connection(seconds)


def _leave(*ways, after_s=0.0):
    def happen(world):
        a, first = world.members["a"], ways[0]
        if a.task is None:
            return
        a.leave(first)
        for way in ways[1:]:
            world.loop.call_later(after_s, lambda way=way: a.is_there and a.leave(way))

    return happen


def _end_flows(world):
    engine, session = world.broker.engine, world.members["a"].session
    for flow in [flow for flow in session._handles if flow.flow_id is not None]:
        ended = FlowEnded(session._client, flow.flow_id, 503, "Queue Shutdown")
        world.broker.post([ended, *engine.unbind(flow.flow_id)])


def _end_activity(world):
    session = world.members["a"].session
    for flow in [flow for flow in session._handles if flow.flow_id is not None and flow._active]:
        world.broker.post([ActivityChanged(session._client, flow.flow_id, active=False)])


def _stop_process(world):
    world.loop.stand_still(6)
    world.members["a"].lose_queues()


def _ask_back(world):
    if (made := world.members["a"].supervisor) is not None:
        for runner in made.runners:
            runner.post(HandBackRequested("move"))


MISHAPS = {
    "the connection is lost for a moment": Mishap(_cut(0.5)),
    "the connection is lost for longer than the way out": Mishap(_cut(20)),
    "the broker ends the flows": Mishap(_end_flows),
    "the flows are not fed any more": Mishap(_end_activity),
    "the process is stopped, and goes on": Mishap(_stop_process),
    "it is to give its queues back": Mishap(_ask_back, repeats=False),
    "it is asked to leave": Mishap(_leave("stop"), repeats=False),
    "it is asked to leave at once": Mishap(_leave("stop_now")),
    "it is asked to leave, and then at once": Mishap(_leave("stop", "stop_now", after_s=0.01)),
    "it is cancelled": Mishap(_leave("cancel")),
    "it is cancelled while it leaves": Mishap(_leave("stop", "cancel", after_s=LATENCY_S)),
}


async def _fail():
    raise ValueError("once")


async def _be_cancelled():
    raise asyncio.CancelledError


async def _cancel_itself():
    asyncio.current_task().cancel()


async def _hang():
    await asyncio.sleep(100)


async def _swallow_its_time_out():
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(100)


async def _fail_badly():
    raise BaseException("no Exception")  # noqa: TRY002 - some libraries' errors are none


OUTCOMES = {
    "fails": _fail,
    "raises a cancellation": _be_cancelled,
    "cancels its task and returns": _cancel_itself,
    "hangs": _hang,
    "hangs, and returns when it is cancelled": _swallow_its_time_out,
    "raises what is no Exception": _fail_badly,
}
"""What a handler does the first time."""

TROUBLES = {
    "open": [ConnectFailed("broker", "nothing listens there")],
    "provision": [TransportError("no answer"), RequestRefused("provision", "not allowed"), 3.0],
    "has_queue": [TransportError("no answer"), 3.0],
    "subscribe": [SubscribeFailed("topic", "no answer"), SubscribeFailed("topic", "not allowed", permanent=True), 3.0],
    "bind": [BindFailed(QueueName("orders/0"), "no answer"), 3.0, 20.0, RuntimeError("a defect")],
    "send": [PublishFailed("topic", "no answer"), PublishRefused("topic", "no room"), 3.0, 20.0],
    "unbind": [20.0, RuntimeError("a defect")],
    "settle": [RuntimeError("a defect")],
}
"""What a call of the transport raises, or how many seconds longer it takes. A member may end with an exception that no
protocol knows, and at its start."""


def faults(world_class, mishaps=(), outcomes=None, trouble=None, may_raise=()):
    """What is wrong with a run: `mishaps` by step, `outcomes` by message, `trouble` by call."""

    def arrange(world):
        world.outcomes |= outcomes or {}
        for step, name in mishaps:
            world.loop.mishaps[step] = lambda name=name: MISHAPS[name].happen(world)

    world = play(world_class, arrange, trouble)
    found, end = list(world.found), world.members["a"].end
    again = [identity for identity in world.repeated if identity not in (outcomes or {})]
    if again and not trouble and not any(MISHAPS[name].repeats for _, name in mishaps):
        found.append(f"handled again: {again}")
    tried_again = Counter(world.begun) - Counter([*world.done, ("a", 2), *(outcomes or {})])
    if tried_again and not (mishaps or trouble or may_raise):
        found.append(f"tried again: {tried_again}")
    if isinstance(end, BaseException) and not isinstance(end, may_raise):
        found.append(f"a ended with {end!r}")
    if not (trouble or outcomes) and all(name == "it is asked to leave" for _, name in mishaps) and not end.is_clean:
        found.append(f"a left with {end!r}")
    return found


@pytest.mark.parametrize("world_class", [World, ParkingWorld, SharedWorld])
def test_nothing_is_wrong_if_nothing_happens(world_class):
    world = play(world_class)
    assert world.found == world.repeated == []
    assert world.members["a"].end.is_clean
    assert world.most_at_once == 2


@pytest.mark.parametrize("name", MISHAPS)
@pytest.mark.parametrize(("world_class", "stride"), [(World, 13), (ParkingWorld, 50), (SharedWorld, 260)])
def test_a_mishap_at_whatever_step_loses_nothing_and_leaves_nothing_behind(world_class, stride, name):
    # The next mishap has other steps.
    first = 1 + 5 * list(MISHAPS).index(name) % stride
    found = {step: faults(world_class, [(step, name)]) for step in range(first, steps_of(world_class), stride)}
    assert {step: lines for step, lines in found.items() if lines} == {}


@pytest.mark.parametrize("name", OUTCOMES)
def test_whatever_a_handler_does_once_its_message_is_tried_again_and_no_other(name):
    found = {
        identity: faults(World, outcomes={identity: OUTCOMES[name]}) for identity in (("a", 1), ("b", 2), ("a", 3))
    }
    assert {identity: lines for identity, lines in found.items() if lines} == {}


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
def test_a_handler_that_ends_the_process_leaves_what_is_left_to_the_next_member(error):
    async def leave():
        raise error

    for identity in (("a", 1), ("a", 3), ("b", 2)):
        assert faults(World, outcomes={identity: leave}, may_raise=(SystemExit, KeyboardInterrupt)) == []


@pytest.mark.parametrize("call", TROUBLES)
def test_a_call_that_fails_or_takes_long_loses_nothing(call):
    world_class = {"subscribe": SharedWorld, "send": ParkingWorld}.get(call, World)
    found = {}
    for number in (1, 2):
        for trouble in TROUBLES[call]:
            lines = faults(world_class, trouble={(call, number): trouble}, may_raise=(LbgError, ExceptionGroup))
            found[number, repr(trouble)] = lines
    assert {which: lines for which, lines in found.items() if lines} == {}


async def _unbound_at_once(runner, epoch):
    runner.post(UnbindFinished(epoch))


PLANTED = {
    "what has not started is not given back": (Dispatcher, "return_unstarted", lambda *_, **__: None),
    "a runner that waits is not woken": (RunnerPool, "wake", lambda _: None),
    "a cancellation hits the next handler": (RunnerPool, "take_back", lambda *_: asyncio.sleep(0)),
    "a deadline of a flow passes unseen": (FlowRunner, "_deadline_reached", lambda _: None),
    "a flow is not unbound": (FlowRunner, "_unbind", _unbound_at_once),
    "a cancelled member does not leave": (Supervisor, "stop_now", lambda member: member._has_left.set()),
}
"""Mistakes, to show that they would be found."""


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_in_the_shell_would_be_found(mistake, monkeypatch):
    steps = steps_of(World)
    monkeypatch.setattr(*PLANTED[mistake])
    mishaps = ("the connection is lost for a moment", "it is asked to leave at once", "it is cancelled")
    assert (
        faults(World)
        or faults(World, outcomes={("a", 3): _cancel_itself})
        or any(faults(World, [(step, name)]) for step in range(29, steps, 8) for name in mishaps)
    )


def _try_everything():
    gc.freeze()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for world_class in (World, ParkingWorld, SharedWorld):
        last = steps_of(world_class)
        singles = [[(step, name)] for name in MISHAPS for step in range(1, last)]
        pairs = [
            [(step, name), (step + gap, after)]
            for name, after in itertools.product(MISHAPS, MISHAPS)
            for gap in (1, 5, 20)
            for step in range(1, last, 41)
        ]
        for mishaps in singles + pairs:
            if found := faults(world_class, mishaps):
                print(world_class.__name__, mishaps, *found, sep="\n  ")  # noqa: T201 - what it is for


if __name__ == "__main__":
    _try_everything()
