import httpx
import pytest

from lbg_runtime.broker.engine.effects import FlowEnded
from lbg_runtime.broker.engine.settings import Permission, QueueSettings
from lbg_runtime.broker.semp import objects
from lbg_runtime.broker.semp.queues import changed_settings, row_of
from lbg_runtime.model.ids import QueueName

VPN = "config/msgVpns/default"
QUEUES = f"{VPN}/queues"
ON = {"ingressEnabled": True, "egressEnabled": True}


# -- the verbs, on queues


async def test_a_created_object_is_answered_with_all_its_defaults(desk):
    made = await desk.post(QUEUES, queueName="orders/0")
    assert made == {"msgVpnName": "default", "queueName": "orders/0", **objects.QUEUE.defaults()}
    assert (made["ingressEnabled"], made["egressEnabled"], made["permission"]) == (False, False, "no-access")
    assert await desk.get(QUEUES, "orders/0") == made


async def test_the_links_of_an_object_lead_to_it_and_below(desk):
    await desk.post(QUEUES, queueName="orders/0")
    links = (await desk.ask("GET", QUEUES, "orders/0"))["links"]
    base = "http://broker/SEMP/v2/config/msgVpns/default/queues/orders%2F0"
    assert links == {"uri": base, "subscriptionsUri": f"{base}/subscriptions"}
    assert (await desk.http.get(links["uri"], auth=("admin", "admin"))).is_success


async def test_the_answer_says_what_was_asked(desk):
    answer = await desk.ask("GET", QUEUES, "a b", query="select=queueName")
    assert answer["meta"]["request"] == {
        "method": "GET",
        "uri": "http://broker/SEMP/v2/config/msgVpns/default/queues/a%20b?select=queueName",
    }
    assert answer["meta"]["error"] == {"code": 6, "status": "NOT_FOUND", "description": "queue a b does not exist"}


async def test_what_exists_is_not_created_again(desk):
    await desk.post(QUEUES, queueName="q")
    assert await desk.code("POST", QUEUES, body={"queueName": "q"}) == 10


async def test_a_patch_changes_what_it_names_and_a_put_resets_the_rest(desk):
    await desk.post(QUEUES, queueName="q", maxBindCount=5, maxTtl=7)
    changed = (await desk.ask("PATCH", QUEUES, "q", body={"maxTtl": 8}))["data"]
    assert (changed["maxBindCount"], changed["maxTtl"]) == (5, 8)
    replaced = (await desk.ask("PUT", QUEUES, "q", body={"queueName": "q", "maxTtl": 9}))["data"]
    assert (replaced["maxBindCount"], replaced["maxTtl"]) == (1000, 9)


async def test_a_put_creates_what_is_not_there_under_the_name_in_its_path(desk):
    created = (await desk.ask("PUT", QUEUES, "a/b", body={"maxTtl": 9}))["data"]
    assert created == {"msgVpnName": "default", "queueName": "a/b", **objects.QUEUE.defaults(), "maxTtl": 9}
    assert await desk.code("PUT", QUEUES, "c", body={"queueName": "d"}) == 11
    assert await desk.code("PUT", QUEUES, "c*", body={}) == 11
    assert await desk.code("PUT", "config/msgVpns", "other", body={}) == 6
    assert await desk.code("PUT", QUEUES, "a/b", "subscriptions", "t", body={}) == 6, "what has nothing to replace"
    assert [row["queueName"] for row in await desk.get(QUEUES)] == ["a/b"]


