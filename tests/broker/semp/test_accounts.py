import pytest

from lbg_runtime.broker.engine.effects import ClientEnded, Published
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName

VPN = "config/msgVpns/default"
USERS, PROFILES, ACLS = f"{VPN}/clientUsernames", f"{VPN}/clientProfiles", f"{VPN}/aclProfiles"
OPEN_ACL = {
    "clientConnectDefaultAction": "allow",
    "publishTopicDefaultAction": "allow",
    "subscribeTopicDefaultAction": "allow",
}


def log_in(desk, username, password="", name="ann"):
    try:
        return desk.engine.connect("default", username, password, name, "127.0.0.1")[0]
    except BrokerRefusal as refusal:
        return str(refusal)


def ended(desk):
    return [effect.client for effect in desk.effects if isinstance(effect, ClientEnded)]


async def test_a_vpn_has_default_objects_that_let_everybody_do_everything(desk):
    for path in (USERS, PROFILES, ACLS):
        assert [each[f"{name_of(path)}"] for each in await desk.get(path)] == ["default"]
        assert await desk.code("DELETE", path, "default") == 89
    assert (await desk.get(USERS, "default"))["enabled"]
    client = log_in(desk, "anybody")
    desk.engine.open_publisher(client, "")
    desk.engine.provision(client, QueueName("q"), QueueSettings())


def name_of(path):
    return {USERS: "clientUsername", PROFILES: "clientProfileName", ACLS: "aclProfileName"}[path]


async def test_a_username_starts_disabled_and_is_let_in_when_enabled(desk):
    await desk.post(USERS, clientUsername="staff", password="secret")
    assert log_in(desk, "staff", "secret") == "403 Client Username Is Shutdown"
    await desk.ask("PATCH", USERS, "staff", body={"enabled": True})
    assert log_in(desk, "staff", "wrong") == "401 Unauthorized"
    assert isinstance(log_in(desk, "staff", "secret"), int)


async def test_a_password_can_be_set_and_never_read(desk):
    made = await desk.post(USERS, clientUsername="staff", password="secret", enabled=True)
    assert "password" not in made
    assert "password" not in await desk.get(USERS, "staff")
    assert await desk.code("GET", USERS, query="where=password==secret") == 11
    unsendable = await desk.ask("POST", USERS, body={"clientUsername": "x", "password": "secret\t"})
    assert unsendable["meta"]["error"]["description"] == "password is not valid; expected printable characters only"
    answer = await desk.ask("POST", USERS, body={"clientUsername": "x", "password": "s" * 129})
    assert "sss" not in str(answer)
    # Who replaces the rest does not know it.
    await desk.ask("PUT", USERS, "staff", body={"enabled": True})
    assert isinstance(log_in(desk, "staff", "secret"), int)
    assert log_in(desk, "staff", "other") == "401 Unauthorized"


async def test_a_backup_without_its_passwords_is_not_taken_for_whole(desk):
    await desk.post(USERS, clientUsername="staff", password="secret", enabled=True)
    opaque = "opaquePassword=of-the-backup"
    assert await desk.code("GET", USERS, query=opaque) == 14
    assert await desk.code("GET", USERS, "staff", query=opaque) == 14
    assert await desk.code("POST", USERS, query=opaque, body={"clientUsername": "x", "password": "3f9a=="}) == 14
    assert await desk.code("PATCH", USERS, "staff", query=opaque, body={"password": "3f9a=="}) == 14
    assert isinstance(log_in(desk, "staff", "secret"), int)


async def test_disabling_a_username_ends_its_clients(desk):
    await desk.post(USERS, clientUsername="staff", enabled=True)
    ann, _ = log_in(desk, "staff"), log_in(desk, "anybody", name="bob")
    await desk.ask("PATCH", USERS, "staff", body={"enabled": False})
    assert ended(desk) == [ann]
    assert log_in(desk, "staff") == "403 Client Username Is Shutdown"


async def test_deleting_a_username_ends_its_clients(desk):
    await desk.post(USERS, clientUsername="staff", enabled=True)
    ann = log_in(desk, "staff")
    await desk.ask("DELETE", USERS, "staff")
    assert ended(desk) == [ann]
    assert await desk.get(USERS, query="select=clientUsername") == [{"clientUsername": "default"}]


