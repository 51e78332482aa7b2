"""Loading settings: what is right gives values, what is wrong gives a line with place, value and expectation.

More than 400 lines, because most of it is one table of what is wrong.
"""

import inspect
import json
import os
import pathlib
import re
from functools import reduce
from typing import get_args

import pytest
from pydantic import BaseModel

from lbg_runtime.config.connection_settings import TransportKind
from lbg_runtime.config.load import SECRET_KEYS, load_settings, parse_settings, problems_of
from lbg_runtime.config.settings import ClientPathChoice, MembershipMode, MissingKey, Provision, Settings
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.failure import Then
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.keys import KeyOrigin

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 100, "queue_count": 8}


def _parse(environ=None, **sections):
    return parse_settings({"group": GROUP, **sections}, "config.yaml", environ or {})


def _problem(environ=None, **sections):
    with pytest.raises(ConfigError) as caught:
        _parse(environ, **sections)
    assert len(problems_of(caught.value)) == 1, str(caught.value)
    return str(caught.value)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Writes config.yaml into the current directory and returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        path = pathlib.Path("config.yaml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_group_is_all_that_must_be_said():
    settings = _parse()
    assert settings.connection.transport is TransportKind.EMBEDDED
    assert settings.group.hash_function is HashFunction.CRC32
    assert settings.group.key.origin is KeyOrigin.PROPERTY
    assert settings.group.provision is Provision.NONE
    assert settings.membership.mode is MembershipMode.DISCOVERED
    assert settings.group.shape().queue_name(7) == "orders/7"


def test_the_file_as_shipped_can_be_loaded():
    settings = load_settings(pathlib.Path(__file__).parents[2] / "config.yaml", {})
    assert settings.handlers == ("handlers.orders",)
    assert settings.group.shape().is_even
    assert settings.connection.transport is TransportKind.EMBEDDED


def test_all_sections_are_read():
    settings = _parse(
        connection={"transport": "solace", "host": "tcps://a:55443, tcps://b:55443", "tls": {"verify": False}},
        group=GROUP | {"hash_function": "java_string", "key": "topic_level:2", "provision": "create_missing"},
        membership={"mode": "ordinal", "count": "4"},
        rebind={"interval": "1.5s", "jitter": 0.5, "drain_timeout": "2m"},
        dispatch={"max_in_flight": 10, "runners": 5},
        failure={"timeout": "1h", "backoff": {"initial": "10ms", "maximum": "1s"}},
        handlers=["shop.orders", "shop.bills"],
        ops={"journal": {"path": "runs", "republish_topic": "live"}},
    )
    assert settings.connection.host == ("tcps://a:55443", "tcps://b:55443")
    assert settings.rebind.interval_ms == 1_500
    assert settings.rebind.drain_timeout_ms == 120_000
    assert settings.failure.timeout_ms == 3_600_000
    assert settings.failure.backoff.initial_ms == 10
    assert settings.membership.count == 4
    assert settings.handlers == ("shop.orders", "shop.bills")


@pytest.mark.parametrize(("written", "limit_ms"), [("2m", 120_000), ("off", None), (False, None)])
def test_the_watchdog_has_a_limit_or_is_off(written, limit_ms):
    assert _parse().ops.watchdog_ms == 15_000
    assert _parse(ops={"watchdog": written}).ops.watchdog_ms == limit_ms


@pytest.mark.parametrize("written", [True, 15, "never", "99ms", None])
def test_any_other_limit_of_the_watchdog_is_refused(written):
    assert "ops.watchdog" in _problem(ops={"watchdog": written})


def test_what_follows_failures_is_read():
    failure = _parse(
        failure={"attempts": "${TRIES}", "then": "error_queue", "terminal": ["ValueError"], "error_queue": "dead"},
        environ={"TRIES": "5"},
    )
    assert (failure.failure.attempts, failure.failure.then, failure.error_queue) == (5, Then.ERROR_QUEUE, "dead")
    settings = _parse(failure={"attempts": "unlimited"})
    assert (settings.failure.attempts, settings.failure.then) == (None, None)
    assert settings.error_queue == settings.error_topic == "lbg-errors/orders"


def test_the_number_of_standbys_may_be_all():
    assert (_parse().rebind.standbys, _parse(rebind={"standbys": "all"}).rebind.standbys) == (2, None)


def test_hosts_may_be_a_list():
    settings = _parse(connection={"transport": "solace", "host": ["tcp://a:1", "tcp://b:2"]})
    assert settings.connection.host == ("tcp://a:1", "tcp://b:2")
    assert len(_parse(connection={"transport": "solace", "host": ["tcp://a:1"] * 16}).connection.host) == 16


def test_hosts_may_have_addresses_of_ipv6_and_no_port():
    hosts = ("tcp://[::1]:55555", "tcp://[fe80::1]", "tcp://fe80::1", "fe80::99999", "broker", "tcp://broker")
    assert _parse(connection={"transport": "solace", "host": list(hosts)}).connection.host == hosts


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (
            {"group": GROUP | {"hash_count": 4}},
            "config.yaml: group.hash_count: 4 shards for 8 queues; "
            "expected hash count >= queue count, or some queues stay empty",
        ),
        ({"group": GROUP | {"queue_count": 0}}, "config.yaml: group.queue_count: 0; expected at least 1"),
        (
            {"ops": {"journal": {"path": "a\0b"}}},
            r"config.yaml: ops.journal.path: 'a\x00b'; expected a text without control characters",
        ),
        (
            {"semp": {"url": "http://a\0b"}},
            r"config.yaml: semp.url: 'http://a\x00b'; expected an address such as https://broker:943",
        ),
        *(
            (
                {"semp": {"url": f"https://{broker}"}},
                f"config.yaml: semp.url: 'https://{broker}'; expected an address such as https://broker:943",
            )
            for broker in ("broker:99999", "broker:http", "broker:", "::1:943", ":943", "broker?x", "broker#x")
        ),
        ({"group": GROUP | {"hash_count": "many"}}, "config.yaml: group.hash_count: 'many'; expected a whole number"),
        ({"group": GROUP | {"hash_count": True}}, "config.yaml: group.hash_count: True; expected a whole number"),
        ({"group": GROUP | {"hash_count": 1.5}}, "config.yaml: group.hash_count: 1.5; expected a whole number"),
        (
            {"group": GROUP | {"hash_prefix": "a/b"}},
            "config.yaml: group.hash_prefix: 'a/b'; expected one topic level without wildcards",
        ),
        (
            {"group": GROUP | {"hash_function": "md5"}},
            "config.yaml: group.hash_function: 'md5'; expected one of crc32, java_string or modulo",
        ),
        (
            {"group": GROUP | {"key": "header:x"}},
            "config.yaml: group.key: 'header:x'; expected topic, topic_level:NUMBER, property:NAME or json:/POINTER",
        ),
        (
            {"rebind": {"interval": 30}},
            "config.yaml: rebind.interval: 30; expected a duration such as 500ms, 30s or 2m",
        ),
        (
            {"rebind": {"interval": "30 seconds"}},
            "config.yaml: rebind.interval: '30 seconds'; expected a duration such as 500ms, 30s or 2m",
        ),
        (
            {"rebind": {"standbys": "many"}},
            "config.yaml: rebind.standbys: 'many'; expected a whole number",
        ),
        ({"rebind": {"standbys": None}}, "config.yaml: rebind.standbys: nothing; expected a whole number, or all"),
        (
            {"rebind": {"mode": "cycle"}},
            "config.yaml: rebind.mode: cycle; "
            "expected cooperative, or membership.mode static or ordinal: a cycle counts members",
        ),
        (
            {"membership": {"index": 3}},
            "config.yaml: membership.index: 3; expected none with mode: discovered, or mode: static",
        ),
        ({"rebind": {"jitter": 2}}, "config.yaml: rebind.jitter: 2; expected at most 1"),
        ({"dispatch": {"runners": 0}}, "config.yaml: dispatch.runners: 0; expected at least 1"),
        (
            {"failure": {"backoff": {"initial": "1m"}}},
            "config.yaml: failure.backoff.maximum: 30000ms; expected at least failure.backoff.initial, 60000ms",
        ),
        ({"failure": {"attempts": 0}}, "config.yaml: failure.attempts: 0; expected at least 1"),
        (
            {"failure": {"attempts": None}},
            "config.yaml: failure.attempts: nothing; expected a whole number, or unlimited",
        ),
        ({"handlers": "shop"}, "config.yaml: handlers: 'shop'; expected a list"),
        ({"handlers": [""]}, "config.yaml: handlers.0: ''; expected a text that is not empty"),
        ({"membership": None}, "config.yaml: membership: nothing; expected a section with keys"),
        ({"connection": {"host": []}}, "config.yaml: connection.host: a list; expected at least one entry"),
        (
            {"connection": {"host": ["tcp://a", "tcp://b"]}},
            "config.yaml: connection.host: 2 hosts; expected one address to listen on, as transport is embedded",
        ),
        (
            {"connection": {"transport": "solace", "host": ["tcp://a:1"] * 17}},
            "config.yaml: connection.host: 17 hosts; expected at most 16",
        ),
        (
            {"connection": {"transport": "kafka"}},
            "config.yaml: connection.transport: 'kafka'; expected one of embedded or solace",
        ),
        (
            {"connection": {"tls": {"verify": "maybe"}}},
            "config.yaml: connection.tls.verify: 'maybe'; expected true or false",
        ),
    ],
)
def test_a_wrong_value_is_one_line_with_place_value_and_expectation(sections, line):
    assert _problem(**sections) == line


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"rebind": {"interval": "1000h"}}, "rebind.interval: '1000h'; expected at most 168h"),
        ({"rebind": {"interval": "0s"}}, "rebind.interval: '0s'; expected more than 0ms"),
        ({"membership": {"heartbeat": "10ms"}}, "membership.heartbeat: '10ms'; expected at least 50ms"),
        ({"ops": {"watchdog": "99ms"}}, "ops.watchdog: '99ms'; expected at least 100ms"),
        ({"sidecar": {"max_body_kb": 1_000_000}}, "sidecar.max_body_kb: 1000000; expected at most 30720"),
        (
            {"semp": {"url": "http://a", "queue_spool_mb": 7_000_000}},
            "semp.queue_spool_mb: 7000000; expected at most 6000000",
        ),
    ],
)
def test_a_limit_is_said_as_the_value_is_written(sections, line):
    assert _problem(**sections) == f"config.yaml: {line}"


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"membership": {"id": "my member"}}, "membership.id: 'my member'; expected letters, digits and _ . : -"),
        ({"membership": {"id": "m\n"}}, r"membership.id: 'm\n'; expected letters, digits and _ . : -"),
        ({"membership": {"id": "x" * 101}}, f"membership.id: '{'x' * 101}'; expected at most 100 characters"),
        ({"connection": {"host": "a/b"}}, "connection.host.0: 'a/b'; expected an address such as tcp://broker:55555"),
        (
            {"connection": {"transport": "solace", "host": "tcp://a:55555,tcp://b:555555"}},
            "connection.host.1: 'tcp://b:555555'; expected a port up to 65535",
        ),
        (
            {"connection": {"host": "tcp://[::1]:5555a"}},
            "connection.host.0: 'tcp://[::1]:5555a'; expected a port up to 65535",
        ),
        ({"rebind": {"jitter": "much"}}, "rebind.jitter: 'much'; expected a number"),
    ],
)
def test_what_is_expected_is_that_settings_own_form(sections, line):
    assert _problem(**sections) == f"config.yaml: {line}"


