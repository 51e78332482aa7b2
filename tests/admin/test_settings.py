"""What settings say that a group is to be."""

from dataclasses import replace

import pytest

from lbg_runtime.admin.roles import Role
from lbg_runtime.admin.settings import spec_of
from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.errors import BrokerRefusal, ConfigError
from lbg_runtime.model.failure import Then
from tests.admin.group_steps import PARKING, SPEC, create, log_in


def test_settings_say_what_a_group_is_to_be():
    sections = {
        "group": {
            "name": "orders",
            "hash_prefix": "orders-hash",
            "hash_count": 5,
            "queue_count": 2,
            "key": "topic",
            "provision": "create_missing",
        },
        "connection": {"username": "members", "password": "secret"},
        "semp": {"url": "http://broker", "queue_spool_mb": 100},
    }
    assert spec_of(parse_settings(sections, "test")) == replace(SPEC, creates_queues=True, binds=3)
    for rebind, binds in (({"standbys": 0}, 1), ({"standbys": "all"}, 1)):
        assert spec_of(parse_settings({**sections, "rebind": rebind}, "test")).binds == binds
    cycle = {"rebind": {"mode": "cycle"}, "membership": {"mode": "static", "index": 0, "count": 2}}
    assert spec_of(parse_settings({**sections, **cycle}, "test")).binds == 1, "nobody knows how many members bind"
    for failure, aside in (
        ({"then": "park"}, PARKING),
        ({"then": "error_queue"}, ("lbg-errors/orders",)),
        ({"then": "error_queue", "error_queue": "others"}, ()),
        ({"then": "dmq"}, ()),
    ):
        assert spec_of(parse_settings({**sections, "failure": failure}, "test")).aside == aside
    settings = parse_settings({**sections, "failure": {"then": "dmq", "attempts": 1}}, "test")
    spec = spec_of(settings, (Then.PARK, Then.ERROR_QUEUE, Then.STOP))
    assert (spec.aside, spec.borrowed) == ((*PARKING, "lbg-errors/orders"), ("#DEAD_MSG_QUEUE",))
    settings = parse_settings({**sections, "failure": {"error_queue": "others"}}, "test")
    spec = spec_of(settings, (Then.ERROR_QUEUE, Then.DMQ))
    assert (spec.aside, spec.borrowed) == ((), ("others", "#DEAD_MSG_QUEUE"))
    assert spec_of(settings, (Then.PARK,)).borrowed == (), "no handler moves anything there"
    assert [spec_of(settings, ends).is_aside_whole for ends in (None, (), (Then.STOP,))] == [False, True, True]
    del sections["semp"]
    with pytest.raises(ConfigError, match="semp"):
        spec_of(parse_settings(sections, "test"))


@pytest.mark.parametrize(("end", "length"), [(Then.PARK, 187), (Then.ERROR_QUEUE, 189)])
def test_a_group_whose_other_queues_cannot_have_their_names_is_refused_before_anything_is_made(end, length):
    """The broker refused them when the queues of the group were there."""

    def spec(name):
        sections = {
            "group": {"name": name, "hash_prefix": "h", "hash_count": 5, "queue_count": 2, "control_topic": "c"},
            "semp": {"url": "http://broker"},
        }
        return spec_of(parse_settings(sections, "test"), (end,))

    assert len(spec("n" * length).aside[-1]) == 200
    with pytest.raises(ConfigError, match=rf"group.name: {length + 1} characters; expected at most {length}, as"):
        spec("n" * (length + 1))


def test_a_rule_for_keys_that_the_broker_would_not_store_is_refused_by_its_setting():
    sections = {
        "group": {"name": "orders", "hash_prefix": "h", "hash_count": 5, "queue_count": 2, "key": "property:a\u200bb"},
        "semp": {"url": "http://broker"},
    }
    with pytest.raises(ConfigError, match=r"^group.key: 'property:a\\u200bb'; expected printable characters, as"):
        spec_of(parse_settings(sections, "test"))


BY_CERTIFICATE = {"client_certificate": {"certificate": "/run/client.pem"}}
BY_TOKEN = {"oauth": {"token_file": "/run/token"}}


@pytest.mark.parametrize("proof", [BY_CERTIFICATE, BY_TOKEN])
async def test_nobody_knows_the_password_of_an_account_that_needs_none(broker, client, proof):
    """Else its name would be enough wherever the broker takes passwords, too."""
    secured = {"transport": "solace", "host": "tcps://b:1", "tls": {"trust_store": "/trusted"}, "username": "members"}
    sections = {
        "group": {"name": "orders", "hash_prefix": "orders-hash", "hash_count": 5, "queue_count": 2},
        "connection": {**secured, **proof},
        "semp": {
            "url": "http://broker",
            "publisher": {"username": "publishers"},
            "conductor": {"username": "conductors", "password": "given"},
        },
    }
    spec = spec_of(parse_settings(sections, "test"))
    passwords = {role: login.password for role, login in spec.logins.items()}
    assert passwords.pop(Role.CONDUCTOR) == "given"
    assert len(set(passwords.values())) == 2
    assert all(len(password) >= 32 for password in passwords.values())
    admin = await create(client, spec)
    # A broker with accounts asks for their passwords.
    await client.update(("msgVpns", "default"), {"authenticationBasicType": "internal"})
    for name in ("members", "publishers"):
        with pytest.raises(BrokerRefusal):
            log_in(broker, name, "")
    log_in(broker, "conductors", "given")
    assert (await admin.plan(spec_of(parse_settings(sections, "test")))).is_clean, "it is drawn, and not compared"


def test_accounts_that_log_in_by_password_have_the_one_of_the_settings():
    sections = {
        "group": {"name": "orders", "hash_prefix": "orders-hash", "hash_count": 5, "queue_count": 2},
        "connection": {"username": "members"},
        "semp": {"url": "http://broker", "publisher": {"username": "publishers", "password": "p"}},
    }
    spec = spec_of(parse_settings(sections, "test"))
    assert {role: login.password for role, login in spec.logins.items()} == {Role.MEMBER: "", Role.PUBLISHER: "p"}


def test_a_partitioned_queue_is_not_this_groups_to_make() -> None:
    group = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 4, "backend": "partitioned"}
    given = {"group": group, "dispatch": {"missing_key": "error"}, "semp": {"url": "http://broker"}}
    with pytest.raises(ConfigError, match="group\\.backend: partitioned"):
        spec_of(parse_settings(given, "test"))
