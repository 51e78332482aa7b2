import pytest

from lbg_runtime.broker.engine.answers import Introduction
from lbg_runtime.broker.engine.effects import ClientEnded, DeliverRun
from lbg_runtime.broker.semp import monitor
from tests.broker.deadlines import call_due

CONFIG = "config/msgVpns/default/queues"
QUEUES = "monitor/msgVpns/default/queues"
CLIENTS = "monitor/msgVpns/default/clients"
ACTION = "action/msgVpns/default"


async def make_queue(desk, name="orders/0"):
    await desk.post(CONFIG, queueName=name, permission="consume", ingressEnabled=True, egressEnabled=True)
    await desk.post(CONFIG, name, "subscriptions", subscriptionTopic="a/>")


async def test_the_depth_of_a_queue_is_the_count_of_its_messages(desk):
    await make_queue(desk)
    for _ in range(3):
        desk.publish("a/1")
    answer = await desk.ask("GET", QUEUES, "orders/0")
    assert answer["collections"] == {"msgs": {"count": 3}, "subscriptions": {"count": 1}, "txFlows": {"count": 0}}
    await desk.ask("PUT", ACTION, "queues", "orders/0", "msgs", "1", "delete", body={})
    (listed,) = (await desk.ask("GET", QUEUES))["collections"]
    assert listed["msgs"] == {"count": 2}
    row = await desk.get(QUEUES, "orders/0")
    assert (row["spooledMsgCount"], row["lowestMsgId"], row["lastSpooledMsgId"]) == (3, 2, 3)
    assert row["msgSpoolUsage"] == 6


async def test_what_autoscalers_ask_for_is_answered(desk):
    await make_queue(desk)
    now_s = 1_000
    desk.engine.surroundings.wall_s = lambda: now_s
    for _ in range(120):
        desk.publish("a/1")
    now_s = 1_001
    desk.bind(desk.client("ann"), "orders/0")
    answer = await desk.ask("GET", QUEUES, "orders/0", query="select=msgs,msgSpoolUsage,averageRxMsgRate")
    assert answer["data"] == {"msgSpoolUsage": 360, "averageRxMsgRate": 2}
    assert answer["collections"] == {"msgs": {"count": 120}}
    assert await desk.get(QUEUES, "orders/0", query="select=*MsgRate") == {
        "rxMsgRate": 120,
        "txMsgRate": 0,
        "averageRxMsgRate": 2,
        "averageTxMsgRate": 0,
    }
    now_s = 1_002
    row = await desk.get(QUEUES, "orders/0", query="select=*Rate")
    assert (row["txMsgRate"], row["txByteRate"], row["averageTxMsgRate"]) == (120, 360, 2)
    assert (row["rxByteRate"], row["averageRxByteRate"], row["averageTxByteRate"]) == (0, 6, 6)


async def test_messages_are_listed_as_they_came_over_all_pages(desk):
    await make_queue(desk)
    for _ in range(112):
        desk.publish("a/1")
    listed, query = [], "count=25"
    while query:
        answer = await desk.ask("GET", QUEUES, "orders/0", "msgs", query=query)
        listed += [row["msgId"] for row in answer["data"]]
        following = answer["meta"].get("paging", {}).get("nextPageUri", "")
        query = following.partition("?")[2]
    assert listed == list(range(1, 113))


async def test_of_very_many_messages_only_those_of_the_page_are_looked_at(desk, monkeypatch):
    await make_queue(desk)
    for _ in range(500):
        desk.publish("a/1")
    looks = []
    monkeypatch.setattr(monitor, "message_id", lambda spooler, number: looks.append(number) or str(number))
    first = await desk.ask("GET", QUEUES, "orders/0", "msgs", query="count=100")
    assert len(first["data"]) == 100
    assert len(looks) <= 101
    looks.clear()
    following = first["meta"]["paging"]["nextPageUri"].partition("?")[2]
    assert [row["msgId"] for row in await desk.get(QUEUES, "orders/0", "msgs", query=following)] == [*range(101, 201)]
    assert len(looks) <= 101
    looks.clear()
    assert (await desk.get(QUEUES, "orders/0", "msgs", "400"))["msgId"] == 400
    for name in ("501", "0", "0400", "x", "9" * 30):
        assert await desk.code("GET", QUEUES, "orders/0", "msgs", name) == 6
        assert await desk.code("PUT", ACTION, "queues", "orders/0", "msgs", name, "delete", body={}) == 6
    assert len(looks) <= 5


