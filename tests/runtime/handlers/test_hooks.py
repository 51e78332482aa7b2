"""What handler modules are told of a queue: its order, once per epoch, whatever happens to the flow.

More than 400 lines, as each hook is followed through every end of a flow.
"""

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.flow.events import (
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    MessageReceived,
    PlaceChanged,
    StepAsideRequested,
)
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import Epoch
from lbg_runtime.runtime.handlers.hooks import HookKind, QueueHooks, make_hook
from lbg_runtime.runtime.handlers.registry import Handlers
from tests.runtime.scripted import QUEUE, STANDBY, Trial


class Told:
    """Handlers whose hooks write down what they are told, and whose handlings write down theirs."""

    def __init__(self, log=None):
        self.log = [] if log is None else log
        self.during = {}
        """By kind: what a hook awaits before it has been told."""
        self.hooks = Handlers()
        for kind in ("assigned", "drain", "revoked"):
            getattr(self.hooks, f"on_{kind}")(self._hook(kind))

    def _hook(self, kind):
        async def hook(queue, epoch):
            self.log.append((f"{kind}?", queue, epoch))
            if kind in self.during:
                await self.during[kind](epoch)
            self.log[self.log.index((f"{kind}?", queue, epoch))] = (kind, queue, epoch)

        return hook

    def of_epochs(self):
        """Without the queue, where there is one only."""
        return [(entry[0], entry[-1]) for entry in self.log]


async def _return(_message):
    pass


@pytest.fixture(scope="session")
def hook_trial(rig, settings):
    def make(told, handle=_return, **arguments):
        return Trial(rig, settings, handle, hooks=told.hooks, **arguments)

    return make


# -- one flow


async def test_a_flow_with_hooks_that_was_full_goes_on(hook_trial, delivery):
    trial = hook_trial(Told(), dispatch={"max_in_flight": 4})
    async with trial.fed():
        await asyncio.sleep(1)
        for number in range(1, 5):
            trial.transport.sink(MessageReceived(delivery(number, f"k{number}")))
        await trial.transport.settled(4)
        await asyncio.sleep(1)
        intake = [name for name, *_ in trial.log if name.endswith("intake")]
        assert intake == ["start_intake", "stop_intake", "start_intake"]


async def test_nothing_is_asked_for_on_a_handle_that_lost_its_activity_before_its_hook_was_done(hook_trial):
    told = Told()
    told.during["assigned"] = lambda _: asyncio.sleep(1)
    trial = hook_trial(told)
    trial.transport.unbind_takes_s = 5
    async with trial.fed() as epoch:
        await asyncio.sleep(0.5)
        trial.transport.sink(FlowInactive(epoch))
        await asyncio.sleep(2)
        assert ("unbind", epoch) in trial.log
        assert ("start_intake", epoch) not in trial.log


async def test_a_hook_that_outlasts_its_handle_does_not_open_the_next_one_before_that_has_its_own(hook_trial):
    told = Told()
    told.during["assigned"] = lambda _: asyncio.sleep(1)
    trial = hook_trial(told)
    async with trial.fed() as epoch:
        await asyncio.sleep(0.5)
        trial.transport.sink(FlowInactive(epoch))
        following = await trial.activate()
        await asyncio.sleep(1)
        assert ("start_intake", following) not in trial.log
        await asyncio.sleep(1)
        assert ("start_intake", following) in trial.log


async def test_an_epoch_is_told_of_from_activity_to_unbind(hook_trial, delivery):
    told = Told()

    async def handle(message):
        await asyncio.sleep(1)
        told.log.append(("handled", int(message.payload)))

    async def look_at_the_flow(epoch):
        told.log.append(("unbound", ("unbind", epoch) in trial.log))

    told.during["revoked"] = look_at_the_flow
    trial = hook_trial(told, handle)
    async with trial.running() as task:
        epoch = await trial.activate()
        await asyncio.sleep(0.1)
        trial.transport.sink(MessageReceived(delivery(7, epoch=epoch)))
        await asyncio.sleep(0.1)
        trial.runner.stop()
        await task
    assert told.of_epochs() == [("assigned", 1), ("drain", 1), ("handled", 7), ("revoked", 1), ("unbound", True)]
    assert told.log[0] == ("assigned", "orders/0", 1)


