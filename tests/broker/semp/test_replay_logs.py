"""Replay logs over SEMPv2: their configuration, what is seen of them, and replays that an administrator starts."""

import pytest

from lbg_runtime.broker.engine.effects import FlowEnded, Published
from lbg_runtime.broker.engine.settings import ReplayLogSettings
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.message_ids import after_message, message_id
from lbg_runtime.model.semp_code import SempCode

LOGS = "config/msgVpns/default/replayLogs"
QUEUES = "config/msgVpns/default/queues"
SEEN = "monitor/msgVpns/default/replayLogs"
ACTION = "action/msgVpns/default"
SAID = {"egressEnabled": True, "ingressEnabled": True, "maxSpoolUsage": 3, "topicFilterEnabled": False}


def log_of(desk):
    return desk.engine.replays.log("default")


async def prepared(desk, count=3):
    """A queue with a bound flow, and messages that came to it and to the log."""
    await desk.post(LOGS, replayLogName="log", **SAID)
    await desk.post(QUEUES, queueName="q", ingressEnabled=True, egressEnabled=True, permission="delete")
    await desk.post(f"{QUEUES}/q/subscriptions", subscriptionTopic="orders/>")
    flow = desk.engine.open_publisher(desk.client("publisher"), "").flow
    for number in range(1, count + 1):
        desk.engine.publish(flow, number, Published(f"orders/{number}", number, 10))


# -- configuration


async def test_a_log_is_made_changed_and_deleted(desk):
    assert await desk.post(LOGS, replayLogName="log") == {
        "msgVpnName": "default",
        "replayLogName": "log",
        "egressEnabled": False,
        "ingressEnabled": False,
        "maxSpoolUsage": 0,
        "topicFilterEnabled": False,
    }
    await desk.ask("PATCH", LOGS, "log", body={"ingressEnabled": True, "maxSpoolUsage": 3})
    assert log_of(desk).settings == ReplayLogSettings("log", 3_000_000, ingress_enabled=True, egress_enabled=False)
    assert [each["replayLogName"] for each in await desk.get(LOGS)] == ["log"]
    await desk.ask("DELETE", LOGS, "log")
    assert log_of(desk) is None
    assert await desk.get(LOGS) == []
    assert await desk.code("GET", LOGS, "log") == SempCode.NOT_FOUND


async def test_a_vpn_has_one_log(desk):
    await desk.post(LOGS, replayLogName="log")
    assert await desk.code("POST", LOGS, body={"replayLogName": "log"}) == SempCode.ALREADY_EXISTS
    assert await desk.code("POST", LOGS, body={"replayLogName": "other"}) == SempCode.NOT_ALLOWED
    assert await desk.code("PATCH", LOGS, "other", body={}) == SempCode.NOT_FOUND


async def test_a_size_that_the_row_has_no_digits_for_stays(desk):
    desk.engine.replays.keep_log_of_size("default", 2_500_000)
    await desk.ask("PATCH", LOGS, "default", body={"egressEnabled": False})
    assert log_of(desk).settings.max_bytes == 2_500_000
    await desk.ask("PATCH", LOGS, "default", body={"maxSpoolUsage": 1})
    assert log_of(desk).settings.max_bytes == 1_000_000


async def test_what_a_log_cannot_be_is_refused(desk):
    for body, code in (
        ({"replayLogName": "a#b"}, SempCode.INVALID_PARAMETER),
        ({"replayLogName": "x" * 186}, SempCode.INVALID_PARAMETER),
        ({"replayLogName": "log", "maxSpoolUsage": -1}, SempCode.INVALID_PARAMETER),
        ({"replayLogName": "log", "topicFilterEnabled": True}, SempCode.NOT_SUPPORTED),
        ({}, SempCode.MISSING_PARAMETER),
    ):
        assert await desk.code("POST", LOGS, body=body) == code
    desk.username = "operator"
    assert await desk.code("POST", LOGS, body={"replayLogName": "log"}) == SempCode.UNAUTHORIZED
    assert log_of(desk) is None


# -- what is seen


async def test_a_log_and_its_messages_are_seen(desk):
    assert await desk.get(SEEN) == []
    await prepared(desk)
    answer = await desk.ask("GET", SEEN, "log")
    assert answer["data"] == {"msgVpnName": "default", "replayLogName": "log", **SAID, "msgSpoolUsage": 30}
    assert answer["collections"] == {"msgs": {"count": 3}}
    seen = await desk.get(f"{SEEN}/log/msgs")
    numbers = [entry.message.number for entry in log_of(desk).entries()]
    assert [each["msgId"] for each in seen] == numbers
    assert seen[0] == {
        "msgVpnName": "default",
        "replayLogName": "log",
        "msgId": numbers[0],
        "replicationGroupMsgId": message_id(desk.engine.spooler, numbers[0]),
        "attachmentSize": 10,
        "dmqEligible": True,
        "priority": 4,
        "spooledTime": 0,
    }
    on_queue = await desk.get("monitor/msgVpns/default/queues/q/msgs")
    assert [each["replicationGroupMsgId"] for each in on_queue] == [each["replicationGroupMsgId"] for each in seen]
    assert await desk.code("GET", f"{SEEN}/other/msgs") == SempCode.NOT_FOUND