async def test_of_many_queues_only_those_of_the_answer_are_looked_at(desk, monkeypatch):
    """All clients wait while one is looked at."""
    for number in range(40):
        await make_queue(desk, f"orders/{number:02d}")
    look, looks = desk.engine.queue_status, []
    monkeypatch.setattr(desk.engine, "queue_status", lambda vpn, queue: looks.append(queue) or look(vpn, queue))
    assert (await desk.get(QUEUES, "orders/33"))["queueName"] == "orders/33"
    assert looks == ["orders/33"]
    looks.clear()
    assert len(await desk.get(QUEUES, query="count=10")) == 10
    assert len(looks) <= 11
    looks.clear()
    for query in ("", "?count=10"):
        await desk.ask("GET", CONFIG, query=query.removeprefix("?"))
    await desk.get(CONFIG, "orders/33")
    assert looks == []
    await desk.post(CONFIG, queueName="parted", accessType="non-exclusive", partitionCount=20)
    assert len(await desk.get(QUEUES, query="count=10&where=partitionQueueName==parted")) == 10
    assert looks.count("parted") == 1


async def test_of_many_clients_only_those_of_the_answer_are_looked_at(desk, monkeypatch):
    for number in range(40):
        desk.client(f"c{number:02d}")
    administration, looks = desk.engine.administration, []
    look = administration.client
    monkeypatch.setattr(administration, "client", lambda vpn, name: looks.append(name) or look(vpn, name))
    assert (await desk.get(CLIENTS, "c33"))["clientName"] == "c33"
    assert await desk.get(CLIENTS, "c33", "txFlows") == []
    assert looks == ["c33", "c33"]
    looks.clear()
    assert len(await desk.get(CLIENTS, query="count=10")) == 10
    assert len(looks) <= 11


async def test_who_of_the_bound_clients_is_active(desk):
    await make_queue(desk)
    for name in ("ann", "bob"):
        desk.bind(desk.client(name), "orders/0")
    desk.publish("a/1")
    flows = await desk.get(QUEUES, "orders/0", "txFlows")
    seen = {flow["clientName"]: (flow["activityState"], flow["unackedMsgCount"]) for flow in flows}
    assert seen == {"ann": ("active-consumer", 1), "bob": ("inactive", 0)}
    active = await desk.get(QUEUES, "orders/0", "txFlows", query="where=activityState==active-consumer")
    assert [flow["clientName"] for flow in active] == ["ann"]
    flow_id = str(active[0]["flowId"])
    assert (await desk.get(QUEUES, "orders/0", "txFlows", flow_id))["usedWindowSize"] == 1
    assert (await desk.get(QUEUES, "orders/0"))["bindCount"] == 2
    assert await desk.code("GET", QUEUES, "orders/0", "txFlows", "99") == 6


async def test_binds_are_counted_by_how_they_ended(desk):
    await make_queue(desk)
    ann = desk.client("ann")
    desk.bind(ann, "orders/0")
    row = await desk.get(QUEUES, "orders/0")
    assert (row["bindRequestCount"], row["bindSuccessCount"], row["otherBindFailureCount"]) == (1, 1, 0)


async def test_a_client_is_seen_with_its_flows_and_subscriptions(desk):
    await make_queue(desk)
    ann = desk.client("group/member", username="staff")
    desk.bind(ann, "orders/0")
    desk.engine.subscribe(ann, "news/>")
    row = await desk.get(CLIENTS, "group/member")
    assert (row["clientUsername"], row["originalClientUsername"]) == ("default", "staff")
    assert row["clientAddress"] == "127.0.0.1"
    (flow,) = await desk.get(CLIENTS, "group/member", "txFlows")
    assert (flow["endpointName"], flow["endpointType"]) == ("orders/0", "queue")
    (of_queue,) = await desk.get(QUEUES, "orders/0", "subscriptions", query="select=subscriptionTopic,createdBy*")
    assert of_queue == {"subscriptionTopic": "a/>"}
    (subscription,) = await desk.get(CLIENTS, "group/member", "subscriptions")
    assert subscription["subscriptionTopic"] == "news/>"
    assert await desk.code("GET", CLIENTS, "nobody", "txFlows") == 6


