"""A whole member whose handler is an application: order, answers, and everything that an application may do wrong.

More than 400 lines, as each of these is a few lines on the same small group.
"""

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.message import Message
from lbg_runtime.sidecar.application import ApplicationFailed, Response
from lbg_runtime.sidecar.push import REASONS_TOLD
from tests.sidecar.conftest import DROP, RETRY, SUCCESS, ScriptedApplication
from tests.sidecar.events import stamps

IN_ORDER = {f"k{number}": [1, 2, 3, 4, 5] for number in range(4)}


async def succeed(_):
    await asyncio.sleep(0.05)
    return SUCCESS


def events(log, name):
    return [entry for entry in log if entry["event"] == name]


async def handle_all(trial, application, count=20, **sections):
    """Have so many messages of 4 keys taken, or dropped, and the member leave in good order; what it logged."""
    with capture_logs() as log:
        async with trial.at_work(trial.app(application, **sections)) as left:
            await trial.publish_settled(count)
        assert left.result().is_clean
    return log


async def test_events_come_in_key_order_one_at_a_time_and_many_keys_at_once(trial):
    inside, most = 0, 0

    async def work(posted):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.05)
        inside -= 1
        return SUCCESS

    application = ScriptedApplication(work)
    log = await handle_all(trial, application)
    assert application.numbers() == IN_ORDER
    assert application.overlaps == 0
    assert most == 4
    assert not [entry for entry in log if entry["log_level"] in ("warning", "error")]


async def test_an_event_is_posted_to_its_route_with_what_is_known_of_it(trial):
    application = ScriptedApplication(succeed)
    await handle_all(trial, application, count=1)
    [posted] = application.posted
    assert posted.route == "/orders"
    assert posted.headers == {
        "content-type": "application/cloudevents+json",
        "lbg-key": "k0",
        "lbg-shard": "0",
        "lbg-queue": "orders/0",
        "lbg-epoch": "1",
        "lbg-attempt": "1",
        "lbg-redelivered": "false",
        "lbg-fencing-token": "1",
        "lbg-publisher": "p",
    }
    assert json.loads(posted.body)["partitionkey"] == "k0"


async def test_whoever_asks_for_raw_payloads_gets_them(trial):
    asked = [{"pubsubname": "mine", "topic": "orders/>", "route": "/orders", "metadata": {"rawPayload": "true"}}]
    application = ScriptedApplication(succeed, asked=asked)
    await handle_all(trial, application, count=1)
    told = json.loads(application.posted[0].body)
    assert (told["data_base64"], told["datacontenttype"]) == ("e30=", "application/octet-stream")
    assert (told["pubsubname"], told["source"]) == ("mine", "/orders")


async def test_an_event_of_a_message_without_an_id_has_one_of_its_own(trial):
    application = ScriptedApplication(succeed)
    async with trial.at_work(trial.app(application)):
        await trial.publish(0)
        for number in (1, 2):
            await trial._publisher.send(Message("h/0/orders/new", b"{}", stamps("k", number)))
        await trial.until(lambda: len(application.taken) == 2, within_s=10)
    first, second = [json.loads(posted.body)["id"] for posted in application.posted]
    assert first
    assert second not in ("", first)


async def test_a_subscription_of_the_settings_may_want_the_binary_mode_and_goes_first(trial):
    application = ScriptedApplication(succeed)
    subscription = {"topic": "orders/new", "route": "/binary", "content_mode": "binary"}
    await handle_all(trial, application, count=1, sidecar={"subscriptions": [subscription]})
    [posted] = application.posted
    assert (posted.route, posted.body, posted.headers["content-type"]) == ("/binary", b"{}", "application/json")
    assert (posted.headers["ce-partitionkey"], posted.key, posted.number) == ("k0", "k0", 1)
    assert posted.headers["ce-pubsubname"] == "pubsub"


