"""Names of a group that a broker does not take: refused when the settings are read, with the true bound."""

import re
from contextlib import nullcontext

import pytest

from lbg_runtime.config.broker_names import (
    LARGEST_CLIENT_NAME_BYTES,
    check_client_name,
    check_made_queues,
    conductor_name,
)
from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.errors import ConfigError

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 100, "queue_count": 11}


def _parse(**facts):
    return parse_settings({"group": GROUP | facts}, "config.yaml", {}).group


def _problem(**facts):
    with pytest.raises(ConfigError) as caught:
        _parse(**facts)
    return str(caught.value)


@pytest.mark.parametrize("letter", ["\0", "\n", "\x7f", "\u2028"])
def test_characters_that_cannot_be_printed_are_refused(letter):
    expected = "expected printable characters"
    text = f"a{letter}b"
    assert _problem(name=text) == f"config.yaml: group.name: {text!r}; {expected}"
    assert _problem(hash_prefix=text) == f"config.yaml: group.hash_prefix: {text!r}; {expected}"


@pytest.mark.parametrize("letter", ["\u2028", "\u200b", "\xa0"])
@pytest.mark.parametrize("path", ["group.control_topic", "ops.journal.republish_topic"])
def test_a_topic_on_which_members_talk_can_be_printed(path, letter):
    """Only the broker refused it, when the group was made for which somebody had copied it from a document."""
    section, *inner, name = path.split(".")
    value = {name: f"a{letter}b"}
    sections = {"group": GROUP, section: GROUP | value if section == "group" else {inner[0]: value}}
    with pytest.raises(ConfigError) as caught:
        parse_settings(sections, "config.yaml", {})
    assert str(caught.value) == f"config.yaml: {path}: {f'a{letter}b'!r}; expected printable characters"


@pytest.mark.parametrize("facts", [{}, {"control_topic": "talk"}])
def test_notes_are_told_elsewhere_than_where_members_talk(facts):
    """Every member read the note of every message, as a word of another member that it could not read."""
    topic = facts.get("control_topic", "lbg-control/orders")

    def parse(told):
        return parse_settings({"group": GROUP | facts, "ops": {"journal": {"republish_topic": told}}}, "c", {})

    with pytest.raises(ConfigError) as caught:
        parse(topic)
    expected = "another topic than the one on which members talk to each other"
    assert str(caught.value) == f"c: ops.journal.republish_topic: {topic}; expected {expected}"
    assert parse(f"{topic}/notes").ops.journal.republish_topic == f"{topic}/notes"


@pytest.mark.parametrize("name", ["/orders", "orders/", "a//b"])
def test_a_queue_name_has_no_empty_level(name):
    expected = "levels that are not empty, as a broker asks of queue names"
    assert _problem(name=name) == f"config.yaml: group.name: {name!r}; expected {expected}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two words", "no spaces, as `lbg group` makes a JNDI name of it"),
        ("#system", "a first character other than #, which is reserved by the broker"),
    ],
)
def test_a_name_that_lbg_group_or_the_broker_refuses_is_refused_to_members_too(name, expected):
    assert _problem(name=name) == f"config.yaml: group.name: {name!r}; expected {expected}"


@pytest.mark.parametrize("topic", ["control/*", "control/>"])
def test_members_talk_on_one_topic(topic):
    assert _problem(control_topic=topic) == (
        f"config.yaml: group.control_topic: {topic!r}; expected a topic without wildcards"
    )


RESERVED = "a first character other than # and !, which are reserved by the broker"


@pytest.mark.parametrize("text", ["#share", "#noexport", "#P2P", "!h", "#"])
def test_what_a_broker_takes_for_something_else_is_no_prefix_and_no_topic(text):
    assert _problem(hash_prefix=text) == f"config.yaml: group.hash_prefix: {text!r}; expected {RESERVED}"
    topic = f"{text}/orders/x"
    assert _problem(control_topic=topic) == f"config.yaml: group.control_topic: {topic!r}; expected {RESERVED}"


@pytest.mark.parametrize("topic", ["/", "a//b", "/a", "lbg-control/orders/"])
def test_a_control_topic_has_no_empty_level(topic):
    assert _problem(control_topic=topic) == (
        f"config.yaml: group.control_topic: {topic!r}; expected levels that are not empty"
    )