async def test_a_client_is_seen_with_what_it_said_of_itself_and_since_when_it_is_here(desk):
    now_ms = 5_000
    desk.engine.surroundings.timetable.now = lambda: now_ms
    said = Introduction("1.11", "today", "Linux", "ann at home", "the orders")
    desk.engine.connect("default", "staff", "", "ann", "127.0.0.1", said)
    now_ms = 8_999
    names = ("softwareVersion", "softwareDate", "platform", "user", "description", "uptime")
    query = "select=" + ",".join(names)
    seen = await desk.get(CLIENTS, "ann", query=query)
    assert tuple(seen.values()) == ("1.11", "today", "Linux", "ann at home", "the orders", 3)
    desk.engine.connect("default", "staff", "", "ann", "127.0.0.1")
    assert await desk.get(CLIENTS, "ann", query=query) == {**dict.fromkeys(names, ""), "uptime": 0}


async def test_what_is_only_configured_is_seen_as_it_is_configured(desk):
    config, there = "config/msgVpns/default", "monitor/msgVpns/default"
    await desk.post(f"{config}/clientUsernames", clientUsername="ann", enabled=True, password="secret")
    await desk.post(f"{config}/aclProfiles", aclProfileName="a")
    exceptions = ("a", "publishTopicExceptions")
    await desk.post(f"{config}/aclProfiles", *exceptions, publishTopicExceptionSyntax="smf", publishTopicException="x")
    for path in (("clientUsernames", "ann"), ("clientUsernames",), ("clientProfiles",), ("aclProfiles", *exceptions)):
        assert await desk.get(there, *path) == await desk.get(config, *path)
    answer = await desk.ask("GET", there, "clientUsernames", query="where=clientUsername==ann")
    assert answer["links"][0]["uri"] == "http://broker/SEMP/v2/monitor/msgVpns/default/clientUsernames/ann"
    links = (await desk.ask("GET", there))["links"]
    for name in ("queues", "clients", "replayLogs", "clientUsernames", "clientProfiles", "aclProfiles", "jndiQueues"):
        await desk.get(links[f"{name}Uri"].removeprefix("http://broker/SEMP/v2/"))
    assert await desk.code("DELETE", there, "clientUsernames", "ann") == 14
    desk.username = "nobody"
    assert await desk.code("GET", there, "clientUsernames") == 72


async def test_messages_can_be_seen_and_deleted(desk):
    await make_queue(desk)
    desk.bind(desk.client("ann"), "orders/0")
    desk.publish("a/1")
    (message,) = await desk.get(QUEUES, "orders/0", "msgs")
    assert (message["msgId"], message["attachmentSize"], message["undelivered"]) == (1, 3, False)
    assert "spooledTime" not in message, "nobody said when it came"
    assert await desk.code("PUT", ACTION, "queues", "orders/0", "msgs", "2", "delete", body={}) == 6
    assert set(await desk.ask("PUT", ACTION, "queues", "orders/0", "deleteMsgs", body={})) == {"meta"}
    assert desk.status("orders/0").depth == 0
    assert await desk.code("PUT", ACTION, "queues", "missing", "deleteMsgs", body={}) == 6


async def test_a_message_is_copied_to_another_queue_where_it_is_as_new(desk):
    """As operators bring dead messages back: a copy to the queue, then a deletion in the dead message queue."""
    await make_queue(desk)
    await desk.post(CONFIG, queueName="again", ingressEnabled=True, egressEnabled=True, permission="consume")
    desk.bind(desk.client("ann"), "orders/0")
    for topic in ("a/1", "a/2"):
        desk.publish(topic)
    second = (await desk.get(QUEUES, "orders/0", "msgs"))[1]["replicationGroupMsgId"]
    body = {"sourceQueueName": "orders/0", "replicationGroupMsgId": second}
    desk.effects.clear()
    other = desk.client("bob")
    desk.bind(other, "again")
    assert set(await desk.ask("PUT", ACTION, "queues", "again", "copyMsgFromQueue", body=body)) == {"meta"}
    (run,) = desk.effects
    assert isinstance(run, DeliverRun)
    assert (run.client, [each.topic for each in run.messages], run.redelivered) == (other, ["a/2"], False)
    assert (desk.status("orders/0").depth, desk.status("orders/0").unacked_count) == (2, 2)
    assert [each["replicationGroupMsgId"] for each in await desk.get(QUEUES, "again", "msgs")] == [second]