async def test_changing_the_profiles_of_a_username_ends_its_clients_and_lets_them_back(desk):
    await desk.post(ACLS, aclProfileName="open", **OPEN_ACL)
    await desk.post(USERS, clientUsername="staff", enabled=True)
    ann = log_in(desk, "staff")
    await desk.ask("PATCH", USERS, "staff", body={"subscriptionManagerEnabled": True})
    assert ended(desk) == []
    await desk.ask("PATCH", USERS, "staff", body={"aclProfileName": "open"})
    assert ended(desk) == [ann]
    assert isinstance(log_in(desk, "staff"), int)


async def test_disabling_the_default_username_closes_the_vpn_to_unknown_ones(desk):
    await desk.post(USERS, clientUsername="staff", enabled=True)
    await desk.ask("PATCH", USERS, "default", body={"enabled": False})
    assert log_in(desk, "anybody") == "403 Client Username Is Shutdown"
    assert isinstance(log_in(desk, "staff"), int)


async def test_internal_authentication_closes_the_vpn_to_unknown_usernames(desk):
    await desk.ask("PATCH", VPN, body={"authenticationBasicType": "internal"})
    assert log_in(desk, "anybody") == "401 Unauthorized"
    assert isinstance(log_in(desk, "default"), int)


async def test_usernames_that_the_engine_has_from_elsewhere_are_seen(desk):
    desk.engine.add_user("default", "test", "secret")
    assert (await desk.get(VPN))["authenticationBasicType"] == "internal"
    assert [each["clientUsername"] for each in await desk.get(USERS)] == ["default", "test"]
    await desk.ask("PATCH", USERS, "test", body={"subscriptionManagerEnabled": True})
    assert isinstance(log_in(desk, "test", "secret"), int)


@pytest.mark.parametrize("reference", ["aclProfileName", "clientProfileName"])
async def test_a_username_needs_profiles_that_exist(desk, reference):
    assert await desk.code("POST", USERS, body={"clientUsername": "staff", reference: "missing"}) == 6
    await desk.post(USERS, clientUsername="staff")
    assert await desk.code("PATCH", USERS, "staff", body={reference: "missing"}) == 6
    assert (await desk.get(USERS, "staff"))[reference] == "default"


@pytest.mark.parametrize(("path", "code"), [(ACLS, 89), (PROFILES, 490)])
async def test_a_profile_that_an_enabled_username_has_is_not_deleted(desk, path, code):
    name = name_of(path)
    await desk.post(path, **{name: "own"})
    await desk.post(USERS, clientUsername="staff", enabled=True, **{name: "own"})
    assert await desk.code("DELETE", path, "own") == code
    await desk.ask("PATCH", USERS, "staff", body={"enabled": False})
    assert await desk.code("DELETE", path, "own") == 0
    # It cannot be enabled again without it.
    assert await desk.code("PATCH", USERS, "staff", body={"enabled": True}) == 6


async def test_a_client_profile_says_what_its_clients_may_do(desk):
    await desk.post(PROFILES, clientProfileName="own")
    await desk.post(USERS, clientUsername="staff", enabled=True, clientProfileName="own")
    client = log_in(desk, "staff")
    with pytest.raises(BrokerRefusal):
        desk.engine.open_publisher(client, "")
    await desk.ask("PATCH", PROFILES, "own", body={"allowGuaranteedMsgSendEnabled": True})
    desk.engine.open_publisher(client, "")
    assert desk.engine.profile_of(client).may_receive is False


@pytest.mark.parametrize("name", ["", "x" * 33, "a b", "a/b", "ä"])
async def test_client_profile_names_are_short_words(desk, name):
    assert await desk.code("POST", PROFILES, body={"clientProfileName": name}) == 11


async def test_a_client_profile_keeps_what_has_no_effect_here(desk):
    # As tools send it that know every attribute.
    told = {
        "allowBridgeConnectionsEnabled": True,
        "elidingDelay": 60_000,
        "eventEgressFlowCountThreshold": {"clearValue": 1, "setValue": 2},
        "queueGuaranteed1MinMsgBurst": 100,
        "tcpMaxSegmentSize": 256,
    }
    made = await desk.post(PROFILES, clientProfileName="all", **told)
    assert made.items() >= told.items()
    assert made["queueDirect3MinMsgBurst"] == 4
    assert await desk.code("PATCH", PROFILES, "all", body={"tcpKeepaliveCount": 6}) == 11
    assert await desk.get(PROFILES, "all") == made


