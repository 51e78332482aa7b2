"""Bulk delivery through a whole member: many keys in one request, each event with its own status."""

import asyncio
import json

import pytest

from lbg_runtime.sidecar.application import ApplicationFailed, Response
from tests.sidecar.conftest import ScriptedApplication

BULK = [
    {
        "pubsubname": "pubsub",
        "topic": "orders/>",
        "route": "/bulk",
        "bulkSubscribe": {"enabled": True, "maxMessagesCount": 10, "maxAwaitDurationMs": 500},
    }
]


class BulkWork:
    """Answers with the status that `status` gives for key, number and how often that was seen."""

    def __init__(self, status=lambda key, number, seen: "SUCCESS"):
        self.status = status
        self.taken = {}
        self.sizes = []
        self.seen = {}
        self.doubled = 0

    async def __call__(self, posted):
        entries = json.loads(posted.body)["entries"]
        self.sizes.append(len(entries))
        keys = [entry["metadata"]["lbg-key"] for entry in entries]
        self.doubled += len(keys) != len(set(keys))
        await asyncio.sleep(0.05)
        statuses = []
        for entry in entries:
            key, number = entry["metadata"]["lbg-key"], int(entry["metadata"]["lbg-fencing-token"])
            seen = self.seen[key, number] = self.seen.get((key, number), 0) + 1
            status = self.status(key, number, seen)
            if status == "SUCCESS":
                self.taken.setdefault(key, []).append(number)
            if status is not None:
                statuses.append({"entryId": entry["entryId"], "status": status})
        return Response(200, "application/json", json.dumps({"statuses": statuses}).encode())


async def handle_all(trial, application, count=80, keys=20):
    async with trial.at_work(trial.app(application)) as left:
        await trial.publish_settled(count, keys)
    assert left.result().is_clean


def in_order(keys=20, count=4):
    return {f"k{number}": list(range(1, count + 1)) for number in range(keys)}


async def test_many_keys_go_in_one_request_and_each_key_in_order(trial):
    work = BulkWork()
    await handle_all(trial, ScriptedApplication(work, asked=BULK))
    assert work.taken == in_order()
    assert work.doubled == 0
    assert max(work.sizes) == 10
    assert len(work.sizes) < 40


async def test_each_event_follows_its_own_status(trial):
    def status(key, number, seen):
        if (key, number) == ("k1", 2):
            return "DROP"
        if (key, number) == ("k2", 1) and seen < 3:
            return "RETRY"
        return None if (key, number) == ("k3", 3) and seen == 1 else "SUCCESS"

    work = BulkWork(status)
    await handle_all(trial, ScriptedApplication(work, asked=BULK))
    assert work.taken == {**in_order(), "k1": [1, 3, 4]}
    assert (work.seen["k1", 2], work.seen["k2", 1], work.seen["k3", 3]) == (1, 3, 2)


@pytest.mark.parametrize("garbage", [b"", b"{broken", b'{"statuses": {}}', b"null"])
async def test_an_answer_that_cannot_be_read_has_all_tried_again(trial, garbage):
    work = BulkWork()
    posts = 0

    async def first_garbage(posted):
        nonlocal posts
        posts += 1
        return Response(200, "application/json", garbage) if posts == 1 else await work(posted)

    await handle_all(trial, ScriptedApplication(first_garbage, asked=BULK))
    assert work.taken == in_order()


async def test_an_application_that_dies_in_the_middle_gets_all_of_it_again(trial):
    work = BulkWork()
    posts = 0

    async def first_dies(posted):
        nonlocal posts
        posts += 1
        if posts == 1:
            raise ApplicationFailed("Server disconnected")
        return await work(posted)

    await handle_all(trial, ScriptedApplication(first_dies, asked=BULK))
    assert work.taken == in_order()


async def test_an_application_that_is_away_costs_no_attempt(trial):
    work = BulkWork()
    application = ScriptedApplication(work, asked=BULK)
    async with trial.at_work(trial.app(application)):
        application.is_up = False
        await trial.publish(20, 20)
        await asyncio.sleep(600)
        application.is_up = True
        await trial.until(lambda: sum(trial.depths()) == 0)
    attempts = [
        entry["metadata"]["lbg-attempt"] for post in application.posted for entry in json.loads(post.body)["entries"]
    ]
    assert attempts == ["1"] * 20


