"""What the shell of the control plane feeds its machine with."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.group.control_codec import MAX_MESSAGE_BYTES
from lbg_runtime.core.group.control_messages import Header, Leave, Life, MemberState
from lbg_runtime.core.group.control_plane import ControlInput, FlowChanged, Superseded
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    SettingsDisagree,
    ViewChanged,
    WeightChanged,
)
from lbg_runtime.core.group.rebalance_events import Say
from lbg_runtime.core.group.view import GroupView, MemberView
from lbg_runtime.model.errors import LbgError, MemberSuperseded, SubscribeFailed
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.control_plane import ControlPlane


class _Machine:
    """Notes what it is fed."""

    deadline_ms = None
    membership = SimpleNamespace(owner_of=None, identity=SimpleNamespace(member=MemberId("a")))

    def __init__(self) -> None:
        self.rebalance = SimpleNamespace(accepted=None, placement=None)
        self.must_hear = True
        self.asked: list[list[ControlInput]] = []
        """What waited whenever it was asked whether it must hear of flows."""
        self.taken: list[ControlInput] = []
        self.outputs: list[object] = []
        self.has_taken = asyncio.Event()

    def flow_reports(self) -> dict[str, object]:
        return {}

    def must_hear_of_flows(self, waiting: Iterable[ControlInput]) -> bool:
        self.asked.append(list(waiting))
        return self.must_hear

    def take(self, inputs: Iterable[ControlInput], now_ms: int) -> list[object]:
        self.taken += inputs
        self.has_taken.set()
        self.rebalance.placement = "with the first inputs"
        outputs, self.outputs = self.outputs, []
        return outputs


class _Session:
    """`failures`: those of the next attempts to subscribe."""

    def __init__(self, *failures: SubscribeFailed) -> None:
        self.attempts_s: list[float] = []
        self.failures = list(failures)

    async def subscribe(self, topic: str, arrived: object) -> None:
        self.attempts_s.append(asyncio.get_running_loop().time())
        if self.failures:
            raise self.failures.pop(0)

    def send_direct(self, message: Message) -> None:
        pytest.fail("nothing is to be said")

    def watch_connection(self, changed: Callable[[bool], None]) -> None:
        self.changed = changed
        changed(True)


@asynccontextmanager
async def running(
    machine: _Machine,
    queues: int,
    session: _Session | None = None,
    on_refused: Callable[[LbgError], None] = pytest.fail,
) -> AsyncIterator[ControlPlane]:
    ignored = cast(Any, SimpleNamespace(listen_to=lambda *_: None))
    runners = [cast(Any, SimpleNamespace(machine=SimpleNamespace(queue=index))) for index in range(queues)]
    plane = ControlPlane(
        cast(Any, session or _Session()),
        "control",
        cast(Any, machine),
        runners,
        ignored,
        ignored,
        ignored,
        on_refused,
        ignored,
        ignored,
    )
    task = asyncio.create_task(plane.run())
    await machine.has_taken.wait()
    assert ControlConnected() in machine.taken
    machine.taken.clear()
    machine.has_taken.clear()
    try:
        yield plane
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_machine_is_told_that_flows_have_changed_if_it_must_hear_of_them() -> None:
    machine = _Machine()
    async with running(machine, 8) as plane:
        plane.flow_changed()
        plane.set_weight(2)
        machine.must_hear = False
        plane.flow_changed()
        await machine.has_taken.wait()
        assert machine.taken == [FlowChanged(), WeightChanged(2)]
        assert machine.asked == [[], [FlowChanged(), WeightChanged(2)]]


@pytest.mark.parametrize("is_alone", [False, True])
async def test_a_member_without_a_place_is_refused_by_other_settings_unless_the_group_has_its_own(is_alone) -> None:
    machine, refused = _Machine(), list[LbgError]()
    machine.outputs = [SettingsDisagree(MemberId("x"), "group.queue_count", "16", "12", is_alone)]
    with capture_logs() as log:
        async with running(machine, 1, on_refused=refused.append):
            assert [line["event"] for line in log] == ["settings_disagree"]
    assert [str(each) for each in refused] == (
        [] if is_alone else ["group.queue_count: '16'; expected '12', as member x has it"]
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        ("log-1", None, "'log-1'; expected another value: that of member x, which does not say which it is"),
        (None, "log-1", "another value; expected 'log-1', as member x has it"),
    ],
)
async def test_who_is_refused_for_a_setting_that_only_one_of_the_two_says_is_told_no_value_that_nobody_has(
    ours: str | None, theirs: str | None, told: str
) -> None:
    assert await _refused_for("landing.log", ours, theirs) == [f"landing.log: {told}"]


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        ("park", None, "park; expected nothing that parks, as member x has it: all of a group park, or none"),
        (None, "park", "nothing that parks; expected park, as member x has it: all of a group park, or none"),
    ],
)
async def test_who_is_refused_as_only_one_of_the_two_parks_is_told_that_a_handler_may_say_so_as_well(
    ours: str | None, theirs: str | None, told: str
) -> None:
    assert await _refused_for("failure.then", ours, theirs) == [f"failure.then, or `then` of a handler: {told}"]


async def _refused_for(name: str, ours: str | None, theirs: str | None) -> list[str]:
    machine, refused = _Machine(), list[LbgError]()
    machine.outputs = [SettingsDisagree(MemberId("x"), name, ours, theirs, False)]
    with capture_logs():
        async with running(machine, 1, on_refused=refused.append):
            pass
    return [str(each) for each in refused]


@pytest.mark.parametrize("is_leaving", [False, True])
async def test_who_stood_aside_for_a_process_that_has_gone_ends_so_unless_it_leaves_anyway(is_leaving) -> None:
    machine, refused = _Machine(), list[LbgError]()
    async with running(machine, 1, on_refused=refused.append) as plane:
        if is_leaving:
            plane.leave(lambda: None)
        machine.outputs = [Superseded()]
        plane.set_weight(2)
        await machine.has_taken.wait()
    assert [type(each) for each in refused] == ([] if is_leaving else [MemberSuperseded])


async def test_a_view_is_told_of_when_a_member_or_its_state_is_new() -> None:
    one = MemberView(MemberId("a"), Life(1, 1), MemberState.ACTIVE, 1, False, {})
    views = [(one,), (replace(one, weight=0),), (replace(one, is_suspect=True),), (one, replace(one, member="b"))]
    machine = _Machine()
    machine.outputs = [ViewChanged(GroupView(members, {})) for members in views]
    with capture_logs() as log:
        async with running(machine, 1):
            pass
    assert [line["members"] for line in log if line["event"] == "view_changed"] == [
        {"a": "active"},
        {"a": "suspect"},
        {"a": "active", "b": "active"},
    ]


async def test_a_word_that_is_too_long_to_be_said_ends_nothing() -> None:
    machine, session = _Machine(), _Session()
    header = Header(GroupName("orders"), MemberId("m" * MAX_MESSAGE_BYTES), Life(1, 1), 1)
    async with running(machine, 1, session) as plane:
        machine.outputs = [Say(Leave(header))]
        plane.set_weight(2)
        await machine.has_taken.wait()
        machine.has_taken.clear()
        plane.set_weight(3)
        await machine.has_taken.wait()
        assert machine.taken == [WeightChanged(2), WeightChanged(3)]


LOST = SubscribeFailed("control", "not connected")
REFUSED = SubscribeFailed("control", "Subscription ACL Denied", permanent=True)


async def test_the_control_topic_is_asked_for_until_it_is_had_and_then_the_machine_begins_anew() -> None:
    machine, session = _Machine(), _Session(*[LOST] * 8)
    with capture_logs() as log:
        async with running(machine, 1, session):
            assert machine.taken == []
            await machine.has_taken.wait()
            assert machine.taken == [ControlConnected()]
            await asyncio.sleep(1_000)
    waits_s = [after - before for before, after in itertools.pairwise(session.attempts_s)]
    # The connection was there after the first failure, so the second attempt comes at once, and the waits begin anew.
    assert waits_s == pytest.approx([0, 1, 2, 4, 8, 16, 30, 30])
    assert [line["event"] for line in log if line["event"].startswith("control_topic_")] == [
        "control_topic_out_of_reach",
        "control_topic_subscribed",
    ]


async def test_the_control_topic_is_asked_for_as_soon_as_the_connection_is_back() -> None:
    machine, session = _Machine(), _Session(*[LOST] * 6)
    async with running(machine, 1, session):
        session.changed(False)
        await asyncio.sleep(20)
        tried = len(session.attempts_s)
        session.changed(True)
        back_s = asyncio.get_running_loop().time()
        machine.has_taken.clear()
        machine.taken.clear()
        await machine.has_taken.wait()
        assert session.attempts_s[tried:] == [pytest.approx(back_s)]
        await machine.has_taken.wait()
        await asyncio.sleep(0)
        assert machine.taken == [ControlConnected(), ControlConnected()]


async def test_a_topic_had_while_the_connection_is_away_again_is_no_news_before_it_is_back() -> None:
    machine, session = _Machine(), _Session(LOST, LOST)
    async with running(machine, 1, session):
        session.changed(False)
        await asyncio.sleep(100)
        assert machine.taken == [ControlLost()]
        session.changed(True)
        await asyncio.sleep(100)
        assert machine.taken == [ControlLost(), ControlConnected()]


async def test_a_refused_right_is_told_from_a_lost_connection_and_each_is_told_once() -> None:
    machine, session = _Machine(), _Session(LOST, REFUSED, REFUSED, LOST, REFUSED)
    with capture_logs() as log:
        async with running(machine, 1, session):
            await asyncio.sleep(1_000)
    assert [(line["event"], line["log_level"], line.get("reason")) for line in log] == [
        ("control_topic_out_of_reach", "warning", "not connected"),
        ("control_topic_refused", "error", "Subscription ACL Denied"),
        ("control_topic_subscribed", "info", None),
    ]


async def test_a_topic_that_is_refused_after_an_outage_is_asked_for_until_it_is_had_and_both_are_told() -> None:
    machine, session = _Machine(), _Session()
    with capture_logs() as log:
        async with running(machine, 1, session):
            await asyncio.sleep(100)
            session.failures = [REFUSED] * 3
            session.changed(False)
            session.changed(True)
            await asyncio.sleep(100)
            assert machine.taken == [ControlLost(), ControlConnected(), ControlConnected()]
    assert [(line["event"], line["log_level"], line.get("reason")) for line in log] == [
        ("control_topic_refused", "error", "Subscription ACL Denied"),
        ("control_topic_subscribed", "info", None),
    ]


async def test_a_topic_that_is_heard_again_after_an_outage_is_confirmed_once_and_no_news() -> None:
    machine, session = _Machine(), _Session()
    with capture_logs() as log:
        async with running(machine, 1, session):
            await asyncio.sleep(100)
            asked = len(session.attempts_s)
            session.changed(False)
            session.changed(True)
            await asyncio.sleep(100)
            assert len(session.attempts_s) == asked + 1
            assert machine.taken == [ControlLost(), ControlConnected()]
    assert log == []


async def test_who_leaves_while_it_cannot_hear_asks_for_the_topic_no_more() -> None:
    machine, session = _Machine(), _Session(*[LOST] * 100)
    async with running(machine, 1, session):
        pass
    tried = len(session.attempts_s)
    await asyncio.sleep(1_000)
    assert len(session.attempts_s) == tried