async def test_nothing_is_asked_for_before_on_assigned_is_done(hook_trial):
    told, loaded = Told(), asyncio.Event()
    told.during["assigned"] = lambda _: loaded.wait()
    trial = hook_trial(told)
    async with trial.fed():
        await asyncio.sleep(1)
        assert ("start_intake", 1) not in trial.log
        loaded.set()
        await asyncio.sleep(0.001)
        assert trial.log.count(("start_intake", 1)) == 1


async def _fail_in_a_moment():
    await asyncio.sleep(0.01)
    raise ValueError("a child failed")


@pytest.mark.parametrize("how", ["raises", "hangs", "cancels itself", "cancels its task", "its task group fails"])
async def test_handling_goes_on_without_an_on_assigned_that_fails(hook_trial, delivery, how):
    async def fail(_epoch):
        if how == "raises":
            raise ValueError("no cache today")
        if how == "cancels itself":
            raise asyncio.CancelledError
        if how == "cancels its task":
            asyncio.current_task().cancel()
        if how == "its task group fails":
            async with asyncio.TaskGroup() as group:
                group.create_task(_fail_in_a_moment())
        await asyncio.sleep(1_000_000)

    told = Told()
    told.during["assigned"] = fail
    trial = hook_trial(told, failure={"timeout": "5s"})
    with capture_logs() as logs:
        async with trial.fed() as epoch:
            await asyncio.sleep(5.001)
            trial.transport.sink(MessageReceived(delivery(1, epoch=epoch)))
            await trial.transport.settled(1)
            assert ("start_intake", 1) in trial.log
    [line] = [line for line in logs if line["event"] == "hook_failed"]
    assert (line["hook"], line["queue"], line["epoch"], line["log_level"]) == ("on_assigned", "orders/0", 1, "warning")
    reasons = {
        "raises": "no cache today",
        "hangs": "did not finish within 5 s",
        "cancels itself": "CancelledError",
        "cancels its task": "CancelledError",
        "its task group fails": "a child failed",
    }
    assert reasons[how] in line["reason"]
    assert told.of_epochs() == [("assigned?", 1), ("drain", 1), ("revoked", 1)]


async def test_a_hook_with_an_error_that_cannot_be_shown_plays_no_part_either(hook_trial, delivery):
    class Detached:
        def __repr__(self):
            raise RuntimeError

    async def fail(_epoch):
        raise ValueError(Detached())

    told = Told()
    told.during = dict.fromkeys(("assigned", "drain", "revoked"), fail)
    trial = hook_trial(told)
    with capture_logs() as logs:
        async with trial.fed() as epoch:
            trial.transport.sink(MessageReceived(delivery(1, epoch=epoch)))
            await trial.transport.settled(1)
    reasons = [line["reason"] for line in logs if line["event"] == "hook_failed"]
    assert reasons == ["ValueError: (its text cannot be made: RuntimeError)"] * 3


async def test_a_hook_with_a_forgotten_await_says_so(hook_trial, delivery):
    hooks = Handlers()

    async def load(queue):
        raise AssertionError("it runs")

    @hooks.on_assigned
    async def on_assigned(queue, epoch):
        return load(queue)

    trial = hook_trial(SimpleNamespace(hooks=hooks))
    with capture_logs() as logs:
        async with trial.fed() as epoch:
            trial.transport.sink(MessageReceived(delivery(1, epoch=epoch)))
            await trial.transport.settled(1)
    [line] = [line for line in logs if line["event"] == "hook_failed"]
    assert line["hook"] == "on_assigned"
    assert "the hook returned something that nobody awaits or reads" in line["reason"]
    assert "load (is an `await` missing?)" in line["reason"]


async def test_a_hook_that_fails_keeps_no_other_from_being_called(hook_trial):
    told, more = Told(), []

    async def fail(_epoch):
        raise ValueError

    told.during = dict.fromkeys(("assigned", "drain", "revoked"), fail)

    @told.hooks.on_assigned
    async def second(queue, epoch):
        more.append((queue, epoch))

    trial = hook_trial(told)
    async with trial.fed():
        await asyncio.sleep(1)
    assert more == [("orders/0", 1)]
    assert told.of_epochs() == [("assigned?", 1), ("drain?", 1), ("revoked?", 1)]