async def test_retry_tries_the_same_event_again_while_its_key_waits(trial):
    async def work(posted):
        return RETRY if posted.key == "k1" and posted.number == 2 and posted.attempt < 4 else SUCCESS

    application = ScriptedApplication(work)
    log = await handle_all(trial, application)
    assert application.numbers() == IN_ORDER
    assert [(each.number, each.attempt) for each in application.posted if each.key == "k1"] == [
        (1, 1), (2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (4, 1), (5, 1),
    ]  # fmt: skip
    assert [(entry["reason"], entry.get("exc_info")) for entry in events(log, "handling_failed")] == [
        ("ApplicationFailed: the application did not take the event: status RETRY", None)
    ] * 3


async def test_what_the_application_made_of_its_events_is_among_the_members_figures(trial):
    async def work(posted):
        if posted.number == 2 and posted.attempt == 1:
            return RETRY
        if posted.number == 4 and posted.attempt == 1:
            raise ApplicationFailed("no answer")
        return DROP if posted.number == 3 else SUCCESS

    app = trial.app(ScriptedApplication(work))
    async with trial.at_work(app):
        await trial.publish_settled(20)
        found = app._supervisor.status().reading().sidecar
    assert (found.is_ready, found.accepted, found.dropped, found.failed) == (True, 16, 4, 8)


async def test_attempts_may_end_as_those_of_handlers_do_and_an_absence_is_none_of_them(trial):
    async def work(posted):
        if posted.key == "k1" and posted.number == 2:
            if posted.attempt == 1:
                application.is_up = False
                asyncio.get_running_loop().call_later(60, setattr, application, "is_up", True)
            return RETRY
        return SUCCESS

    application = ScriptedApplication(work)
    log = await handle_all(trial, application, failure={"timeout": "10s", "attempts": 2, "then": "error_queue"})
    assert application.numbers() == {**IN_ORDER, "k1": [1, 3, 4, 5]}
    assert [each.attempt for each in application.posted if (each.key, each.number) == ("k1", 2)] == [1, 2]
    assert len(events(log, "message_moved")) == 1


@pytest.mark.parametrize(("answer", "reason"), [(DROP, "status DROP"), (Response(404, "", b""), "HTTP 404")])
async def test_drop_ends_the_event_with_a_line_in_the_log(trial, answer, reason):
    async def work(posted):
        return answer if posted.key == "k1" and posted.number == 2 else SUCCESS

    application = ScriptedApplication(work)
    log = await handle_all(trial, application)
    assert application.numbers() == {**IN_ORDER, "k1": [1, 3, 4, 5]}
    [line] = events(log, "event_dropped")
    assert (line["key"], line["reason"]) == ("k1", reason)
    assert not events(log, "handling_failed")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Response(200, "application/json", b"{gar\xff"), "HTTP 200 with a body that is no JSON"),
        (Response(200, "application/json", b'{"status": "DONE"}'), "status 'DONE'; expected SUCCESS, RETRY or DROP"),
        (Response(200, "application/json", None), "HTTP 200 with a body of more than 1 MB"),
        (Response(500, "text/plain", b"oops"), "HTTP 500"),
        (Response(401, "", b""), "HTTP 401"),
        (Response(413, "", b""), "HTTP 413"),
        (Response(302, "", b""), "HTTP 302"),
    ],
)
async def test_garbage_and_refusals_are_tried_again_with_a_line_in_the_log(trial, answer, reason):
    async def work(posted):
        return answer if posted.number == 1 and posted.key == "k2" and posted.attempt == 1 else SUCCESS

    application = ScriptedApplication(work)
    log = await handle_all(trial, application)
    assert application.numbers() == IN_ORDER
    [line] = events(log, "handling_failed")
    assert line["reason"].endswith(reason)


async def test_an_application_that_dies_in_the_middle_gets_the_event_again(trial):
    async def work(posted):
        if posted.key == "k3" and posted.number == 2 and posted.attempt == 1:
            raise ApplicationFailed("ServerDisconnectedError: Server disconnected")
        return SUCCESS

    application = ScriptedApplication(work)
    log = await handle_all(trial, application)
    assert application.numbers() == IN_ORDER
    assert len(events(log, "handling_failed")) == 1


async def test_an_application_that_is_slow_with_one_key_holds_up_no_other(trial):
    async def work(posted):
        await asyncio.sleep(9 if posted.key == "k0" else 0.01)
        return SUCCESS

    application = ScriptedApplication(work)
    async with trial.at_work(trial.app(application)):
        await trial.publish(20)
        await trial.until(lambda: len(application.taken) == 15, within_s=5)
        assert "k0" not in application.numbers()
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == IN_ORDER