async def test_a_deletion_is_answered_without_data_and_takes_what_is_below_along(desk):
    await desk.post(QUEUES, queueName="q")
    await desk.post(QUEUES, "q", "subscriptions", subscriptionTopic="a")
    assert set(await desk.ask("DELETE", QUEUES, "q")) == {"meta"}
    assert await desk.code("DELETE", QUEUES, "q") == 6
    assert await desk.code("GET", QUEUES, "q", "subscriptions") == 6
    await desk.post(QUEUES, queueName="q")
    assert await desk.get(QUEUES, "q", "subscriptions") == []


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "config/msgVpns/other/queues", 6),
        ("POST", "config/msgVpns/other/queues", 6),
        ("GET", f"{QUEUES}/q/subscriptions", 6),
        ("GET", f"{VPN}/nonsense", 27),
        ("GET", f"{QUEUES}/q/nonsense", 27),
        ("GET", "config/nonsense", 27),
        ("GET", "config", 27),
        ("GET", f"{QUEUES}/%FF", 27),
        ("DELETE", QUEUES, 14),
        ("POST", f"{QUEUES}/q", 14),
        ("DELETE", VPN, 14),
        ("POST", "config/msgVpns", 14),
        ("PUT", "config/about/api", 14),
        ("POST", "monitor/msgVpns/default/queues", 14),
        ("GET", "monitor/msgVpns/default/nonsense", 27),
        ("PUT", f"{QUEUES}/q/deleteMsgs".replace("config", "action"), 6),
        ("PUT", "action/msgVpns/default/queues/q/nonsense", 14),
        ("PUT", "action/msgVpns/default/deleteMsgs", 14),
        ("PUT", "action", 14),
    ],
)
async def test_what_is_not_there_or_not_possible_has_its_code(desk, method, path, code):
    assert await desk.code(method, path, body={} if method in ("POST", "PUT") else None) == code


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 228),
        ({"queueName": "q", "colour": "red"}, 11),
        ({"queueName": "q", "maxBindCount": 10_001}, 11),
        ({"queueName": "q", "maxBindCount": True}, 11),
        ({"queueName": "q", "ingressEnabled": 1}, 11),
        ({"queueName": "q", "permission": "all"}, 11),
        ({"queueName": "q", "owner": "x" * 190}, 11),
        ({"queueName": "q", "eventBindCountThreshold": {"setPercent": 5}}, 11),
        ({"queueName": "q", "eventBindCountThreshold": {"setPercent": 101, "clearPercent": 1}}, 11),
        ({"queueName": "q", "msgVpnName": "other"}, 11),
        ({"queueName": "q", "partitionCount": 1001}, 11),
        ({"queueName": "q", "maxMsgSpoolUsage": 0}, 14),
        ({"queueName": "q" * 201}, 11),
        ({"queueName": "q*"}, 11),
        ({"queueName": "#q"}, 11),
        ({"queueName": "a//b"}, 11),
        ({"queueName": "a/"}, 11),
        ({"queueName": "a\nb"}, 11),
        ({"queueName": 5}, 11),
        ([], 27),
    ],
)
async def test_a_body_that_cannot_be_has_its_code_and_creates_nothing(desk, body, code):
    assert await desk.code("POST", QUEUES, body=body) == code
    assert await desk.get(QUEUES) == []


async def test_a_body_that_is_not_json_has_its_code(desk):
    response = await desk.http.post(f"/SEMP/v2/{QUEUES}", content=b"{", auth=("admin", "admin"))
    assert (response.status_code, response.json()["meta"]["error"]["code"]) == (400, 27)


async def test_a_body_without_bounds_is_not_read(desk):
    response = await desk.http.post(f"/SEMP/v2/{QUEUES}", content=b"x" * 1_000_001, auth=("admin", "admin"))
    assert response.status_code == 413


async def test_a_name_may_hold_what_paths_are_made_of(desk):
    names = ["a/b", "a%2Fb", "a b", "a+b", "a,b", "ü/%", "a#b"]
    for name in names:
        await desk.post(QUEUES, queueName=name)
        assert (await desk.get(QUEUES, name))["queueName"] == name
    assert {each["queueName"] for each in await desk.get(QUEUES)} == set(names)


async def test_a_vpn_is_set_up_as_tools_do_it(desk):
    assert (await desk.get(VPN))["maxMsgSpoolUsage"] == 6_000_000
    changed = await desk.ask("PATCH", VPN, body={"enabled": True, "maxMsgSpoolUsage": 1_500})
    assert (changed["data"]["enabled"], changed["data"]["maxMsgSpoolUsage"]) == (True, 1_500)
    assert await desk.code("PATCH", VPN, body={"enabled": False, "maxMsgSpoolUsage": 1}) == 14
    assert await desk.get(VPN) == changed["data"]
    assert await desk.code("PUT", VPN, body={}) == 0
    assert (await desk.get(VPN))["maxMsgSpoolUsage"] == 6_000_000


async def test_thresholds_are_kept_in_the_form_they_were_given(desk):
    pair = {"setValue": 10, "clearValue": 5}
    await desk.post(QUEUES, queueName="q", eventBindCountThreshold=pair)
    assert (await desk.get(QUEUES, "q"))["eventBindCountThreshold"] == pair