def _places(section=Settings, path=()):
    for name, field in section.model_fields.items():
        inner = (*path, field.alias or name)
        yield inner
        kinds = [each for each in _kinds_in(field.annotation) if inspect.isclass(each) and issubclass(each, BaseModel)]
        yield from (place for each in kinds for place in _places(each, inner))


def _kinds_in(annotation):
    yield annotation
    for each in get_args(annotation):
        yield from _kinds_in(each)


@pytest.mark.parametrize("path", list(_places()), ids=".".join)
def test_no_refusal_is_told_in_the_words_of_a_library(path):
    numbers = (1, -1, 1.5, float("nan"), 10**30)
    for value in (True, *numbers, "", "two words", "x" * 1_000, "\0", "9" * 5_000, None, [], [[]], {}):
        document = reduce(lambda below, name: {name: below}, reversed(path), value)
        said = _refusal(document)
        assert not re.search("Input|should|String|unable|instance|decimal", said), said


def _refusal(document):
    try:
        parse_settings(document, "config.yaml", {})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("written", "shown"), [(5, "5"), (None, "nothing"), (["topic"], "a list")])
def test_a_rule_for_keys_that_is_no_text_is_refused_like_one_that_is_wrong(written, shown):
    wrong = _problem(group=GROUP | {"key": "header:x"})
    assert _problem(group=GROUP | {"key": written}) == wrong.replace("'header:x'", shown)