async def test_an_application_that_is_away_costs_no_attempt_and_nothing_is_lost(trial):
    application = ScriptedApplication(succeed)
    with capture_logs() as log:
        async with trial.at_work(trial.app(application)):
            application.is_up = False
            await trial.publish(20)
            # Far longer than an attempt may take.
            await asyncio.sleep(600)
            assert application.posted == []
            application.is_up = True
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == IN_ORDER
    assert {posted.attempt for posted in application.posted} == {1}
    assert not events(log, "handling_failed")
    assert len(events(log, "application_away")) == 1
    assert len(events(log, "application_ready")) == 2


async def test_an_event_that_waits_for_the_application_is_no_slow_one_but_its_key_is_stuck(trial):
    async def work(posted):
        await asyncio.sleep(5)
        return SUCCESS

    application = ScriptedApplication(work)
    with capture_logs() as log:
        app = trial.app(application)
        async with trial.at_work(app):
            application.is_up = False
            await trial.publish(4)
            await asyncio.sleep(100)
            application.is_up = True
            await trial.until(lambda: sum(trial.depths()) == 0)
            await asyncio.sleep(10)  # beyond the next look
    assert events(log, "handler_slow") == []
    assert len(events(log, "key_stuck")) == len(events(log, "key_moves_again")) == 4


async def test_an_application_that_goes_away_under_load_loses_nothing(trial):
    application = ScriptedApplication(succeed)
    async with trial.at_work(trial.app(application)):
        publishing = asyncio.ensure_future(trial.publish(400))
        for _ in range(5):
            await asyncio.sleep(0.33)
            application.is_up = False
            await asyncio.sleep(7)
            application.is_up = True
        await publishing
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == {f"k{number}": list(range(1, 101)) for number in range(4)}
    assert application.overlaps == 0


async def test_a_member_whose_application_is_not_there_yet_takes_no_queue(trial):
    application = ScriptedApplication(succeed, is_up=False)
    with capture_logs() as log:
        async with trial.running(trial.app(application)):
            await asyncio.sleep(60)
            assert trial.owners() == 0
            application.is_up = True
            await trial.until(lambda: trial.owners() == 2, within_s=2)
    assert len(events(log, "application_away")) == 1


async def test_a_member_that_waits_for_its_application_can_be_stopped(trial):
    app = trial.app(ScriptedApplication(succeed, is_up=False))
    with capture_logs() as log:
        async with trial.running(app) as left:
            await asyncio.sleep(5)
            app.stop()
            assert (await asyncio.wait_for(left, 4)).is_clean
        await asyncio.sleep(60)
    assert not events(log, "queues_left_to_others")


class AwayApplication(ScriptedApplication):
    """Is away for one reason after the other, and then there."""

    def __init__(self, *reasons):
        super().__init__(succeed)
        self.reasons = list(reasons)

    async def probe(self):
        if self.reasons:
            raise ApplicationFailed(self.reasons.pop(0))


async def test_each_reason_why_an_application_is_away_is_told_once_in_an_absence(trial):
    application = AwayApplication("refused", "expired", "refused", "HTTP 503", "expired")
    with capture_logs() as log:
        async with trial.at_work(trial.app(application)):
            application.reasons = ["expired"] * 9
            await trial.until(lambda: not application.reasons)
    assert [line["reason"] for line in events(log, "application_away")] == ["refused", "expired", "HTTP 503", "expired"]


async def test_what_keeps_a_member_from_its_group_is_the_latest_reason_of_its_application(trial):
    application = AwayApplication(*["refused"] * 20, "expired")
    app = trial.app(application)
    assert app._companion.waits_for() == ""
    async with trial.running(app):
        await trial.until(lambda: len(application.reasons) == 10)
        assert app._companion.waits_for() == "its application is away: refused"
        await trial.until(lambda: not application.reasons)
        assert app._companion.waits_for() == "its application is away: expired"
        await trial.until(lambda: trial.owners() == 2)
        assert app._companion.waits_for() == ""


async def test_an_application_that_is_away_for_ever_new_reasons_does_not_fill_the_log(trial):
    application = AwayApplication(*(f"HTTP {number}" for number in range(100)))
    with capture_logs() as log:
        async with trial.running(trial.app(application)):
            await trial.until(lambda: trial.owners() == 2)
    told = [line["reason"] for line in events(log, "application_away")]
    assert told == [f"HTTP {number}" for number in range(REASONS_TOLD)]