# What is below a topic counts too: records of a re-striping lie below the control topic.
@pytest.mark.parametrize("topic", ["h/0/x", "h/99/x/y", "h/0"])
def test_no_word_of_the_groups_own_is_for_its_queues(topic):
    expected = "a topic outside of h/<shard>/, which the group's queues take"
    assert _problem(control_topic=topic) == f"config.yaml: group.control_topic: {topic!r}; expected {expected}"
    with pytest.raises(ConfigError) as caught:
        parse_settings({"group": GROUP, "ops": {"journal": {"republish_topic": topic}}}, "config.yaml", {})
    assert str(caught.value) == f"config.yaml: ops.journal.republish_topic: {topic!r}; expected {expected}"


@pytest.mark.parametrize("topic", ["h", "h/100/x", "h/00/x", "h/x/0", "x/h/0", "lbg-control/h"])
def test_other_topics_near_the_hash_prefix_are_taken(topic):
    assert _parse(control_topic=topic).control_topic_name == topic


def test_there_are_as_many_shards_as_can_be_subscribed_to():
    assert _parse(hash_count=100_000).hash_count == 100_000
    assert _problem(hash_count=10**20) == f"config.yaml: group.hash_count: {10**20}; expected at most 100000"


def test_all_that_is_wrong_with_the_numbers_and_names_of_a_group_is_told_at_once():
    """Whoever had mended one was told of the next."""
    told = _problem(name="a//b", hash_prefix="h/x", hash_count=100_001, queue_count=0, control_topic="")
    wheres = [line.removeprefix("config.yaml: group.").partition(":")[0] for line in told.splitlines()]
    assert wheres == ["name", "hash_prefix", "hash_count", "queue_count", "control_topic"]


def test_a_name_is_as_long_as_its_queues_may_be_named():
    # 200 characters with "/10".
    assert _parse(name="n" * 197).shape().queue_name(10) == "n" * 197 + "/10"
    assert _problem(name="n" * 198) == (
        "config.yaml: group.name: 198 characters; expected at most 197, as the names of its queues have at most 200"
    )
    # And not by a topic that nobody has named.
    assert "expected at most 197" in _problem(name="n" * 300)
    assert _parse(name="n" * 198, queue_count=10).shape().queue_count == 10