# -- what the engine makes of a queue


async def test_every_attribute_of_a_queue_is_what_it_was_set_to(desk):
    other = {
        "accessType": "non-exclusive",
        "permission": "consume",
        "rejectMsgToSenderOnDiscardBehavior": "always",
        "deadMsgQueue": "dead",
        "owner": "boss",
    }
    for attribute in objects.QUEUE.attributes:
        value = other.get(attribute.name)
        if value is None:
            default = attribute.default
            value = (not default) if isinstance(default, bool) else default + 1 if isinstance(default, int) else default
        settings = changed_settings(QueueSettings(), {**row_of(QueueSettings()), attribute.name: value})
        assert row_of(settings)[attribute.name] == value


def test_a_change_leaves_alone_what_a_row_cannot_say():
    settings = QueueSettings(quota_bytes=1_500)
    changed = changed_settings(settings, {**row_of(settings), "maxBindCount": 3})
    assert (changed.quota_bytes, changed.max_bind_count) == (1_500, 3)


async def test_settings_are_in_force_at_once(desk):
    await desk.post(QUEUES, queueName="q", permission="consume", maxBindCount=1, **ON)
    await desk.post(QUEUES, "q", "subscriptions", subscriptionTopic="a/>")
    flow = desk.bind(desk.client("ann"), "q")
    desk.publish("a/1")
    assert desk.status("q").depth == 1
    await desk.ask("DELETE", QUEUES, "q", "subscriptions", "a/>")
    desk.publish("a/1")
    assert desk.status("q").depth == 1
    await desk.ask("PATCH", QUEUES, "q", body={"egressEnabled": False})
    assert [(e.flow, e.text) for e in desk.effects if isinstance(e, FlowEnded)] == [(flow, "Service Unavailable")]
    assert desk.status("q").settings.permission is Permission.CONSUME


async def test_a_queue_made_by_a_client_can_be_read_and_changed(desk):
    ann = desk.client("ann")
    desk.engine.provision(ann, QueueName("own"), QueueSettings())
    assert (await desk.get(QUEUES, "own"))["owner"] == "user"
    await desk.ask("PATCH", QUEUES, "own", body={"maxTtl": 5, "owner": ""})
    assert desk.status("own").settings.owner is None
    assert (await desk.get(QUEUES, "own"))["maxTtl"] == 5


async def test_a_temporary_queue_is_no_configuration(desk):
    ann = desk.client("ann")
    name = QueueName("#P2P/QTMP/v:lbg/1")
    desk.engine.bind(ann, name, create_temporary=True)
    desk.engine.bind(ann, QueueName("own"), create_temporary=True)
    assert await desk.get(QUEUES) == []
    assert await desk.code("GET", QUEUES, name) == 6
    assert await desk.code("POST", QUEUES, body={"queueName": "own"}) == 10
    assert {queue["durable"] for queue in await desk.get("monitor/msgVpns/default/queues")} == {False}


async def test_deleting_a_queue_ends_its_flows(desk):
    await desk.post(QUEUES, queueName="q", permission="consume", **ON)
    flow = desk.bind(desk.client("ann"), "q")
    await desk.ask("DELETE", QUEUES, "q")
    assert [(e.flow, e.text) for e in desk.effects if isinstance(e, FlowEnded)] == [(flow, "Queue Deleted")]


@pytest.mark.parametrize("topic", ["", "x" * 251, "#share//a", "#share/g/", "!a/b", 3])
async def test_a_subscription_that_cannot_be_is_refused(desk, topic):
    await desk.post(QUEUES, queueName="q")
    assert await desk.code("POST", QUEUES, "q", "subscriptions", body={"subscriptionTopic": topic}) == 11


async def test_a_list_of_many_subscriptions_asks_the_queue_for_them_once(desk, monkeypatch):
    await desk.post(QUEUES, queueName="q")
    for number in range(50):
        desk.engine.add_queue_subscription("default", "q", f"a/{number}")
    looks, status = [], desk.engine.queue_status
    monkeypatch.setattr(desk.engine, "queue_status", lambda vpn, queue: looks.append(queue) or status(vpn, queue))
    assert len(await desk.get(QUEUES, "q", "subscriptions", query="count=100")) == 50
    assert len(looks) <= 2, "once for the queue, and once for its subscriptions"