@pytest.mark.parametrize(
    ("group", "dispatch", "start"),
    [
        ({"key": "json:/id"}, {"missing_key": "error"}, "group.key: json:/id; expected property:JMSXGroupID with"),
        ({}, {}, "dispatch.missing_key: shard; expected error or no_order with"),
    ],
)
def test_a_partitioned_queue_promises_an_order_for_its_partition_keys_only(group, dispatch, start):
    sections = {"group": GROUP | {"backend": "partitioned"} | group, "dispatch": dispatch}
    assert _problem(**sections).startswith(f"config.yaml: {start} backend: partitioned, ")
    sections = {"group": GROUP | {"backend": "partitioned"}, "dispatch": {"missing_key": "no_order"}}
    assert parse_settings(sections, "config.yaml", {}).dispatch.missing_key is MissingKey.NO_ORDER


def test_a_partitioned_queue_is_not_made_by_members():
    group = GROUP | {"backend": "partitioned", "provision": "create_missing"}
    assert _problem(group=group, dispatch={"missing_key": "no_order"}).startswith(
        "config.yaml: group.provision: create_missing; expected none with backend: partitioned, "
    )


def test_a_partitioned_queue_is_not_asked_of_the_broker():
    group = {"name": "orders", "from": "semp", "backend": "partitioned"}
    document = {"group": group, "dispatch": {"missing_key": "error"}, "semp": {"url": "http://a"}}
    with pytest.raises(ConfigError, match=r"group\.from: semp; expected file with backend: partitioned, "):
        parse_settings(document, "config.yaml", {}, ask=lambda _: pytest.fail("it was asked"))


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("bills/\u200b", "printable characters"),
        ("b/" * 126, "a topic, possibly with wildcards, 1 to 250 bytes"),
        ("bills/>/x", "a topic, possibly with wildcards, `>` only as the whole last level"),
    ],
)
def test_a_topic_of_handlers_that_no_right_can_be_given_for_is_refused(topic, expected):
    """Only the broker refused it, or the right was for another topic, and handlers could not publish."""
    semp = _parse(semp={"url": "https://a", "publish_topics": ["bills/*/new*", ">"]}).semp
    assert semp is not None
    assert semp.publish_topics == ("bills/*/new*", ">")
    path = "config.yaml: semp.publish_topics.1"
    told = _problem(semp={"url": "https://a", "publish_topics": ["bills", topic]})
    assert told == f"{path}: {topic!r}; expected {expected}"