def test_queues_that_a_failure_policy_needs_are_named_after_the_group_too():
    check_made_queues("n" * 187, [f"lbg-parked/{'n' * 187}/7"])
    for name, found, expected in (
        ("n" * 188, "188 characters", "at most 187, as the names of its queues have at most 200"),
        ("ü" * 119, "238 bytes", "at most 237, as the client takes 250 for the name of a queue"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_made_queues(name, ["lbg-errors/short", f"lbg-parked/{name}/7"])
        assert str(caught.value) == f"group.name: {found}; expected {expected}, such as lbg-parked/<name>/7"


@pytest.mark.parametrize("setting", ["error_queue", "dead_message_queue"])
def test_the_name_of_a_queue_for_failed_messages_is_one_that_a_broker_takes(setting):
    """Only the broker refused it, as the member began, or when the first message had failed for good."""

    def parse(name):
        return parse_settings({"group": GROUP, "failure": {setting: name}}, "config.yaml", {})

    for name in ("dead", "dead letters/1", "#DEAD_MSG_QUEUE", "n" * 200, "ü" * 120):
        assert getattr(parse(name), setting) == name
    for name, expected in (
        ("#dead", "a first character other than #, which is reserved by the broker"),
        ("dead/*", "a queue name without any of * > ? ' < & ;"),
        ("dead\u2028", "printable characters"),
        ("a//b", "levels that are not empty, as a broker asks of queue names"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse(name)
        assert str(caught.value) == f"config.yaml: failure.{setting}: {name!r}; expected {expected}"
    for name, told in (
        ("n" * 201, "201 characters; expected at most 200"),
        ("ü" * 126, "252 bytes; expected at most 250, which the client takes for the name of a queue"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse(name)
        assert str(caught.value) == f"config.yaml: failure.{setting}: {told}"


@pytest.mark.parametrize("setting", ["error_queue", "dead_message_queue"])
def test_failed_messages_do_not_come_back_into_the_group(setting):
    """Each came to the members again, who had no handler for the name of a queue, and its key waited for ever."""
    with pytest.raises(ConfigError) as caught:
        parse_settings({"group": GROUP, "failure": {setting: "orders/10"}}, "c", {})
    assert str(caught.value) == f"c: failure.{setting}: orders/10; expected a queue that is none of the group's own"
    for name in ("orders/11", "orders/010", "orders", "others/1"):
        parse_settings({"group": GROUP, "failure": {setting: name}}, "c", {})


def test_a_dead_message_queue_has_a_name_that_a_topic_has_room_for():
    """Messages are published to it by its name: with another one, none could be moved there."""
    for name in ("ü" * 121, "ü" * 125):
        assert parse_settings({"group": GROUP, "failure": {"error_queue": name}}, "c", {}).error_queue == name
        with pytest.raises(ConfigError) as caught:
            parse_settings({"group": GROUP, "failure": {"dead_message_queue": name}}, "c", {})
        told = f"{2 * len(name)} bytes; expected at most 241"
        assert str(caught.value) == f"c: failure.dead_message_queue: {told}"


def test_the_client_takes_names_of_queues_by_their_bytes():
    """A member with its own control topic began, and no queue could be bound."""
    # 250 bytes with "/1".
    name = "ü" * 124
    assert _parse(name=name, control_topic="c", queue_count=10).shape().queue_name(1) == f"{name}/1"
    assert _problem(name=name, control_topic="c") == (
        "config.yaml: group.name: 248 bytes; expected at most 247, as the client takes 250 for the name of a queue"
    )


@pytest.mark.parametrize(
    ("group", "member", "where"), [("n" * 150, "m", "group.name"), ("orders", "m" * 200, "membership.id")]
)
def test_a_client_name_has_room_for_as_much_as_is_said(monkeypatch, group, member, where):
    monkeypatch.setattr("socket.gethostname", lambda: "host-1")
    with pytest.raises(ConfigError) as caught:
        check_client_name(group, member, None)
    assert caught.value.where == where
    room = int(re.match(r"at most (\d+),", caught.value.expected)[1])
    check_client_name(group, member, "given")
    for length in (room, room + 1):
        names = ("n" * length, member) if where == "group.name" else (group, "m" * length)
        with nullcontext() if length == room else pytest.raises(ConfigError):
            check_client_name(*names, None)


def test_a_topic_is_measured_in_bytes():
    # 250 bytes with "/99/>".
    assert _parse(hash_prefix="h" * 245).hash_prefix == "h" * 245
    assert _problem(hash_prefix="h" * 246) == (
        f"config.yaml: group.hash_prefix: 251 bytes in {'h' * 246}/99/>; expected at most 250"
    )
    # 12 bytes of "lbg-control/".
    assert _parse(name="ü" * 119).control_topic_name == f"lbg-control/{'ü' * 119}"
    assert _problem(name="ü" * 120) == (
        f"config.yaml: group.control_topic: 252 bytes in lbg-control/{'ü' * 120}; expected at most 250"
    )
    assert _parse(name="ü" * 120, control_topic="c").control_topic_name == "c"
    with pytest.raises(ConfigError) as caught:
        parse_settings({"group": GROUP, "ops": {"journal": {"republish_topic": "ü" * 126}}}, "c", {})
    assert str(caught.value) == f"c: ops.journal.republish_topic: 252 bytes in {'ü' * 126}; expected at most 250"


def test_whoever_re_stripes_a_group_has_a_client_name_that_a_broker_takes_and_that_is_the_groups_alone():
    """That of a group with a long name was refused, and the group could not be re-striped."""
    assert conductor_name("orders") == "lbg-restriper-orders"
    assert conductor_name("n" * 145) == f"lbg-restriper-{'n' * 145}"
    long = ["n" * 146, "n" * 147, "ü" * 73, "ü" * 119]
    names = {conductor_name(name) for name in long}
    assert len(names) == len(long)
    assert all(len(name) <= LARGEST_CLIENT_NAME_BYTES for name in names)
    assert names == {conductor_name(name) for name in long}