async def test_topics_of_an_acl_profile_and_its_exceptions(desk):
    await desk.post(ACLS, aclProfileName="own", clientConnectDefaultAction="allow")
    await desk.post(USERS, clientUsername="staff", enabled=True, aclProfileName="own")
    client = log_in(desk, "staff")
    flow = desk.engine.open_publisher(client, "").flow

    def publish(number):
        try:
            desk.engine.publish(flow, number, Published("a/b", 1, 1))
        except BrokerRefusal as refusal:
            return str(refusal)
        return "accepted"

    assert publish(1) == "403 Publish ACL Denied"
    exceptions = (ACLS, "own", "publishTopicExceptions")
    await desk.post(*exceptions, publishTopicExceptionSyntax="mqtt", publishTopicException="a/#")
    assert publish(2) == "403 Publish ACL Denied"
    await desk.post(*exceptions, publishTopicExceptionSyntax="smf", publishTopicException="a/>")
    assert publish(3) == "accepted"
    assert (await desk.get(*exceptions, "smf,a/>"))["publishTopicException"] == "a/>"
    assert await desk.code("POST", *exceptions, body={"publishTopicException": "x"}) == 228
    assert await desk.code("GET", *exceptions, "smf") == 27
    await desk.ask("DELETE", *exceptions, "smf,a/>")
    assert publish(4) == "403 Publish ACL Denied"

    with pytest.raises(BrokerRefusal, match="Subscription ACL Denied"):
        desk.engine.subscribe(client, "a,b/>")
    await desk.post(
        ACLS, "own", "subscribeTopicExceptions", subscribeTopicExceptionSyntax="smf", subscribeTopicException="a,b/>"
    )
    desk.engine.subscribe(client, "a,b/>")


@pytest.mark.parametrize("encoded", ["smf,a%2Cb%2F%3E", "smf%2Ca%2Cb%2F%3E", "smf,a,b%2F%3E"])
async def test_a_pair_is_found_however_its_commas_are_encoded(desk, encoded):
    await desk.post(ACLS, aclProfileName="own")
    path = f"{ACLS}/own/publishTopicExceptions"
    await desk.post(path, publishTopicExceptionSyntax="smf", publishTopicException="a,b/>")
    assert (await desk.get(f"{path}/{encoded}"))["publishTopicException"] == "a,b/>"


async def test_addresses_of_an_acl_profile_and_its_exceptions(desk):
    await desk.post(ACLS, aclProfileName="own")
    await desk.post(USERS, clientUsername="staff", enabled=True, aclProfileName="own")
    assert log_in(desk, "staff") == "403 Forbidden"
    path = (ACLS, "own", "clientConnectExceptions")
    assert await desk.code("POST", *path, body={"clientConnectExceptionAddress": "somewhere"}) == 11
    await desk.post(*path, clientConnectExceptionAddress="127.0.0.0/8")
    assert isinstance(log_in(desk, "staff"), int)
    await desk.ask("DELETE", *path, "127.0.0.0/8")
    assert log_in(desk, "staff", name="bob") == "403 Forbidden"


async def test_exceptions_go_with_their_profile(desk):
    for _ in range(2):
        await desk.post(ACLS, aclProfileName="own")
        path = (ACLS, "own", "publishTopicExceptions")
        assert await desk.get(*path) == []
        await desk.post(*path, publishTopicExceptionSyntax="smf", publishTopicException="a")
        assert await desk.code("PATCH", *path, "smf,a", body={}) == 14
        await desk.ask("DELETE", ACLS, "own")


async def test_vpns_have_accounts_of_their_own(desk):
    desk.engine.add_vpn("other")
    await desk.post(USERS, clientUsername="staff")
    others = await desk.get("config/msgVpns/other/clientUsernames")
    assert [each["clientUsername"] for each in others] == ["default"]


async def test_ways_to_log_in_are_switched_for_a_vpn(desk):
    vpn = "config/msgVpns/default"
    assert (await desk.get(vpn))["authenticationBasicEnabled"] is True
    assert (await desk.get(vpn))["authenticationClientCertEnabled"] is False
    changes = {"authenticationBasicEnabled": False, "authenticationClientCertEnabled": True}
    await desk.ask("PATCH", vpn, body=changes)
    accounts = desk.engine.administration.accounts("default")
    assert (accounts.takes_passwords, accounts.takes_certificates) == (False, True)
    with pytest.raises(BrokerRefusal, match="Basic Authentication Is Shutdown"):
        desk.client("ann")