async def test_a_queue_given_up_while_it_is_assigned_is_told_of_in_order_and_opens_no_intake(hook_trial):
    told, loaded = Told(), asyncio.Event()
    told.during["assigned"] = lambda _: loaded.wait()
    trial = hook_trial(told)
    async with trial.running() as task:
        await trial.activate()
        await asyncio.sleep(0.1)
        trial.runner.stop()
        await asyncio.sleep(1)
        assert ("unbind", 1) in trial.log, "the release waits for no hook"
        assert not task.done(), "the member's end does"
        loaded.set()
        await asyncio.wait_for(task, 1)
    assert told.of_epochs() == [("assigned", 1), ("drain", 1), ("revoked", 1)]
    assert ("start_intake", 1) not in trial.log


async def test_the_death_of_a_handle_is_no_drain_and_is_over_when_its_last_handler_is(hook_trial, delivery):
    told = Told()

    async def handle(message):
        await asyncio.sleep(20)
        told.log.append(("handled", int(message.payload)))

    trial = hook_trial(told, handle)
    async with trial.fed() as first:
        await asyncio.sleep(0.1)
        trial.transport.sink(MessageReceived(delivery(7, epoch=first)))
        await asyncio.sleep(0.1)
        trial.transport.sink(FlowDown(first, "Queue Shutdown"))
        second = await trial.activate()
        await asyncio.sleep(1)
        assert ("start_intake", second) not in trial.log
        await asyncio.sleep(30)
        assert told.of_epochs() == [("assigned", 1), ("handled", 7), ("revoked", 1), ("assigned", 2)]
        assert ("start_intake", second) in trial.log


async def test_the_next_epoch_waits_for_a_handler_of_a_dead_handle_no_longer_than_the_time_out(hook_trial, delivery):
    told, release = Told(), asyncio.Event()

    async def handle(_message):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    trial = hook_trial(told, handle, failure={"timeout": "5s"})
    with capture_logs() as logs:
        async with trial.fed() as first:
            await asyncio.sleep(0.1)
            trial.transport.sink(MessageReceived(delivery(7, epoch=first)))
            await asyncio.sleep(0.1)
            trial.transport.sink(FlowDown(first, "Queue Shutdown"))
            await trial.activate()
            await asyncio.sleep(6)
            assert told.of_epochs() == [("assigned", 1), ("assigned", 2)]
            release.set()
            await asyncio.sleep(1)
    assert told.of_epochs() == [("assigned", 1), ("assigned", 2), ("revoked", 1), ("drain", 2), ("revoked", 2)]
    assert [line["event"] for line in logs].count("handling_outlived_its_epoch") == 1


async def test_lost_activity_is_no_drain(hook_trial):
    told = Told()
    trial = hook_trial(told)
    async with trial.fed() as first:
        await asyncio.sleep(0.1)
        trial.transport.sink(FlowInactive(first))
        await trial.activate()
        await asyncio.sleep(0.1)
        assert told.of_epochs() == [("assigned", 1), ("revoked", 1), ("assigned", 2)]


async def test_a_hand_back_that_is_given_up_is_told_as_a_drain_once(hook_trial, delivery):
    told, release = Told(), asyncio.Event()

    async def handle(_message):
        await release.wait()

    trial = hook_trial(told, handle, rebind={"drain_timeout": "2s"}, failure={"timeout": "1h"})
    async with trial.fed() as epoch:
        await asyncio.sleep(0.1)
        trial.transport.sink(MessageReceived(delivery(1, epoch=epoch)))
        trial.runner.post(HandBackRequested("move-1"))
        await asyncio.sleep(5)
        assert trial.runner.machine.state.value == "active"
        assert told.of_epochs() == [("assigned", 1), ("drain", 1)]
        release.set()
        trial.runner.post(HandBackRequested("move-2"))
        await asyncio.sleep(1)
        assert told.of_epochs() == [("assigned", 1), ("drain", 1), ("revoked", 1)]


async def test_a_standby_that_hops_or_is_not_wanted_is_not_told_of(hook_trial):
    told = Told()
    trial = hook_trial(told, place=STANDBY)
    async with trial.running():
        await trial.transport.binds.get()
        trial.runner.post(StepAsideRequested(60_000))
        trial.transport.sink(FlowActive(1))
        assert await trial.transport.binds.get() == 2, "it hopped"
        trial.runner.post(PlaceChanged(Place(None, gives_way=False)))
        await asyncio.sleep(1)
        assert ("unbind", 2) in trial.log
    assert told.log == []


# -- whole members


