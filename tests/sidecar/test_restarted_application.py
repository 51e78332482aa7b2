"""An application that was started anew between two probes: nobody has seen it go, and it has other routes now."""

import asyncio
import gc
import json
import weakref
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from lbg_runtime.config.sidecar_settings import SidecarSettings
from lbg_runtime.sidecar import push
from lbg_runtime.sidecar.answer import NO_ROUTE, Status
from lbg_runtime.sidecar.application import ApplicationFailed, Response
from lbg_runtime.sidecar.health import AWAY_INTERVAL_MS
from lbg_runtime.sidecar.push import PushedEvents
from tests.sidecar.conftest import RETRY, SUCCESS, ScriptedApplication
from tests.sidecar.events import make_event, make_gate

UNKNOWN = Response(404, "", b"")
IN_ORDER = {f"k{number}": [1, 2, 3, 4, 5] for number in range(4)}


def wishes(route, topic="orders/>", **more):
    return [{"pubsubname": "pubsub", "topic": topic, "route": route, **more}]


def application_with(*routes, asked):
    """One that knows these routes."""

    async def work(posted):
        await asyncio.sleep(0.05)
        return SUCCESS if posted.route in routes else UNKNOWN

    return ScriptedApplication(work, asked=asked)


def events(log, name):
    return [entry for entry in log if entry["event"] == name]


async def test_its_events_go_to_its_new_routes_in_order_and_cost_no_attempt(trial):
    application = application_with("/new", asked=wishes("/old"))
    with capture_logs() as log:
        async with trial.at_work(trial.app(application)):
            application.asked = wishes("/new")
            await trial.publish_settled(20)
    assert application.numbers() == IN_ORDER
    assert application.overlaps == 0
    assert {posted.attempt for posted in application.posted} == {1}
    assert application.asks == 2
    assert not events(log, "event_dropped")
    assert len(events(log, "subscriptions_read")) == 2


async def test_so_do_those_that_went_in_bulks(trial):
    application = application_with("/new", asked=wishes("/old", bulkSubscribe={"enabled": True}))
    async with trial.at_work(trial.app(application)):
        application.asked = wishes("/new")
        await trial.publish_settled(20)
    assert application.numbers() == IN_ORDER


async def test_nothing_is_kept_of_bulks_that_it_does_not_ask_for_any_more(trial, monkeypatch):
    """One that names another subscription at each start had its member grow by a sender each time."""
    made, senders, route = 0, weakref.WeakSet(), ""

    class WatchedSender(push.BulkSender):
        def __init__(self, *given):
            nonlocal made
            made += 1
            senders.add(self)
            super().__init__(*given)

    async def work(posted):
        if posted.route != route:
            return UNKNOWN
        statuses = [{"entryId": each["entryId"], "status": "SUCCESS"} for each in json.loads(posted.body)["entries"]]
        return Response(200, "application/json", json.dumps({"statuses": statuses}).encode())

    monkeypatch.setattr(push, "BulkSender", WatchedSender)
    application = ScriptedApplication(work)
    async with trial.at_work(trial.app(application)):
        for start in range(1, 6):
            route = f"/{start}"
            application.asked = wishes(route, bulkSubscribe={"enabled": True})
            await trial.publish_settled(4)
        # An exception of a request may be in a cycle with its frames.
        gc.collect()
        assert (made, len(senders)) == (5, 1)


async def test_an_event_whose_flow_is_lost_while_it_is_asked_is_not_sent_anew(trial):
    """Others may be further on with its key by then."""
    application, may_say = application_with("/new", asked=wishes("/old")), asyncio.Event()
    say = application.subscriptions

    async def say_late():
        await may_say.wait()
        return await say()

    app = trial.app(application)
    async with trial.at_work(app):
        application.asked, application.subscriptions = wishes("/new"), say_late
        await trial.publish(1)
        await trial.until(lambda: len(application.posted) == 1)
        app._session.drop_connection(2)
        await asyncio.sleep(5)
        may_say.set()
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert [posted.headers["lbg-epoch"] == "1" for posted in application.posted].count(True) == 1


async def test_what_it_still_wants_there_is_dropped(trial):
    application = application_with(asked=wishes("/old"))
    with capture_logs() as log:
        async with trial.at_work(trial.app(application)):
            await trial.publish_settled(1)
    assert [posted.route for posted in application.posted] == ["/old"]
    assert application.asks == 2
    assert len(events(log, "event_dropped")) == len(events(log, "subscriptions_read")) == 1