@pytest.mark.parametrize("asked", [None, [], {}, [{"topic": "orders/>"}]])
async def test_an_application_that_wants_nothing_is_not_there_until_it_does(trial, asked):
    application = ScriptedApplication(succeed, asked=asked)
    with capture_logs() as log:
        async with trial.running(trial.app(application)):
            await asyncio.sleep(10)
            assert trial.owners() == 0
            application.asked = ScriptedApplication(succeed).asked
            await trial.until(lambda: trial.owners() == 2)
    [line] = events(log, "application_away")
    assert line["reason"].startswith("GET /dapr/subscribe: ")
    assert line["application"] == "http://127.0.0.1:9"


async def test_an_application_that_is_there_all_the_time_is_asked_once_what_it_wants(trial):
    application = ScriptedApplication(succeed)
    async with trial.at_work(trial.app(application)):
        await asyncio.sleep(20)
    assert application.asks == 1
    assert application.probes > 1


async def test_an_application_that_comes_back_may_want_something_else(trial):
    application = ScriptedApplication(succeed)
    async with trial.at_work(trial.app(application)):
        application.is_up = False
        await asyncio.sleep(60)
        application.asked = [{"topic": "orders/new", "route": "/other"}]
        application.is_up = True
        await trial.publish_settled(1)
    assert application.posted[0].route == "/other"


async def test_an_event_that_no_subscription_attracts_waits_and_says_so(trial):
    """Those of an application that was written for MQTT attract nothing, and the log did not say why."""
    asked = [{"topic": topic, "route": "/else"} for topic in ("else", "orders/#")]
    application = ScriptedApplication(succeed, asked=asked)
    with capture_logs() as log:
        app = trial.app(application, rebind={"mode": "cycle", "drain_timeout": "1s"})
        async with trial.at_work(app):
            await trial.publish(1)
            await asyncio.sleep(0.05)
            assert sum(trial.depths()) == 1
            assert app._companion.counts.failed == len(events(log, "handling_failed"))
    reason = "EventUnwanted: no subscription of the application attracts 'orders/new'; it has 'else', 'orders/#'"
    assert reason in [entry["reason"] for entry in events(log, "handling_failed")]
    [remark] = [entry["remark"] for entry in events(log, "subscription_remark")]
    assert remark.startswith("'orders/#': `#` and `+` are no wildcards here")


async def test_a_member_that_leaves_lets_the_application_finish_and_settles(trial):
    async def work(_):
        await asyncio.sleep(5)
        return SUCCESS

    application = ScriptedApplication(work)
    app = trial.app(application)
    async with trial.at_work(app) as left:
        await trial.publish(4)
        await trial.until(lambda: len(application.posted) == 4)
        app.stop()
        report = await left
    assert report.is_clean
    assert len(application.taken) == 4
    assert sum(trial.depths()) == 0


async def test_what_was_not_finished_in_time_comes_again_flagged(trial):
    hanging = asyncio.Event()

    async def hang(_):
        await hanging.wait()

    first = ScriptedApplication(hang)
    app = trial.app(first, rebind={"mode": "cycle", "drain_timeout": "3s"})
    async with trial.at_work(app):
        await trial.publish(8)
        await trial.until(lambda: len(first.posted) == 4)
    second = ScriptedApplication(succeed)
    async with trial.running(trial.app(second)):
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert second.numbers() == {f"k{number}": [1, 2] for number in range(4)}
    # The next one of each key had been read as well, and nothing of it was begun.
    assert {posted.headers["lbg-redelivered"] for posted in second.posted if posted.number == 1} == {"true"}


async def test_an_outage_of_the_broker_repeats_at_most_what_was_in_flight(trial):
    application = ScriptedApplication(succeed)
    app = trial.app(application)
    async with trial.at_work(app):
        publishing = asyncio.ensure_future(trial.publish(200))
        for _ in range(4):
            await asyncio.sleep(0.4)
            app._session.drop_connection(1.0)
            await asyncio.sleep(3)
        await publishing
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.overlaps == 0
    for numbers in application.numbers().values():
        firsts = list(dict.fromkeys(numbers))
        assert firsts == list(range(1, 51))


async def test_what_is_wrong_with_the_member_is_told_as_without_a_sidecar(trial):
    app = trial.app(
        ScriptedApplication(succeed),
        group={"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 2},
    )
    with pytest.raises(ConfigError, match=r"group\.name: queue orders/[01]: Unknown Queue"):
        await app.run()
