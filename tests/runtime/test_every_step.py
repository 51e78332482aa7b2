"""Whatever happens to a member, and whenever: its shell loses nothing, keeps the order, and leaves nothing behind.

The machines' histories are all tried elsewhere; this is about what stands between them and the loop: who wakes whom,
what a cancellation cuts short, what is still on its way. `every_step` and `worlds` tell the stories, `mishaps` says
what may happen. Here a few steps of each are tried, others for each mishap; `python -m tests.runtime.test_every_step`
tries them all, then pairs of mishaps, which takes an hour or two.
"""

import asyncio
from contextlib import suppress

import pytest

from lbg_runtime.core.flow.events import UnbindFinished
from lbg_runtime.journal.writer import RecordWriter
from lbg_runtime.model.errors import LbgError
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.flow import settings as flow_settings
from lbg_runtime.runtime.flow.member_flows import MemberFlows
from lbg_runtime.runtime.flow.runner import FlowRunner
from lbg_runtime.runtime.runners.pool import RunnerPool
from lbg_runtime.runtime.supervisor import Supervisor
from tests.core.restripe.broken_gates import HandlesWhatLiesBehindTheMarker
from tests.runtime.every_step import World, play
from tests.runtime.mishaps import MISHAPS, TROUBLES, faults, steps_of, try_everything
from tests.runtime.worlds import (
    JournaledWorld,
    ParkingWorld,
    PartitionedWorld,
    RestripedBackWorld,
    RestripedWorld,
    SharedParkingWorld,
    SharedWorld,
    StoppedWorld,
)

WORLDS = {
    World: 13,
    ParkingWorld: 50,
    StoppedWorld: 80,
    SharedWorld: 260,
    SharedParkingWorld: 430,
    PartitionedWorld: 130,
    RestripedWorld: 587,
    RestripedBackWorld: 1100,
    JournaledWorld: 60,
}
"""Each with the distance between the steps that are tried here."""


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


@pytest.mark.parametrize("world_class", WORLDS)
def test_nothing_is_wrong_if_nothing_happens(world_class):
    world = play(world_class)
    assert world.found == world.repeated == []
    assert world.members["a"].end.is_clean
    assert world.most_at_once == 2


@pytest.mark.parametrize(
    ("world_class", "name"), [(world_class, name) for world_class in WORLDS for name in MISHAPS | world_class.MISHAPS]
)
def test_a_mishap_at_whatever_step_loses_nothing_and_leaves_nothing_behind(world_class, name):
    stride = WORLDS[world_class]
    # The next mishap has other steps.
    first = 1 + 47 * list(MISHAPS | world_class.MISHAPS).index(name) % stride
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
    "what has not started is not given back": (World, Dispatcher, "return_unstarted", lambda *_, **__: None),
    "a runner that waits is not woken": (World, RunnerPool, "wake", lambda _: None),
    "a cancellation hits the next handler": (World, RunnerPool, "take_back", lambda *_: asyncio.sleep(0)),
    "a deadline of a flow passes unseen": (World, FlowRunner, "_deadline_reached", lambda _: None),
    "a flow is not unbound": (World, FlowRunner, "_unbind", _unbound_at_once),
    "a cancelled member does not leave": (World, Supervisor, "stop_now", lambda member: member._flows.have_left.set()),
    "what a stopped queue holds is waited for": (StoppedWorld, MemberFlows, "end_drains_in_vain", lambda *_: None),
    "nobody asks whether settlements have arrived": (RestripedWorld, Supervisor, "probe_asked", lambda *_: None),
    "both queues handle a shard": (RestripedWorld, flow_settings, "StripeGate", HandlesWhatLiesBehindTheMarker),
    "nobody sees that the host has slept": (World, Dispatcher, "_note_awake", lambda *_: None),
    "what found no room is not missed": (JournaledWorld, RecordWriter, "_count_part", lambda *_: None),
}
"""Mistakes, to show that they would be found, and in which world."""


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_in_the_shell_would_be_found(mistake, monkeypatch):
    world_class, *change = PLANTED[mistake]
    steps = steps_of(world_class)
    monkeypatch.setattr(*change)
    lost, left = "the connection is lost for a moment", "it is asked to leave at once"
    mishaps = (lost, "its host sleeps", left, "it is cancelled")
    assert (
        faults(world_class)
        or faults(world_class, outcomes={("a", 3): _cancel_itself})
        or any(
            faults(world_class, [(step, name)])
            for step in range(29, steps, 3)
            for name in (*world_class.MISHAPS, *mishaps)
        )
    )


if __name__ == "__main__":
    try_everything(*WORLDS)