SIDECAR = SidecarSettings(application="http://127.0.0.1:8080")
SET = {"subscriptions": [{"topic": "orders/>", "route": "/set"}]}


async def test_a_route_of_the_settings_is_not_its_to_change(trial):
    async def work(posted):
        return UNKNOWN if posted.key == "k0" and posted.number > 1 else SUCCESS

    application = ScriptedApplication(work, asked=None)
    with capture_logs() as log:
        async with trial.at_work(trial.app(application, sidecar=SET)):
            await trial.publish_settled(20)
    assert application.asks == 1
    assert len(events(log, "event_dropped")) == 4


async def test_a_route_of_the_settings_that_has_taken_nothing_drops_nothing(trial):
    async def work(posted):
        # That it is overloaded is said of any route.
        return Response(503, "", b"") if posted.attempt == 1 else UNKNOWN

    application = ScriptedApplication(work, asked=None)
    with capture_logs() as log:
        async with trial.at_work(trial.app(application, sidecar=SET)):
            await trial.publish(20)
            await trial.until(lambda: len(events(log, "handling_failed")) >= 8)
            # Its routes come after its socket.
            application.work = application_with("/set", asked=None).work
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == IN_ORDER
    assert not events(log, "event_dropped")
    assert "HTTP 404 from /set, which sidecar.subscriptions names" in events(log, "handling_failed")[7]["reason"]


async def test_what_a_route_of_the_settings_took_before_it_went_says_nothing_of_what_comes_back(trial):
    async def work(posted):
        if posted.number == 1:
            return SUCCESS
        if posted.number == 2 and posted.attempt == 1:
            application.is_up = False
            application.work = starting
            asyncio.get_running_loop().call_later(60, setattr, application, "is_up", True)
        return RETRY

    async def starting(posted):
        application.work = complete
        return UNKNOWN

    complete = application_with("/set", asked=None).work
    application = ScriptedApplication(work, asked=None)
    with capture_logs() as log:
        async with trial.at_work(trial.app(application, sidecar=SET)):
            await trial.publish_settled(2, keys=1)
    assert application.numbers() == {"k0": [1, 2]}
    assert not events(log, "event_dropped")


async def test_while_it_does_not_say_what_it_wants_nothing_is_dropped(trial):
    application = application_with("/new", asked=wishes("/old"))
    with capture_logs() as log:
        async with trial.at_work(trial.app(application)):
            application.asked = None
            await trial.publish(20)
            await trial.until(lambda: events(log, "application_away"))
            application.asked = wishes("/new")
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == IN_ORDER
    assert not events(log, "event_dropped")
    assert "GET /dapr/subscribe: " in events(log, "handling_failed")[0]["reason"]


async def test_that_it_is_gone_when_it_is_asked_costs_no_attempt(trial):
    application = application_with("/new", asked=wishes("/old"))

    async def go(posted):
        application.is_up = False
        application.asked = wishes("/new")
        asyncio.get_running_loop().call_later(60, setattr, application, "is_up", True)
        application.work = again
        return UNKNOWN

    again, application.work = application.work, go
    with capture_logs() as log:
        async with trial.at_work(trial.app(application)):
            await trial.publish_settled(1)
    assert [(posted.route, posted.attempt) for posted in application.posted] == [("/old", 1), ("/new", 1)]
    assert not events(log, "handling_failed")


async def test_one_that_an_event_did_not_reach_is_looked_for_often_from_then_on():
    application = application_with("/old", asked=wishes("/old"))
    pushed = PushedEvents(application, SIDECAR, make_gate())
    watching = asyncio.ensure_future(pushed.run())
    await asyncio.sleep(0.1)
    application.is_up = False
    delivering = asyncio.ensure_future(pushed.deliver(make_event()))
    await asyncio.sleep(0.1)
    application.is_up = True
    assert SIDECAR.health.interval_ms > 2 * AWAY_INTERVAL_MS
    assert (await asyncio.wait_for(delivering, AWAY_INTERVAL_MS / 1_000)).status is Status.SUCCESS
    watching.cancel()
    await asyncio.wait([watching])


async def test_one_that_is_busy_may_be_late_with_two_probes_and_is_said_to_be_there_once():
    async def late():
        raise ApplicationFailed("no answer in time")

    application, gate = application_with(asked=wishes("/old", deadLetterTopic="dead")), make_gate()
    interval_s = SIDECAR.health.interval_ms / 1_000
    with capture_logs() as log:
        watching = asyncio.ensure_future(PushedEvents(application, SIDECAR, gate).run())
        await asyncio.sleep(2.5 * interval_s)
        application.probe = late
        await asyncio.sleep(2 * interval_s)
        assert gate.is_open
        await asyncio.sleep(interval_s)
        assert not gate.is_open
    told = ["subscription_remark", "subscriptions_read", "application_ready", "application_away"]
    assert [entry["event"] for entry in log] == told
    watching.cancel()
    await asyncio.wait([watching])