@pytest.mark.parametrize(
    ("semp", "line"),
    [
        ({"url": "https://a", "password": "p"}, "given with a password; expected one of the two"),
        ({"url": "http://a"}, "given for an address without TLS; expected https:// in semp.url"),
    ],
)
def test_a_token_for_the_broker_goes_alone_and_in_no_clear_text(semp, line):
    assert _problem(semp={**semp, "token": "t"}) == f"config.yaml: semp.token: {line}"
    assert _parse(semp={"url": "https://a", "token": "t"}).semp.token.get_secret_value() == "t"


def test_an_unknown_key_is_refused_with_the_one_that_was_probably_meant():
    assert _problem(group=GROUP | {"hash_cout": 1}) == (
        "config.yaml: group.hash_cout: unknown setting; expected hash_count, or another of "
        "backend, cache, control_topic, from, hash_count, hash_function, hash_prefix, key, name, provision, queue_count"
    )
    assert _problem(zzz={}).startswith("config.yaml: zzz: unknown setting; expected one of connection, dispatch")
    assert "rebind.interval_ms: unknown setting; expected interval" in _problem(rebind={"interval_ms": 5})


def test_a_missing_section_is_named():
    with pytest.raises(ConfigError, match=r"config\.yaml: group: not set; expected a value"):
        parse_settings({}, "config.yaml", {})