async def test_a_subscription_has_nothing_to_change(desk):
    await desk.post(QUEUES, queueName="q")
    await desk.post(QUEUES, "q", "subscriptions", subscriptionTopic="a/>")
    assert (await desk.get(QUEUES, "q", "subscriptions", "a/>"))["subscriptionTopic"] == "a/>"
    assert await desk.code("POST", QUEUES, "q", "subscriptions", body={"subscriptionTopic": "a/>"}) == 10
    for verb in ("PATCH", "PUT"):
        assert await desk.code(verb, QUEUES, "q", "subscriptions", "a/>", body={}) == 14
    assert await desk.code("DELETE", QUEUES, "q", "subscriptions", "b") == 6


async def test_jndi_queues_hold_any_text_of_up_to_200_characters(desk):
    text = '{"q":1}' + "x" * 193
    await desk.post(f"{VPN}/jndiQueues", queueName="/lbg/orders", physicalName=text)
    assert (await desk.get(f"{VPN}/jndiQueues", "/lbg/orders"))["physicalName"] == text
    assert await desk.code("PATCH", f"{VPN}/jndiQueues", "/lbg/orders", body={"physicalName": text + "y"}) == 11
    assert await desk.code("POST", f"{VPN}/jndiQueues", body={"queueName": "a b"}) == 11


# -- who may


async def test_nobody_without_a_password(desk):
    for auth in (None, ("admin", "wrong"), ("nobody else", "x")):
        response = await desk.http.get("/SEMP/v2/config/about/api", auth=auth or httpx.USE_CLIENT_DEFAULT)
        assert (response.status_code, response.content) == (401, b"")
        assert "Basic" in response.headers["www-authenticate"]
    for header in ("Bearer abc", "Basic ???", "Basic /w==", b"Basic \xff"):
        response = await desk.http.get("/SEMP/v2/config/about/api", headers={"authorization": header})
        assert response.status_code == 401


async def test_other_paths_are_not_semp(desk):
    for path in ("/", "/SEMP/v1/config", "/SEMP/v2/nonsense/x"):
        assert (await desk.http.get(path, auth=("admin", "admin"))).status_code == 404


@pytest.mark.parametrize(
    ("username", "reads", "writes", "makes_profiles"),
    [
        ("admin", 0, 0, 0),
        ("watcher", 0, 72, 72),
        ("operator", 0, 0, 72),
        ("guest", 0, 72, 72),
        ("nobody", 72, 72, 72),
    ],
)
async def test_rights_in_the_broker_and_in_a_vpn(desk, username, reads, writes, makes_profiles):
    await desk.post(QUEUES, queueName="q", **ON)
    desk.username = username
    for api in ("config", "monitor"):
        assert await desk.code("GET", f"{api}/msgVpns/default/queues") == reads
    assert await desk.code("POST", QUEUES, body={"queueName": "other"}) == writes
    assert await desk.code("PUT", "action/msgVpns/default/queues/q/deleteMsgs", body={}) == writes
    profile = {"clientProfileName": "p"}
    assert await desk.code("POST", f"{VPN}/clientProfiles", body=profile) == makes_profiles
    assert await desk.code("GET", f"{VPN}/clientProfiles", "default") == reads
    assert await desk.code("PATCH", VPN, body={"authenticationBasicType": "none"}) == makes_profiles
    seen = [vpn["msgVpnName"] for vpn in await desk.get("config/msgVpns")]
    assert seen == ([] if reads else ["default"])
    assert [vpn["msgVpnName"] for vpn in await desk.get("monitor/msgVpns")] == seen


async def test_about_tells_the_version_and_ones_own_rights(desk):
    assert (await desk.get("config/about/api"))["sempVersion"]
    desk.username = "operator"
    for api in ("config", "monitor", "action"):
        user = await desk.get(f"{api}/about/user")
        assert (user["username"], user["globalAccessLevel"]) == ("operator", "none")
        vpns = await desk.get(f"{api}/about/user/msgVpns")
        assert vpns == [{"msgVpnName": "default", "accessLevel": "read-write"}]
        assert await desk.get(f"{api}/about/user/msgVpns", "default") == vpns[0]
        assert await desk.code("GET", f"{api}/about/user/msgVpns", "other") == 6
        assert await desk.code("GET", f"{api}/about/nonsense") == 27
    links = (await desk.ask("GET", "config/about"))["links"]
    assert links["userUri"] == "http://broker/SEMP/v2/config/about/user"