@pytest.mark.parametrize(
    ("target", "body", "code", "reason"),
    [
        ("again", {"sourceQueueName": "orders/0"}, 228, "replicationGroupMsgId is needed"),
        ("again", {"replicationGroupMsgId": "ID"}, 228, "sourceQueueName is needed"),
        ("again", {"sourceQueueName": "q", "replicationGroupMsgId": "ID", "count": 2}, 11, "no attribute 'count'"),
        ("again", {"sourceQueueName": "orders/0", "replicationGroupMsgId": 1}, 11, "expected a replication group"),
        ("again", {"sourceQueueName": "ghost", "replicationGroupMsgId": "ID"}, 6, "ghost does not exist in queues"),
        ("ghost", {"sourceQueueName": "orders/0", "replicationGroupMsgId": "ID"}, 6, "ghost does not exist in queues"),
        (
            "again",
            {"sourceQueueName": "orders/0", "replicationGroupMsgId": "OTHER"},
            6,
            "queue orders/0 has no message",
        ),
        ("orders/0", {"sourceQueueName": "orders/0", "replicationGroupMsgId": "ID"}, 89, "expected another one"),
        ("shut", {"sourceQueueName": "orders/0", "replicationGroupMsgId": "ID"}, 89, "queue shut: Queue Shutdown"),
    ],
)
async def test_a_copy_that_cannot_be_is_refused_with_the_reason(desk, target, body, code, reason):
    await make_queue(desk)
    for name in ("again", "shut"):
        await desk.post(CONFIG, queueName=name, ingressEnabled=name == "again")
    desk.publish("a/1")
    (message,) = await desk.get(QUEUES, "orders/0", "msgs")
    known = message["replicationGroupMsgId"]
    texts = {"ID": known, "OTHER": known[:-1] + ("0" if known[-1] != "0" else "1")}
    sent = {name: texts.get(value, value) for name, value in body.items()}
    error = (await desk.ask("PUT", ACTION, "queues", target, "copyMsgFromQueue", body=sent))["meta"]["error"]
    assert error["code"] == code
    assert reason in error["description"]
    assert [desk.status(name).depth for name in ("orders/0", "again", "shut")] == [1, 0, 0]


async def test_what_a_queue_counts_is_counted_anew_from_when_an_administrator_clears_it(desk):
    await make_queue(desk)
    desk.publish("a/1")
    desk.bind(desk.client("ann"), "orders/0")
    await desk.ask("PATCH", CONFIG, "orders/0", body={"ingressEnabled": False})
    desk.publish("a/2")
    names = ("spooledMsgCount", "bindRequestCount", "disabledDiscardedMsgCount", "lastSpooledMsgId", "bindCount")
    query = "select=" + ",".join(names)
    assert tuple((await desk.get(QUEUES, "orders/0", query=query)).values()) == (1, 1, 1, 1, 1)
    assert await desk.code("PUT", ACTION, "queues", "orders/0", "clearStats", body={}) == 0
    assert await desk.get(QUEUES, "orders/0", query=query) == dict(zip(names, (0, 0, 0, 1, 1), strict=True))
    await desk.ask("PATCH", CONFIG, "orders/0", body={"ingressEnabled": True})
    desk.publish("a/3")
    assert await desk.get(QUEUES, "orders/0", query=query) == dict(zip(names, (1, 0, 0, 2, 1), strict=True))
    assert await desk.code("PUT", ACTION, "queues", "ghost", "clearStats", body={}) == 6


@pytest.mark.parametrize(
    ("names", "body", "code"),
    [
        (("queues", "orders/0", "deleteMsgs"), {"olderThanTime": 1}, 11),
        (("queues", "orders/0", "deleteMsgs"), ["olderThanTime"], 27),
        (("clients", "group/member", "disconnect"), {"reason": "old"}, 11),
    ],
)
async def test_an_action_that_cannot_be_done_as_it_is_wanted_is_not_done(desk, names, body, code):
    await make_queue(desk)
    desk.client("group/member")
    desk.publish("a/1")
    assert await desk.code("PUT", ACTION, *names, body=body) == code
    assert desk.status("orders/0").depth == 1
    assert not any(isinstance(effect, ClientEnded) for effect in desk.effects)


async def test_a_client_is_disconnected(desk):
    ann = desk.client("group/member")
    assert await desk.code("PUT", ACTION, "clients", "group/member", "disconnect", body={}) == 0
    assert [effect.client for effect in desk.effects if isinstance(effect, ClientEnded)] == [ann]
    assert await desk.code("PUT", ACTION, "clients", "group/member", "disconnect", body={}) == 6


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        (("default", "clients", "ghost", "disconnect"), "ghost does not exist in clients"),
        (("default", "queues", "ghost", "msgs", "1", "delete"), "ghost does not exist in queues"),
        (("ghost", "queues", "orders/0", "deleteMsgs"), "ghost does not exist in msgVpns"),
    ],
)
async def test_an_action_says_which_object_is_missing(desk, path, missing):
    answer = await desk.ask("PUT", "action/msgVpns", *path, body={})
    assert answer["meta"]["error"]["description"] == missing


