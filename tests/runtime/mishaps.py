"""What may happen to a member in a story of `every_step`, and what is wrong with it afterwards."""

import itertools
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import structlog

from lbg_runtime.broker.engine.effects import ActivityChanged, FlowEnded
from lbg_runtime.core.flow.events import HandBackRequested
from lbg_runtime.model.errors import (
    BindFailed,
    ConnectFailed,
    PublishFailed,
    PublishRefused,
    RequestRefused,
    SubscribeFailed,
    TransportError,
)
from lbg_runtime.model.ids import QueueName
from tests.runtime.distant_session import LATENCY_S
from tests.runtime.every_step import World, play


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
        ended = FlowEnded(session._client, flow.flow_id, "Queue Shutdown")
        world.broker.post([ended, *engine.unbind(flow.flow_id)])


def _end_activity(world):
    session = world.members["a"].session
    for flow in [flow for flow in session._handles if flow.flow_id is not None and flow._active]:
        world.broker.post([ActivityChanged(session._client, flow.flow_id, active=False)])


def _stop_process(world):
    world.loop.stand_still(6)
    world.members["a"].lose_queues()


def _sleep_with_host(world):
    world.loop.sleep_with_host(6)
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
    "its host sleeps": Mishap(_sleep_with_host),
    "it is to give its queues back": Mishap(_ask_back, repeats=False),
    "it is asked to leave": Mishap(_leave("stop"), repeats=False),
    "it is asked to leave at once": Mishap(_leave("stop_now")),
    "it is asked to leave, and then at once": Mishap(_leave("stop", "stop_now", after_s=0.01)),
    "it is killed": Mishap(lambda world: world.members["a"].kill()),
    "it is cancelled": Mishap(_leave("cancel")),
    "it is cancelled while it leaves": Mishap(_leave("stop", "cancel", after_s=LATENCY_S)),
}


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

    known = MISHAPS | world_class.MISHAPS

    def arrange(world):
        world.outcomes |= outcomes or {}
        for step, name in mishaps:
            world.loop.mishaps[step] = lambda name=name: known[name].happen(world)

    world = play(world_class, arrange, trouble)
    found, end = list(world.found), world.members["a"].end
    again = [identity for identity in world.repeated if identity not in (outcomes or {})]
    if again and not trouble and not any(known[name].repeats for _, name in mishaps):
        found.append(f"handled again: {again}")
    tried_again = Counter(world.begun) - Counter([*world.done, *world.failed, *(outcomes or {})])
    if tried_again and not (mishaps or trouble or may_raise):
        found.append(f"tried again: {tried_again}")
    if isinstance(end, BaseException) and not isinstance(end, may_raise):
        found.append(f"a ended with {end!r}")
    is_only_asked = all(name == "it is asked to leave" for _, name in mishaps) and not (trouble or outcomes)
    if world.LEAVES_NOTHING and is_only_asked and not end.is_clean:
        found.append(f"a left with {end!r}")
    return found


def try_everything(*world_classes):
    """Print what is wrong with any mishap at any step, and with pairs of them at some; takes minutes for each world."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for world_class in world_classes:
        last, known = steps_of(world_class), MISHAPS | world_class.MISHAPS
        singles = [[(step, name)] for name in known for step in range(1, last)]
        pairs = [
            [(step, name), (step + gap, after)]
            for name, after in itertools.product(known, known)
            for gap in (1, 5, 20)
            for step in range(1, last, 41)
        ]
        for mishaps in singles + pairs:
            if found := faults(world_class, mishaps):
                print(world_class.__name__, mishaps, *found, sep="\n  ")  # noqa: T201 - what it is for
