"""The section of the sidecar: what may stand in it, and one line for what may not."""

import pytest

from lbg_runtime.config.load import parse_settings, problems_of
from lbg_runtime.config.sidecar_settings import ContentMode
from lbg_runtime.model.errors import ConfigError

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 2}


def parse(sidecar, **sections):
    return parse_settings({"group": GROUP, "sidecar": sidecar, **sections}, "config.yaml", {}).sidecar


def problem(sidecar, **sections):
    with pytest.raises(ConfigError) as caught:
        parse(sidecar, **sections)
    [found] = problems_of(caught.value)
    return str(found)


def test_an_address_is_all_that_must_be_said():
    sidecar = parse({"application": "http://127.0.0.1:3000"})
    assert str(sidecar.listen) == "127.0.0.1:3500"
    assert (sidecar.health.path, sidecar.health.interval_ms) == (None, 5_000)
    assert (sidecar.application_token, sidecar.token, sidecar.subscriptions) == (None, None, ())
    assert sidecar.max_body_kb == 4_096


def test_nothing_at_all_is_an_application_that_pulls():
    assert parse({}).application is None


@pytest.mark.parametrize("tracing", ["off", "spans", "spans_with_keys"])
def test_messages_carry_a_trace_for_spans_and_for_an_application(tracing):
    ops = {"tracing": tracing}
    alone = parse_settings({"group": GROUP, "ops": ops}, "config.yaml", {})
    assert alone.carries_traces is (tracing != "off")
    assert parse_settings({"group": GROUP, "ops": ops, "sidecar": {}}, "config.yaml", {}).carries_traces


def test_an_application_need_not_be_listened_to():
    assert parse({"application": "http://127.0.0.1:3000", "listen": "off"}).listen is None


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("http://127.0.0.1:3000/", "http://127.0.0.1:3000"),
        ("https://app.example:8443/base/", "https://app.example:8443/base"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("unix:/run/application.sock", "unix:/run/application.sock"),
    ],
)
def test_an_application_is_on_tcp_or_a_unix_socket(written, read):
    assert parse({"application": written}).application == read


@pytest.mark.parametrize(
    "written",
    [
        "127.0.0.1:3000",
        "ftp://a",
        "http://",
        "http://u:p@a",
        "http://:80",
        "http://a:99999",
        "http://[a",
        "http://ü..b:1",
        f"http://{'ü' * 63}",
        f"http://{'a' * 64}:3000",
        "http://a\\b:3000",
        "unix:a",
        "http://a b",
        7,
        "",
    ],
)
def test_an_address_that_is_none_is_refused(written):
    assert "config.yaml: sidecar.application: " in problem({"application": written})
    assert "expected an address such as http://127.0.0.1:3000 or unix:/run/application.sock" in problem(
        {"application": written}
    )


def test_subscriptions_have_a_topic_a_route_and_a_mode():
    [first, second] = parse(
        {
            "application": "http://a:1",
            "subscriptions": [
                {"topic": "orders/>", "route": "/orders"},
                {"topic": "a", "route": "/a", "content_mode": "binary"},
            ],
        }
    ).subscriptions
    assert (first.topic, first.route, first.content_mode) == ("orders/>", "/orders", ContentMode.STRUCTURED)
    assert second.content_mode is ContentMode.BINARY


def test_a_mistake_in_a_subscription_is_named_with_its_place():
    given = {
        "application": "http://a:1",
        "subscriptions": [{"topic": "a", "route": "/a"}, {"topc": "b", "route": "/b"}],
    }
    with pytest.raises(ConfigError) as caught:
        parse(given)
    assert sorted(map(str, problems_of(caught.value))) == [
        "config.yaml: sidecar.subscriptions.1.topc: unknown setting; expected topic, or another of content_mode, "
        "route, topic",
        "config.yaml: sidecar.subscriptions.1.topic: not set; expected a value, as it has no default",
    ]


@pytest.mark.parametrize(
    ("sidecar", "expected"),
    [
        ({"listen": "off"}, "sidecar.application: not set; expected an address, or `listen`"),
        (
            {"listen": "192.0.2.1:3500", "application": "http://a:1"},
            "sidecar.listen: 192.0.2.1:3500, and no sidecar.token",
        ),
        ({"subscriptions": [{"topic": "a", "route": "/a"}]}, "sidecar.subscriptions: given without an application"),
        ({"max_body_kb": 0}, "sidecar.max_body_kb: 0; expected at least 1"),
        ({"health": {"interval": "0s"}}, "sidecar.health.interval: '0s'"),
        ({"applicaton": "http://a:1"}, "sidecar.applicaton: unknown setting; expected application, or another of"),
        ({"application": "http://a:1", "subscriptions": [{"topic": "x" * 251, "route": "/a"}]}, "1 to 250 bytes"),
    ],
)
def test_what_makes_no_sense_is_one_line(sidecar, expected):
    assert expected in problem(sidecar)


@pytest.mark.parametrize("name", ["token", "application_token"])
def test_a_token_is_not_shown(name):
    told = problem({"application": "http://a:1", name: "two words"})
    assert "two words" not in told
    assert told.endswith("a value that is not shown; expected visible ASCII characters, and no spaces")


def test_a_token_may_be_in_a_file(tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    sidecar = parse({"listen": "0.0.0.0:3500", "token": f"file:{tmp_path}/token"})
    assert sidecar.token.get_secret_value() == "s3cret"


def test_handlers_and_a_sidecar_exclude_each_other():
    assert "sidecar: given with handlers; expected one of the two" in problem({}, handlers=["a"])


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (">a", "a topic subscription, `>` only as the whole last level"),
        ("t/>x", "a topic subscription, `>` only as the whole last level"),
        (">/t", "a topic subscription, `>` only as the whole last level"),
        ("t/a*b", "a topic subscription, `*` only as the last character of a level"),
        ("t" * 251, "a topic subscription, 1 to 250 bytes"),
    ],
)
def test_a_subscription_that_never_attracts_anything_is_refused(topic, expected):
    found = problem({"application": "http://127.0.0.1:3000", "subscriptions": [{"topic": topic, "route": "/x"}]})
    assert found == f"config.yaml: sidecar.subscriptions.0.topic: {topic!r}; expected {expected}"


@pytest.mark.parametrize("topic", [">", "t/>", "t/*/a*/>", "*"])
def test_a_subscription_may_have_wildcards_at_the_end_of_its_levels(topic):
    sidecar = parse({"application": "http://127.0.0.1:3000", "subscriptions": [{"topic": topic, "route": "/x"}]})
    assert sidecar.subscriptions[0].topic == topic