async def test_the_partitions_of_a_queue_are_seen_as_queues_beside_it(desk):
    now_ms = 0
    desk.engine.surroundings.timetable.now = lambda: now_ms
    open_to_all = {"permission": "consume", "ingressEnabled": True, "egressEnabled": True}
    times = {"partitionRebalanceDelay": 7, "partitionRebalanceMaxHandoffTime": 0}
    await desk.post(CONFIG, queueName="pq", accessType="non-exclusive", partitionCount=2, **times, **open_to_all)
    await desk.post(CONFIG, "pq", "subscriptions", subscriptionTopic="a/>")
    desk.bind(desk.client("ann"), "pq")
    desk.publish("a/1")
    row = await desk.get(QUEUES, "pq")
    assert (row["partitionOperationalCount"], row["partitionScaleStatus"]) == (2, "ready")
    assert row["partitionRebalanceStatus"] == "holddown"
    now_ms = 7_000
    call_due(desk.engine.surroundings.timetable)
    assert (await desk.get(QUEUES, "pq"))["partitionRebalanceStatus"] == "ready"
    answer = await desk.ask("GET", QUEUES)
    seen = [row for row in answer["data"] if row.get("partitionQueueName") == "pq"]
    assert [(p["partitionNumber"], p["partitionStatus"], p["partitionClientName"]) for p in seen] == [
        (0, "ready", "ann"),
        (1, "ready", "ann"),
    ]
    assert sorted(counts["msgs"]["count"] for counts in answer["collections"]) == [0, 1, 1], "the queue's and theirs"
    assert (await desk.get(QUEUES, seen[0]["queueName"]))["partitionNumber"] == 0
    assert {queue["queueName"] for queue in await desk.get(CONFIG)} == {"pq"}, "they are no configuration"
    for uri in (uri for links in answer["links"] for uri in links.values()):
        await desk.get(uri.removeprefix("http://broker/SEMP/v2/"))

    # What only some of them have may be asked of all.
    await make_queue(desk, "plain")
    parts = [p["queueName"] for p in seen]
    assert [p["queueName"] for p in await desk.get(QUEUES, query="where=partitionQueueName==p*")] == parts
    assert [p["queueName"] for p in await desk.get(QUEUES, query="where=partitionNumber!=1")] == parts[:1]
    usage = await desk.get(QUEUES, query="select=queueName,msgSpoolUsage,partitionScaleStatus")
    assert [set(row) - {"queueName"} for row in usage] == [
        set(),
        set(),
        {"msgSpoolUsage"},
        {"msgSpoolUsage", "partitionScaleStatus"},
    ]


async def test_message_groups_are_seen_and_reset(desk):
    desk.engine.surroundings.key_of = lambda message: message.topic.rpartition("/")[2]
    open_to_all = {"permission": "consume", "ingressEnabled": True, "egressEnabled": True}
    grouping = {"messageGroupsEnabled": True, "messageGroupsTimeout": 60, "messageGroupsFirstProperty": "first"}
    await desk.post(CONFIG, queueName="g", accessType="non-exclusive", **grouping, **open_to_all)
    await desk.post(CONFIG, "g", "subscriptions", subscriptionTopic="a/>")
    row = await desk.get(CONFIG, "g")
    assert {name: row[name] for name in grouping} == grouping
    desk.bind(desk.client("ann"), "g")
    for group in ("x", "y"):
        desk.publish(f"a/{group}")
    groups = await desk.get(QUEUES, "g", "messageGroups")
    assert [(each["messageGroup"], each["clientName"]) for each in groups] == [("x", "ann"), ("y", "ann")]
    await desk.ask("PUT", ACTION, "queues", "g", "messageGroups", "x", "reset", body={})
    assert [each["messageGroup"] for each in await desk.get(QUEUES, "g", "messageGroups")] == ["y"]
    assert await desk.code("PUT", ACTION, "queues", "g", "messageGroups", "x", "reset", body={}) == 6
    await desk.ask("PUT", ACTION, "queues", "g", "resetMessageGroups", body={})
    assert await desk.get(QUEUES, "g", "messageGroups") == []
    await desk.ask("PATCH", CONFIG, "g", body={"messageGroupsEnabled": False})
    assert not (await desk.get(CONFIG, "g"))["messageGroupsEnabled"]