def check_epochs(log):
    """Per queue: assigned, one drain at most, revoked, and the next epoch only then."""
    for queue in {entry[1] for entry in log}:
        entries = [(epoch, kind) for kind, of_queue, epoch in log if of_queue == queue]
        assert entries == sorted(entries, key=lambda entry: entry[0]), "one epoch after another"
        for epoch, group in itertools.groupby(entries, key=lambda entry: entry[0]):
            kinds = [kind for _, kind in group]
            assert kinds in (["assigned", "drain", "revoked"], ["assigned", "revoked"]), (queue, epoch, kinds)


async def test_hand_back_and_stop_of_members_that_share_queues_are_told_in_order_and_once(trial):
    log_a, log_b = [], []
    async with trial.running(trial.discovered("a", hooks=Told(log_a).hooks)):
        await trial.until(lambda: trial.active() == dict.fromkeys(range(4), "a"))
        async with trial.running(trial.discovered("b", hooks=Told(log_b).hooks)):
            await trial.publish(40, 8)
            await trial.until(lambda: sorted(trial.active().values()) == ["a", "a", "b", "b"])
            await trial.until(lambda: sum(trial.depths()) == 0)
    for log in (log_a, log_b):
        check_epochs(log)
        assert {kind for kind, _, _ in log} == {"assigned", "drain", "revoked"}
    assert len([kind for kind, _, _ in log_b if kind == "assigned"]) == 2, "the hops on the way are not told of"


async def test_a_lost_connection_is_told_of_in_order_and_once(trial):
    log = []
    async with trial.at_work(trial.member(hooks=Told(log).hooks)):
        for _ in range(5):
            await trial.publish(8, 8)
            trial.sessions["member-0"].drop_connection(0.5)
            await asyncio.sleep(5)
        await trial.until(lambda: sum(trial.depths()) == 0)
    check_epochs(log)
    assert len(log) > 4 * 3, "there were several epochs"


async def test_a_cancelled_member_tells_of_the_end(trial):
    log = []

    async def hang(_message):
        await asyncio.sleep(1_000_000)

    async with trial.at_work(trial.member(work=hang, hooks=Told(log).hooks)) as (task,):
        await trial.publish(4)
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    check_epochs(log)
    assert [kind for kind, _, _ in log].count("revoked") == 4


async def test_a_hook_that_never_ends_does_not_keep_a_member(trial):
    told = Told()
    told.during["revoked"] = lambda _: asyncio.sleep(1_000_000)
    async with trial.at_work(trial.member(hooks=told.hooks, failure={"timeout": "5s"})) as (task,):
        cancelled_at = asyncio.get_running_loop().time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - cancelled_at < 6


# -- first of a key


async def test_the_first_message_of_a_key_says_so_in_every_epoch_and_every_attempt(hook_trial, delivery):
    seen, failures = [], 0

    async def handle(message):
        nonlocal failures
        seen.append((int(message.payload), message.is_first_of_key))
        if message.payload == b"1" and failures < 2:
            failures += 1
            raise ValueError("not yet")

    trial = hook_trial(Told(), handle)
    async with trial.fed() as first:
        for number, key in ((1, "a"), (2, "a"), (3, "b")):
            trial.transport.sink(MessageReceived(delivery(number, key, epoch=first)))
        await trial.transport.settled(3)
        trial.transport.sink(FlowInactive(first))
        second = await trial.activate()
        for number, key in ((4, "b"), (5, "b")):
            trial.transport.sink(MessageReceived(delivery(number, key, epoch=second)))
        await trial.transport.settled(2)
    assert sorted(seen) == [(1, True), (1, True), (1, True), (2, False), (3, True), (4, True), (5, False)]


async def test_a_hook_is_cut_short_with_its_member_and_waited_for_and_no_other_is_called():
    loop, log = asyncio.get_running_loop(), []

    async def slow(queue, epoch):
        try:
            await asyncio.sleep(50)
        finally:
            await asyncio.sleep(1)
            log.append("slow")

    async def second(queue, epoch):
        log.append("second")

    made = tuple(make_hook(HookKind.DRAIN, function, "here") for function in (slow, second))
    call = asyncio.ensure_future(QueueHooks(made, QUEUE, 60_000).call(HookKind.DRAIN, Epoch(1)))
    await asyncio.sleep(1)
    began_s = loop.time()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (log, round(loop.time() - began_s)) == (["slow"], 1)