async def test_an_event_of_which_it_does_not_say_whether_it_wants_it_has_failed():
    application = application_with(asked=wishes("/old"))
    pushed = PushedEvents(application, SIDECAR, make_gate())
    watching = asyncio.ensure_future(pushed.run())
    await asyncio.sleep(0.1)
    application.asked = None
    with pytest.raises(ApplicationFailed, match="GET /dapr/subscribe: no subscription"):
        await asyncio.wait_for(pushed.deliver(make_event()), 1)
    watching.cancel()
    await asyncio.wait([watching])


async def test_an_event_that_is_taken_back_while_it_is_asked_harms_no_other():
    class SlowToSay(ScriptedApplication):
        async def subscriptions(self):
            await asyncio.sleep(1)
            return await super().subscriptions()

    application = SlowToSay(application_with(asked=None).work, asked=wishes("/old"))
    pushed = PushedEvents(application, SIDECAR, make_gate())
    watching = asyncio.ensure_future(pushed.run())
    first, second = (asyncio.ensure_future(pushed.deliver(make_event(key=key))) for key in "ab")
    await asyncio.sleep(1.5)
    # Sent by now, and not known by the application, which is being asked again.
    assert (len(application.posted), application.probes) == (2, 2)
    first.cancel()
    assert await asyncio.wait_for(second, 10) is NO_ROUTE
    watching.cancel()
    await asyncio.wait([watching])
    assert watching.cancelled()


async def test_a_topic_that_it_did_not_want_before_is_asked_for_again(trial):
    application = application_with("/orders", asked=wishes("/else", topic="else"))
    with capture_logs() as log:
        async with trial.at_work(trial.app(application)):
            application.asked = wishes("/orders")
            await trial.publish_settled(20)
    assert application.numbers() == IN_ORDER
    assert not events(log, "handling_failed")


async def test_one_whose_wishes_change_with_every_answer_gets_its_events_after_a_backoff(trial):
    application = application_with("/orders", asked=None)

    async def waver():
        application.asks += 1
        return json.dumps(wishes(f"/{application.asks}" if application.asks < 8 else "/orders")).encode()

    application.subscriptions = waver
    with capture_logs() as log:
        async with trial.at_work(trial.app(application)):
            await trial.publish_settled(1)
    assert len(application.taken) == 1
    assert [entry["reason"].rpartition(": ")[2] for entry in events(log, "handling_failed")] == [
        "its subscriptions change from answer to answer"
    ] * 3


async def test_one_that_drops_much_is_asked_once_in_a_while_and_what_it_wants_by_then_counts(trial):
    application = application_with("/new", asked=wishes("/old"))
    asked_at, told = [], application.subscriptions

    async def work(posted):
        await asyncio.sleep(0.001 * int(posted.key[1:]))
        return SUCCESS if posted.route == "/new" else UNKNOWN

    async def subscriptions():
        asked_at.append(asyncio.get_running_loop().time())
        if len(asked_at) == 8:
            application.asked = wishes("/new")
        return await told()

    application.work, application.subscriptions = work, subscriptions
    with capture_logs() as log:
        async with trial.at_work(trial.app(application)):
            await trial.publish_settled(160, keys=16)
    assert len(asked_at) == 8
    assert min(later - sooner for sooner, later in pairwise(asked_at[1:])) > 0.09
    dropped = {(entry["key"], entry["delivery_id"]) for entry in events(log, "event_dropped")}
    assert len(dropped) + len(application.taken) == 160
    assert len(application.taken) >= 32
    # Of each key a beginning was dropped, and all that came back when it wanted something else has been taken.
    for key, numbers in application.numbers().items():
        assert numbers == list(range(numbers[0], 11)), key


async def test_after_a_probe_that_failed_it_is_asked_again(trial):
    application = application_with("/old", "/new", asked=wishes("/old"))
    async with trial.at_work(trial.app(application)):
        application.is_up = False
        seen = application.probes
        await trial.until(lambda: application.probes > seen)
        application.is_up = True
        application.asked = wishes("/new")
        await trial.until(lambda: application.asks == 2)
        await trial.publish_settled(1)
    assert [posted.route for posted in application.posted] == ["/new"]
