"""The log of a member as an operator reads it: where it stands, what it waits for, and what becomes of a message."""

import asyncio

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.flow.events import MessageReceived
from lbg_runtime.model.ids import Epoch
from lbg_runtime.runtime.runners.handling import GivenBack
from tests.runtime.scripted import QUEUE, Trial


async def fail(_message):
    raise ValueError("never")


def lines(log, event: str) -> list[dict[str, object]]:
    """The lines of one event."""
    return [line for line in log if line["event"] == event]


async def owning(trial, app) -> None:
    await trial.until(lambda: set(trial.active().values()) == {app.membership.member})


async def test_the_first_line_says_where_the_member_is_and_that_it_settles_first(trial):
    with capture_logs() as log:
        app = trial.discovered("a", membership={"settle": "2s", "heartbeat": "1s"})
        async with trial.running(app):
            await owning(trial, app)
    [line] = lines(log, "member_started")
    assert (line["host"], line["vpn"], line["settles_for_ms"]) == ("tcp://127.0.0.1:55555", "default", 3_000)
    assert line["version"]


async def test_a_counted_member_does_not_settle(trial):
    with capture_logs() as log:
        app = trial.member()
        async with trial.running(app):
            await owning(trial, app)
    assert "settles_for_ms" not in lines(log, "member_started")[0]


async def test_a_flow_says_its_place_and_a_cause_only_where_there_is_one(trial):
    with capture_logs() as log:
        app = trial.member()
        async with trial.running(app):
            await owning(trial, app)
    told = lines(log, "flow_changed")
    assert {(line["change"], line["place"], line.get("cause", "-")) for line in told} == {
        ("bound", "home", "-"),
        ("active", "home", "-"),
        ("draining", "home", "stop"),
        ("released", "home", "stop"),
    }
    assert not any("role" in line for line in told)


async def test_a_drain_that_waits_says_for_what_early_and_at_its_end(trial):
    with capture_logs() as log:
        app = trial.member(work=fail, failure={"backoff": {"initial": "100s", "maximum": "100s"}})
        async with trial.running(app) as (task,):
            await owning(trial, app)
            await trial.publish(1)
            await asyncio.sleep(1)
            app.stop()
            began_s = asyncio.get_running_loop().time()
            assert not (await task).is_clean
            assert asyncio.get_running_loop().time() - began_s == pytest.approx(30, abs=2)
    assert len(lines(log, "drain_started")) == 1
    [waits], [cut] = lines(log, "drain_waits"), lines(log, "handling_cut_short")
    for line in (waits, cut):
        facts = (line["unanswered"], line["queues"], line["key"], line["attempts"], line["stage"])
        assert facts == (1, ["orders/0"], "k0", 1, "delayed")
    assert waits["next_attempt_ms"] - cut["next_attempt_ms"] == pytest.approx(28_000, abs=2)
    assert cut["running"] == 0


async def test_a_drain_that_is_soon_over_says_nothing(trial):
    with capture_logs() as log:
        app = trial.member(work=lambda _: asyncio.sleep(1))
        async with trial.running(app):
            await owning(trial, app)
            await trial.publish(4)
    assert not lines(log, "drain_waits")
    assert not lines(log, "handling_cut_short")


async def test_a_view_is_told_of_when_its_members_or_their_states_change(trial):
    with capture_logs() as log:
        app, other = trial.discovered("a"), trial.discovered("b")
        async with trial.running(app):
            await owning(trial, app)
            seen_before = len(lines(log, "view_changed"))
            async with trial.running(other):
                await trial.until(lambda: len(set(trial.active().values())) == 2)
            await owning(trial, app)
            told = [line["members"] for line in lines(log, "view_changed")[seen_before:]]
    assert told.count({"a": "active", "b": "draining"}) >= 1
    assert told[-1] == {"a": "active"}


async def test_a_failed_attempt_says_when_the_next_is_or_what_follows(trial):
    with capture_logs() as log:
        app = trial.member(work=fail, failure={"attempts": 2, "then": "error_queue"})
        async with trial.running(app):
            await owning(trial, app)
            await trial.publish(1)
            await trial.until(lambda: bool(lines(log, "message_moved")))
    failed = lines(log, "handling_failed")
    assert [("next_attempt_ms" in line, line.get("then")) for line in failed] == [(True, None), (False, "error_queue")]
    [moved] = lines(log, "message_moved")
    assert (moved["then"], moved["to"]) == ("error_queue", "lbg-errors/orders")


async def test_a_failed_attempt_of_what_goes_back_to_its_queue_promises_no_next_one(rig, delivery):
    async def fail_later(_message):
        await asyncio.sleep(1)
        raise ValueError("now")

    made = rig(fail_later)
    with capture_logs() as log:
        async with made.running():
            made.dispatcher.dispatch(delivery(1))
            await asyncio.sleep(0.5)
            made.dispatcher.return_unstarted(QUEUE, Epoch(1))
            await made.until_ended(1)
    [failed] = lines(log, "handling_failed")
    assert not {"next_attempt_ms", "then"} & failed.keys()


async def test_what_was_left_behind_can_be_traced(rig, settings, delivery):
    async def give_back(_message):
        raise GivenBack

    trial = Trial(rig, settings, give_back)
    with capture_logs() as log:
        async with trial.fed():
            trial.transport.sink(MessageReceived(delivery(1, "k")))
            await asyncio.sleep(1)
    [line] = lines(log, "handling_abandoned")
    assert (line["key"], line["topic"], line["attempts"], line["delivery_id"]) == ("k", "orders/new", 0, 1)
