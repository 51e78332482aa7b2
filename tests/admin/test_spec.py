import json
from dataclasses import replace

import pytest

from lbg_runtime.admin.roles import Login, Role, Topics
from lbg_runtime.admin.spec import GroupSpec, profile_name_of, read_marker
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName


def make_spec(name="orders", *, prefix="orders-hash", username="members", profile=None, key="shard", others=None):
    return GroupSpec(
        shape=GroupShape(GroupName(name), prefix, 96, 8),
        hash_function=HashFunction.CRC32,
        key=key,
        accounts={Role.MEMBER: Login(username, "secret"), **(others or {})},
        queue_spool_mb=5_000,
        client_profile=profile,
        creates_queues=False,
    )


def test_what_is_stored_says_everything_but_the_password():
    spec = make_spec(profile="existing")
    assert "secret" not in spec.marker()
    assert "secret" not in repr(spec)
    stored = read_marker(spec.shape.name, spec.marker())
    assert stored is not None
    assert stored.to_spec().marker() == spec.marker()
    assert stored.as_object()["name"] == "orders"
    assert read_marker(make_spec().shape.name, make_spec().marker()).client_profile is None


def test_whoever_deletes_a_group_knows_all_its_accounts_from_what_is_stored():
    others = {Role.PUBLISHER: Login("p", "1"), Role.CONDUCTOR: Login("c", "2")}
    spec = make_spec(profile="existing", others=others)
    stored = read_marker(spec.shape.name, spec.marker())
    assert stored is not None
    assert stored.usernames == {Role.MEMBER: "members", Role.PUBLISHER: "p", Role.CONDUCTOR: "c"}
    again = stored.to_spec()
    assert {role: login.username for role, login in again.logins.items()} == {
        Role.MEMBER: "members",
        Role.PUBLISHER: "p",
        Role.CONDUCTOR: "c",
    }
    assert (again.client_profile, again.creates_queues) == ("existing", False)


@pytest.mark.parametrize(
    ("usernames", "where"),
    [
        ({Role.PUBLISHER: "members"}, "connection.username"),
        ({Role.CONDUCTOR: "members"}, "connection.username"),
        ({Role.PUBLISHER: "p", Role.CONDUCTOR: "p"}, "semp.conductor.username"),
        ({Role.PUBLISHER: "default"}, "semp.publisher.username"),
        ({Role.MEMBER: "default", Role.PUBLISHER: "p"}, "connection.username"),
        ({Role.PUBLISHER: "p?"}, "semp.publisher.username"),
    ],
)
def test_no_two_accounts_of_a_group_are_one_and_none_is_everybodys(usernames, where):
    """What one may do, whoever has the other could do as well."""
    with pytest.raises(ConfigError) as refusal:
        make_spec(others={role: Login(username, "x") for role, username in usernames.items()})
    assert refusal.value.where == where


def test_what_is_stored_fits_200_characters_or_is_refused_before_anything_is_done():
    room = 200 - len(make_spec(username="").marker())
    assert len(make_spec(username="ü" + "u" * (room - 1)).marker()) == 200
    with pytest.raises(UserError, match="201 characters"):
        make_spec(username="u" * (room + 1))


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        "{}",
        "[" * 10_000,
        '{"HP":"h","HC":8,"QC":2,"QS":1,"CU":"u","HF":"crc32","KY":"shard"}',
        '{"V":2,"HP":"h","HC":8,"QC":2,"QS":1,"CU":"u","HF":"crc32","KY":"shard"}',
        '{"V":1,"HP":"h","HC":true,"QC":2,"QS":1,"CU":"u","HF":"crc32","KY":"shard"}',
        '{"V":1,"HP":"h","HC":"8","QC":2,"QS":1,"CU":"u","HF":"crc32","KY":"shard"}',
        '{"V":1,"HP":"h","HC":8,"QC":2,"QS":1.5,"CU":"u","HF":"crc32","KY":"shard"}',
        '{"V":1,"HP":"h","HC":8,"QC":2,"QS":1,"CU":7,"HF":"crc32","KY":"shard"}',
        '{"V":1,"HP":"h","HC":8,"QC":2,"QS":1,"CU":"u","HF":"md5","KY":"shard"}',
        '{"V":1,"HP":"h","HC":1,"QC":2,"QS":1,"CU":"u","HF":"crc32","KY":"shard"}',
    ],
)
def test_entries_of_others_are_passed_over(text):
    assert read_marker("orders", text) is None


def test_additions_of_a_later_version_are_passed_over():
    text = json.dumps({**json.loads(make_spec().marker()), "ZZ": 1})
    assert read_marker("orders", text) is not None


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("orders", "lbg-orders"),
        ("a/b", "lbg-a-b-61a18ce7"),
        ("a-b", "lbg-a-b"),
        ("x" * 28, "lbg-" + "x" * 28),
        ("x" * 29, "lbg-xxxxxxxxxxxxxxxxxxx-12eb8051"),
    ],
)
def test_profiles_have_a_short_name_of_the_groups_own(group, name):
    found = profile_name_of(group)
    assert len(found) <= 32
    assert found == name or found.rpartition("-")[0] == name.rpartition("-")[0]


def test_names_that_differ_only_in_what_profiles_cannot_say_get_different_profiles():
    assert len({profile_name_of(group) for group in ("a/b", "a-b", "a.b", "a:b")}) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "two words"},
        {"name": "#system"},
        {"name": "a//b"},
        {"name": "a/"},
        {"name": "tab\there"},
        {"username": "u*"},
    ],
)
def test_names_that_no_broker_takes_are_refused(settings):
    with pytest.raises(UserError):
        make_spec(**settings)


def test_the_topics_of_a_group_are_measured_in_bytes():
    """Whoever read of one that was too long was not told of which setting it was made."""
    replace(make_spec(), topics=Topics("ä" * 119))
    with pytest.raises(UserError, match=r"^group.control_topic: 251 bytes in ä+/restripe/>; expected at most 250"):
        replace(make_spec(), topics=Topics("ä" * 120))
    for name, told in (("ä" * 119, "251 bytes in lbg-parked/ä+/>"), ("ä" * 120, "251 bytes in lbg-errors/ä+")):
        with pytest.raises(UserError, match=rf"^group.name: {told}; expected at most 250"):
            replace(make_spec(name), topics=Topics("orders/control"))
    # Whoever uses everybody's account has no right of its own to a topic.
    replace(make_spec(name, username="default"), topics=Topics("ä" * 120))


def test_profiles_are_the_groups_own_only_with_an_account_and_each_role_has_another_one():
    spec = make_spec(others={Role.PUBLISHER: Login("p", "")})
    assert (spec.profile_name(Role.MEMBER), spec.client_profile_name()) == ("lbg-orders", "lbg-orders")
    assert spec.profile_name(Role.PUBLISHER) == profile_name_of("orders//publisher")
    assert spec.client_profile_name(Role.PUBLISHER) == spec.profile_name(Role.PUBLISHER)
    assert spec.manages_client_profile
    assert not make_spec(username="default").manages_client_profile
    existing = make_spec(profile="existing")
    assert (existing.manages_client_profile, existing.client_profile_name()) == (False, "existing")