def test_every_problem_has_its_line():
    with pytest.raises(ConfigError) as caught:
        _parse(dispatch={"runners": 0}, rebind={"interval": "x"}, handlers=5)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("config.yaml: ") for line in lines)
    assert {problem.where for problem in problems_of(caught.value)} == {
        "config.yaml: dispatch.runners",
        "config.yaml: rebind.interval",
        "config.yaml: handlers",
    }


def test_settings_cannot_be_changed_after_loading():
    settings = _parse()
    with pytest.raises(ValueError, match="frozen"):
        settings.handlers = ()


def test_the_environment_is_put_in_where_it_is_named():
    settings = _parse(
        {"HOST": "tcp://a:1", "RUNNERS": "7"},
        connection={"transport": "solace", "host": "${HOST},${OTHER:tcp://b:2}", "vpn": "x-${MISSING:}-y"},
        dispatch={"runners": "${RUNNERS}"},
    )
    assert settings.connection.host == ("tcp://a:1", "tcp://b:2")
    assert settings.connection.vpn == "x--y"
    assert settings.dispatch.runners == 7


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("${DOLLAR:$}{NAME}", "${NAME}"),
        ("${A:${B:x}}", "${B:x}"),
        ("${B:x}y}", "y}"),
        ("$B ${1} ${ B}", "$B ${1} ${ B}"),
    ],
)
def test_a_default_ends_at_the_first_brace_and_all_else_is_text(written, read):
    assert _parse({"B": ""}, connection={"vpn": written}).connection.vpn == read


def test_what_the_environment_brings_is_not_read_again():
    assert _parse({"A": "${B}"}, connection={"vpn": "${A}"}).connection.vpn == "${B}"


def test_a_variable_that_is_not_set_is_named():
    assert _problem(connection={"password": "${BROKER_PASSWORD}"}) == (
        "config.yaml: connection.password: the environment has no BROKER_PASSWORD; "
        "expected the variable BROKER_PASSWORD set, or a default: ${BROKER_PASSWORD:default}"
    )


@pytest.mark.parametrize("content", [b"top secret\n", b"\xef\xbb\xbftop secret\r\n"], ids=["linux", "windows"])
def test_a_secret_may_lie_in_a_file(tmp_path, content):
    (tmp_path / "secret").write_bytes(content)
    settings = _parse(connection={"password": f"file:{tmp_path}/secret"})
    assert settings.connection.password.get_secret_value() == "top secret"


@pytest.mark.parametrize("content", ["", "\n", "\r\n", "\ufeff"])
def test_a_file_without_a_secret_is_no_empty_secret(tmp_path, content):
    path = tmp_path / "secret"
    path.write_bytes(content.encode())
    assert _problem(connection={"password": f"file:{path}"}) == (
        "config.yaml: connection.password: a value that is not shown; "
        f"expected a secret in the file {path}, which is empty"
    )


def test_a_file_with_other_bytes_than_text_has_no_secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"p\xff")
    assert _problem(connection={"password": f"file:{path}"}).endswith(f"expected text in UTF-8 in the file {path}")