async def test_a_log_is_trimmed(desk):
    now_s = 100.0
    desk.engine.surroundings.wall_s = lambda: now_s
    await prepared(desk, 2)
    trim = f"{ACTION}/replayLogs/log/trimLoggedMsgs"
    assert await desk.code("PUT", trim, body={"olderThanTime": 100}) == 0
    assert log_of(desk).message_count == 2
    assert await desk.code("PUT", trim, body={"olderThanTime": 101}) == 0
    assert log_of(desk).message_count == 0
    assert await desk.code("PUT", trim, body={}) == SempCode.MISSING_PARAMETER
    other = f"{ACTION}/replayLogs/other/trimLoggedMsgs"
    assert await desk.code("PUT", other, body={"olderThanTime": 1}) == SempCode.NOT_FOUND


# -- replays


async def replay_of(desk):
    seen = await desk.get("monitor/msgVpns/default/queues/q")
    names = ("State", "StartCount", "SuccessCount", "FailureCount")
    return (*(seen[f"replay{name}"] for name in names), seen["replayedTxMsgCount"], seen["replayedAckedMsgCount"])


async def test_a_replay_is_started_seen_and_cancelled(desk):
    await prepared(desk)
    assert await replay_of(desk) == ("complete", 0, 0, 0, 0, 0)
    client = desk.client("ann")
    flow = desk.bind(client, "q")
    await desk.ask("PUT", f"{ACTION}/queues/q/startReplay", body={"replayLogName": "log"})
    assert desk.effects == [FlowEnded(client, flow, "Replay Started")]
    assert await replay_of(desk) == ("pending-complete", 1, 0, 0, 0, 0)
    desk.bind(client, "q")
    assert await replay_of(desk) == ("pending-complete", 1, 0, 0, 3, 0)
    await desk.ask("PUT", f"{ACTION}/queues/q/cancelReplay", body={})
    assert await replay_of(desk) == ("complete", 1, 0, 1, 3, 0)
    assert desk.status("q").depth == 0


async def test_a_replay_starts_from_a_time_or_behind_a_message(desk):
    now_s = 100.0
    desk.engine.surroundings.wall_s = lambda: now_s
    await prepared(desk)
    first, *_ = await desk.get(f"{SEEN}/log/msgs")
    start = f"{ACTION}/queues/q/startReplay"
    for body, depth in (
        ({}, 3),
        ({"fromTime": 101}, 0),
        ({"fromTime": 100}, 3),
        ({"afterMsg": first["replicationGroupMsgId"]}, 2),
    ):
        assert await desk.code("PUT", start, body=body) == 0
        assert desk.status("q").depth == depth


async def test_a_replay_that_cannot_start_is_refused_with_the_reason(desk):
    desk.engine.surroundings.wall_s = lambda: 100.0
    await prepared(desk)
    start = f"{ACTION}/queues/q/startReplay"
    for body, code in (
        ({"replayLogName": "other"}, SempCode.NOT_FOUND),
        ({"fromTime": 99}, SempCode.NOT_ALLOWED),
        ({"fromTime": "now"}, SempCode.INVALID_PARAMETER),
        ({"fromTime": 100, "afterMsg": message_id(1, 1)}, SempCode.INVALID_PARAMETER),
        ({"afterMsg": message_id(1, 99)}, SempCode.NOT_ALLOWED),
        ({"afterMsg": "1"}, SempCode.INVALID_PARAMETER),
        ({"from": 1}, SempCode.INVALID_PARAMETER),
    ):
        assert await desk.code("PUT", start, body=body) == code
    answer = await desk.ask("PUT", start, body={"fromTime": 99})
    assert answer["meta"]["error"]["description"] == "queue q: Replay Start Time Not Available"
    assert await desk.code("PUT", f"{ACTION}/queues/missing/startReplay", body={}) == SempCode.NOT_FOUND
    assert await desk.code("PUT", f"{ACTION}/queues/missing/cancelReplay", body={}) == SempCode.NOT_FOUND
    await desk.ask("PATCH", LOGS, "log", body={"egressEnabled": False})
    assert await desk.code("PUT", start, body={}) == SempCode.NOT_ALLOWED
    assert desk.status("q").depth == 3
    desk.username = "guest"
    assert await desk.code("PUT", start, body={}) == SempCode.UNAUTHORIZED


def test_an_id_is_written_as_clients_read_it_and_read_again():
    assert message_id(0x3477FA5CE52B0FE8, 1) == "rmid1:3477f-a5ce52b0fe8-00000000-00000001"
    found = after_message("afterMsg", message_id(2**64 - 1, 2**63 + 5))
    assert (found.spooler, found.number) == (2**64 - 1, 2**63 + 5)
    with pytest.raises(SempFault, match="afterMsg 'rmid1:1' is not valid"):
        after_message("afterMsg", "rmid1:1")