async def test_what_waits_for_a_bulk_when_its_flow_is_lost_is_not_sent(trial):
    """Others may be further on with its key by the time the bulk before it is answered."""
    work, may_answer = BulkWork(), asyncio.Event()

    async def slow(posted):
        await may_answer.wait()
        return await work(posted)

    patient = {"enabled": True, "maxMessagesCount": 10, "maxAwaitDurationMs": 60_000}
    application = ScriptedApplication(slow, asked=[{**BULK[0], "bulkSubscribe": patient}])
    app = trial.app(application)
    async with trial.at_work(app):
        await trial.publish(1)
        await trial.until(lambda: len(application.posted) == 1)
        await trial.publish(3, 3)
        await asyncio.sleep(1)
        app._session.drop_connection(2)
        await asyncio.sleep(5)
        may_answer.set()
        await trial.until(lambda: sum(trial.depths()) == 0)
    first, *others = (json.loads(each.body)["entries"] for each in application.posted)
    assert [entry["metadata"]["lbg-epoch"] for entry in first] == ["1"]
    assert "1" not in [entry["metadata"]["lbg-epoch"] for bulk in others for entry in bulk]


def entries_of(posted):
    """Key, number and attempt of each event."""
    told = [entry["metadata"] for entry in json.loads(posted.body)["entries"]]
    return [(each["lbg-key"], int(each["lbg-fencing-token"]), int(each["lbg-attempt"])) for each in told]


PATIENT = [{**BULK[0], "bulkSubscribe": {"enabled": True, "maxMessagesCount": 10, "maxAwaitDurationMs": 60_000}}]


async def test_what_waits_for_others_in_its_bulk_is_sent_when_its_queue_is_to_go(trial):
    """It waited for the bulk before it, whose work left too little of the drain timeout."""
    work = BulkWork()

    async def slow(posted):
        is_first = any(number == 1 for _, number, _ in entries_of(posted))
        await asyncio.sleep(20 if is_first else 0)
        return await work(posted)

    application = ScriptedApplication(slow, asked=PATIENT)
    app = trial.app(application, rebind={"mode": "cycle", "drain_timeout": "30s"})
    async with trial.at_work(app) as left:
        await trial.publish(1, 1)
        await trial.until(lambda: len(application.posted) == 1)
        await trial.publish(4, 4)
        await asyncio.sleep(1)
        assert len(application.posted) == 1
        app.stop()
        assert (await left).is_clean
    assert sum(trial.depths()) == 0


async def test_what_waits_for_others_in_its_bulk_is_not_sent_while_the_application_is_away(trial):
    """An application that hung got it as soon as the bulk before it had failed, and an attempt of it had failed."""
    work = BulkWork()
    application = Ill(work, asked=PATIENT)
    async with trial.at_work(trial.app(application)):
        await trial.publish(1, 1)
        await trial.until(lambda: len(application.posted) == 1)
        application.is_well = False
        await trial.publish(3, 3)
        await asyncio.sleep(300)
        assert len(application.posted) == 1
        application.is_well = True
        await trial.until(lambda: sum(trial.depths()) == 0)
    later = sorted(entry for posted in application.posted[1:] for entry in entries_of(posted))
    assert later == [("k0", 1, 2), ("k0", 2, 1), ("k1", 1, 1), ("k2", 1, 1)]


class Ill(ScriptedApplication):
    """While it is not well, it answers nothing, and no probe."""

    is_well = True

    async def post(self, route, headers, body, may_send):
        answer = await super().post(route, headers, body, may_send)
        if not self.is_well:
            await asyncio.sleep(30)
            raise ApplicationFailed("no answer")
        return answer

    async def probe(self):
        await super().probe()
        if not self.is_well:
            raise ApplicationFailed("HTTP 503")


async def test_a_member_that_leaves_takes_back_what_hangs(trial):
    hanging = asyncio.Event()

    async def hang(_):
        await hanging.wait()

    application = ScriptedApplication(hang, asked=BULK)
    app = trial.app(application, rebind={"mode": "cycle", "drain_timeout": "2s"})
    async with trial.at_work(app) as left:
        await trial.publish(5, 5)
        await trial.until(lambda: len(application.posted) > 0)
        app.stop()
        assert not (await left).is_clean
    assert sum(trial.depths()) == 5