def test_a_secret_is_never_shown(tmp_path):
    settings = _parse(connection={"password": "top-secret"})
    assert "top-secret" not in repr(settings)
    assert "top-secret" not in str(settings.model_dump())
    assert "top-secret" not in json.dumps(settings.model_dump(mode="json"), default=str)
    assert "top-secret" not in _problem(connection={"password": ["top-secret"]})
    assert "top-secret" not in _problem(connection={"host": "tcp://user:top-secret@broker"})
    assert _problem(connection={"password": f"file:{tmp_path}/none"}).endswith("none: No such file or directory")


def test_a_secret_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        assert _problem(connection={"password": f"file:{path}"}).endswith(f"file at {path}: not a regular file")


@pytest.mark.parametrize(
    ("section", "name", "written", "shown"),
    [
        ("connection", "host", "tcp://user:top/secret@broker:1", "host.0: 'tcp://***@broker:1'"),
        ("connection", "host", "tcp://user:top@secret@broker:1", "host.0: 'tcp://***@broker:1'"),
        ("connection", "host", "tcp://user:top,secret@broker:1", "host.0: 'tcp://***@broker:1'"),
        ("connection", "host", "tcp://a,tcp://us/er:top,secret@broker:1", "host.0: 'tcp://***@broker:1'"),
        ("connection", "host", ["user:top-secret@broker"], "host.0: '***@broker'"),
        ("connection", "host", "user:top'secret@broker", 'host.0: "***@broker"'),
        ("semp", "url", "admin:top-secret@broker:943", "url: '***@broker:943'"),
        ("semp", "url", "https://admin:top/secret@broker:943", "url: 'https://***@broker:943'"),
        ("ops", "status", "user:top-secret@127.0.0.1:80", "status: '***@127.0.0.1:80'"),
        ("sidecar", "application", "http://user:top-secret@127.0.0.1", "application: 'http://***@127.0.0.1'"),
    ],
)
def test_of_credentials_in_an_address_nothing_is_shown(section, name, written, shown):
    problem = _problem(**{section: {name: written}})
    assert problem.startswith(f"config.yaml: {section}.{shown}; ")
    assert "top" not in problem
    assert "secret" not in problem


def test_hosts_without_credentials_are_still_split_at_commas():
    with pytest.raises(ConfigError) as caught:
        _parse(connection={"transport": "solace", "host": "tcp://a, tcp://b c"})
    assert "connection.host.1: 'tcp://b c'" in str(caught.value)


def test_what_the_environment_has_in_other_bytes_than_utf_8_is_refused():
    assert _problem({"NAME": "g\udcff"}, connection={"vpn": "${NAME}"}) == (
        "config.yaml: connection.vpn: bytes that are not UTF-8; expected a text in UTF-8"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("connection:\n  username:members\n  password:hush\n", "connection: a text; expected a section with keys"),
        ("connection: {username: members, password:hush}\n", "connection.password...: unknown setting; expected "),
        ("connection: {password=hush: }\n", "connection.password...: unknown setting"),
        ("connection: ${HUSH}\n", "connection: a text; expected a section with keys"),
        ("connection: {oauth: hush}\n", "connection.oauth: a text; expected a section with keys"),
        ("semp: {url: 'http://a', publisher: 4711}\n", "semp.publisher: a single value; expected a section with keys"),
        ("connection:\n  password: {hush1: 1, hush1: 2}\n", "config.yaml:2: a key given twice"),
        ("connection: {password: {hush: '${NONE}'}}\n", "connection.password: the environment has no NONE"),
    ],
)
def test_no_secret_is_told_where_a_space_or_a_quote_is_missing(config, text, problem):
    head = "group: {name: orders, hash_prefix: h, hash_count: 8, queue_count: 4}\n"
    with pytest.raises(ConfigError) as caught:
        load_settings(config(text + head), {"HUSH": "hush"})
    assert problem in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "4711" not in str(caught.value)


LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40))])


