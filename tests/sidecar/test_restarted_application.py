"""An application that was started anew between two probes: nobody has seen it go, and it has other routes now."""

import asyncio
import json
from itertools import pairwise

from structlog.testing import capture_logs

from lbg_runtime.sidecar.application import Response
from tests.sidecar.conftest import RETRY, SUCCESS, ScriptedApplication

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
        async with trial.running(trial.app(application)):
            await trial.until(lambda: trial.owners() == 2)
            application.asked = wishes("/new")
            await trial.publish(20)
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == IN_ORDER
    assert application.overlaps == 0
    assert {posted.attempt for posted in application.posted} == {1}
    assert application.asks == 2
    assert not events(log, "event_dropped")
    assert len(events(log, "subscriptions_read")) == 2


async def test_so_do_those_that_went_in_bulks(trial):
    application = application_with("/new", asked=wishes("/old", bulkSubscribe={"enabled": True}))
    async with trial.running(trial.app(application)):
        await trial.until(lambda: trial.owners() == 2)
        application.asked = wishes("/new")
        await trial.publish(20)
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == IN_ORDER


async def test_what_it_still_wants_there_is_dropped(trial):
    application = application_with(asked=wishes("/old"))
    with capture_logs() as log:
        async with trial.running(trial.app(application)):
            await trial.until(lambda: trial.owners() == 2)
            await trial.publish(1)
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert [posted.route for posted in application.posted] == ["/old"]
    assert application.asks == 2
    assert len(events(log, "event_dropped")) == len(events(log, "subscriptions_read")) == 1


SET = {"subscriptions": [{"topic": "orders/>", "route": "/set"}]}


async def test_a_route_of_the_settings_is_not_its_to_change(trial):
    async def work(posted):
        return UNKNOWN if posted.key == "k0" and posted.number > 1 else SUCCESS

    application = ScriptedApplication(work, asked=None)
    with capture_logs() as log:
        async with trial.running(trial.app(application, sidecar=SET)):
            await trial.until(lambda: trial.owners() == 2)
            await trial.publish(20)
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.asks == 1
    assert len(events(log, "event_dropped")) == 4


async def test_a_route_of_the_settings_that_has_taken_nothing_drops_nothing(trial):
    application = application_with(asked=None)
    with capture_logs() as log:
        async with trial.running(trial.app(application, sidecar=SET)):
            await trial.until(lambda: trial.owners() == 2)
            await trial.publish(20)
            await trial.until(lambda: len(events(log, "handling_failed")) >= 4)
            # Its routes come after its socket.
            application.work = application_with("/set", asked=None).work
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == IN_ORDER
    assert not events(log, "event_dropped")
    assert "HTTP 404 from /set, which sidecar.subscriptions names" in events(log, "handling_failed")[0]["reason"]


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
        async with trial.running(trial.app(application, sidecar=SET)):
            await trial.until(lambda: trial.owners() == 2)
            await trial.publish(2, keys=1)
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == {"k0": [1, 2]}
    assert not events(log, "event_dropped")


async def test_while_it_does_not_say_what_it_wants_nothing_is_dropped(trial):
    application = application_with("/new", asked=wishes("/old"))
    with capture_logs() as log:
        async with trial.running(trial.app(application)):
            await trial.until(lambda: trial.owners() == 2)
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
        async with trial.running(trial.app(application)):
            await trial.until(lambda: trial.owners() == 2)
            await trial.publish(1)
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert [(posted.route, posted.attempt) for posted in application.posted] == [("/old", 1), ("/new", 1)]
    assert not events(log, "handling_failed")


async def test_a_topic_that_it_did_not_want_before_is_asked_for_again(trial):
    application = application_with("/orders", asked=wishes("/else", topic="else"))
    with capture_logs() as log:
        async with trial.running(trial.app(application)):
            await trial.until(lambda: trial.owners() == 2)
            application.asked = wishes("/orders")
            await trial.publish(20)
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == IN_ORDER
    assert not events(log, "handling_failed")


async def test_one_whose_wishes_change_with_every_answer_gets_its_events_after_a_backoff(trial):
    application = application_with("/orders", asked=None)

    async def waver():
        application.asks += 1
        return json.dumps(wishes(f"/{application.asks}" if application.asks < 8 else "/orders")).encode()

    application.subscriptions = waver
    with capture_logs() as log:
        async with trial.running(trial.app(application)):
            await trial.until(lambda: trial.owners() == 2)
            await trial.publish(1)
            await trial.until(lambda: sum(trial.depths()) == 0)
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
        async with trial.running(trial.app(application)):
            await trial.until(lambda: trial.owners() == 2)
            await trial.publish(160, keys=16)
            await trial.until(lambda: sum(trial.depths()) == 0)
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
    async with trial.running(trial.app(application)):
        await trial.until(lambda: trial.owners() == 2)
        application.is_up = False
        seen = application.probes
        await trial.until(lambda: application.probes > seen)
        application.is_up = True
        application.asked = wishes("/new")
        await trial.until(lambda: application.asks == 2)
        await trial.publish(1)
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert [posted.route for posted in application.posted] == ["/new"]
