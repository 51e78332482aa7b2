"""A replay that runs is a handling like any other for what waits for the end: hooks, and how a member says it left."""

import asyncio

import pytest
from structlog.testing import capture_logs

from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.testing.group_context import running
from tests.runtime.parking.poisoned import parked

SETTINGS = {
    "group": {"queue_count": 1, "hash_count": 4},
    "failure": {"attempts": 1, "then": "park", "backoff": {"initial": "10ms", "maximum": "1s"}},
    "rebind": {"drain_timeout": "5s"},
}


class Replaying:
    """Handlers whose one message is parked, and whose replay takes its time."""

    def __init__(self, takes_s: float) -> None:
        self.told: list[str] = []
        self.is_mended = False
        self.handlers = Handlers()
        self._takes_s = takes_s
        self.handlers.handler("orders/>")(self._handle)
        self.handlers.on_assigned(self._assigned)
        self.handlers.on_revoked(self._revoked)

    async def begun(self, group):
        """Return when the replay runs."""
        await group.publish("orders/new", b"1", key="a")
        await group.until(lambda: len(parked(group)) == 1)
        await group.settled()
        self.is_mended = True
        await group.unpark("a")
        await group.until(lambda: "begun" in self.told)

    async def _handle(self, message):
        if not self.is_mended:
            raise ValueError("poison")
        self.told.append("begun")
        try:
            await asyncio.sleep(self._takes_s)
        finally:
            self.told.append("ended")

    async def _assigned(self, queue, epoch):
        self.told.append(f"assigned {epoch}")

    async def _revoked(self, queue, epoch):
        self.told.append(f"revoked {epoch}")


async def test_an_epoch_whose_flow_was_lost_is_revoked_behind_the_replay_that_still_runs() -> None:
    replaying = Replaying(takes_s=4)
    async with running(replaying.handlers, members=1, settings=SETTINGS) as group:
        await replaying.begun(group)
        handle = next(each for each in group.lives[-1]._session._handles if each.queue == "test/0")
        flow = handle.flow_id
        handle.end("Queue Shutdown")
        group.broker.post(group.broker.engine.unbind(flow))
        await group.until(lambda: "assigned 2" in replaying.told)
        assert replaying.told[:5] == ["assigned 1", "begun", "ended", "revoked 1", "assigned 2"]


@pytest.mark.parametrize(("takes_s", "is_clean"), [(3, True), (60, False)])
async def test_a_member_says_whether_it_cut_a_replay_short_as_it_left(takes_s: float, is_clean: bool) -> None:
    replaying = Replaying(takes_s)
    with capture_logs() as logs:
        async with running(replaying.handlers, members=1, settings=SETTINGS) as group:
            await replaying.begun(group)
            report = await group.stop("member-0")
    assert replaying.told[1:] == ["begun", "ended", "revoked 1"]
    assert (report.left_behind, report.is_clean) == (0 if is_clean else 1, is_clean)
    waited = [log for log in logs if log["event"] == "drain_waits"]
    assert [(log["unanswered"], log["key"]) for log in waited] == [(1, "a")]


async def test_a_replay_that_waits_for_its_batch_is_not_cut_short_when_its_member_leaves() -> None:
    handlers, called = Handlers(), []

    @handlers.batch_handler("orders/>", max_count=2, max_wait="5s")
    async def on_orders(orders: Batch) -> None:
        called.append(len(orders))
        raise ValueError("poison")

    async with running(handlers, members=1, settings=SETTINGS) as group:
        await group.publish("orders/new", b"1", key="a")
        await group.until(lambda: bool(parked(group)))
        await group.unpark("a")
        await group.advance(1)
        report = await group.stop("member-0")
        assert len(parked(group)) == 1
    assert (called, report.left_behind, report.exit_code) == ([1], 0, 0)