def test_aliases_of_aliases_are_one_line(config):
    with pytest.raises(ConfigError, match="more than 10000 values, with aliases") as caught:
        load_settings(config(LAUGHS))
    assert "\n" not in str(caught.value)


def test_a_path_of_a_secret_that_no_file_can_have_is_refused():
    assert _problem(connection={"password": "file:a\0b"}) == (
        "config.yaml: connection.password: a value that is not shown; "
        "expected a readable file, which 'a\\x00b' cannot name"
    )


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory; expected a readable settings file"):
        load_settings(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_settings(tmp_path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("group: [\n", "config.yaml:2: "),
        ("group:\n\tname: x\n", "config.yaml:2: found character '\\t' that cannot start any token"),
        ("group: {}\ngroup: {}\n", "config.yaml:2: a key given twice"),
        ("group:\n  name: a\n  name: b\n", "config.yaml:3: a key given twice"),
        ("", "config.yaml: an empty file; expected sections"),
        ("- a\n", "config.yaml: a list; expected sections"),
        ("!!python/object:os.system {}\n", "config.yaml:1: could not determine a constructor"),
        (b"group: \xff\n", "config.yaml: byte 7 is not UTF-8"),
        ("group: \x00\n", "config.yaml: unacceptable character"),
        ("a: &x [*x]\n", "config.yaml: "),
    ],
)
def test_bad_yaml_is_one_line_with_its_place(config, text, line):
    with pytest.raises(ConfigError) as caught:
        load_settings(config(text))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_yaml_that_names_itself_does_not_hang(config):
    with pytest.raises(ConfigError):
        load_settings(config("group: &g\n  name: *g\n"))


def test_another_journal_directory_can_be_chosen(tmp_path):
    settings = _parse(ops={"journal": {"republish_topic": "live"}}).with_journal(tmp_path)
    assert settings.ops.journal.path == str(tmp_path)
    assert settings.ops.journal.republish_topic == "live"


@pytest.mark.parametrize("written", ["off", False])
def test_the_status_api_is_off_unless_it_has_an_address(written):
    assert _parse().ops.status is None
    assert _parse(ops={"status": written}).ops.status is None
    assert str(_parse(ops={"status": "127.0.0.1:9280"}).ops.status) == "127.0.0.1:9280"


def test_others_may_ask_only_where_there_is_a_token(tmp_path):
    assert _problem(ops={"status": "192.0.2.1:9280"}) == (
        "config.yaml: ops.status: 192.0.2.1:9280, and no ops.status_token; "
        "expected an address on loopback, such as 127.0.0.1:9280, or a token"
    )
    (tmp_path / "token").write_text("s3cret\n")
    ops = _parse(ops={"status": "192.0.2.1:9280", "status_token": f"file:{tmp_path}/token"}).ops
    assert ops.status_token.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(ops)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "schlüssel"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token):
    problem = _problem(ops={"status_token": token})
    assert problem == (
        "config.yaml: ops.status_token: a value that is not shown; expected visible ASCII characters, and no spaces"
    )


@pytest.mark.parametrize("written", [9280, None, {"host": "a"}, "127.0.0.1", True])
def test_an_address_of_the_status_api_is_a_host_and_a_port(written):
    assert "ops.status: " in (problem := _problem(ops={"status": written}))
    assert "expected HOST:PORT with a port from 0 to 65535" in problem


@pytest.mark.parametrize("path", ["auto", "fast", "public"])
def test_the_client_path_is_one_of_three_and_chosen_by_itself_unless_told_otherwise(path):
    assert _parse().transport.client_path is ClientPathChoice.AUTO
    assert _parse(transport={"client_path": path}).transport.client_path is ClientPathChoice(path)
    assert _problem(transport={"client_path": "quick"}) == (
        "config.yaml: transport.client_path: 'quick'; expected one of auto, fast or public"
    )


def test_the_values_that_no_message_shows_are_those_of_all_settings_that_are_secrets() -> None:
    assert {"password", "key_password", "status_token", "token", "application_token"} == SECRET_KEYS
