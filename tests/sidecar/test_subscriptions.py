"""Where events go: what applications ask for in Dapr's form, as they write it and as they may get it wrong."""

import json

import pytest

from lbg_runtime.config.sidecar_settings import ContentMode, SubscriptionSettings
from lbg_runtime.sidecar.subscriptions import (
    Bulk,
    Subscription,
    Subscriptions,
    SubscriptionsRefused,
    configured,
    read_subscriptions,
)


def read(*entries):
    return read_subscriptions(json.dumps(entries).encode())


def test_what_the_fastapi_extension_of_the_dapr_sdk_says_is_understood():
    # As dapr-ext-fastapi 1.18.3 answered it.
    entry = {"pubsubname": "pubsub", "topic": "orders/new", "route": "/events/pubsub/orders/new", "metadata": {}}
    assert read(entry) == ([Subscription("orders/new", "/events/pubsub/orders/new", "pubsub")], [])


def test_a_program_that_puts_a_byte_order_mark_before_every_text_is_understood():
    entry = json.dumps([{"topic": "a", "route": "/a"}]).encode("utf-8-sig")
    assert read_subscriptions(entry) == read({"topic": "a", "route": "/a"})


def test_routes_may_be_given_as_in_the_second_version():
    [subscription], _ = read({"topic": "a", "routes": {"default": "/d"}})
    assert subscription.route == "/d"
    [subscription], _ = read({"topic": "a", "routes": {"rules": [{"match": "", "path": "/r"}], "default": "/d"}})
    assert subscription.route == "/r"
    [subscription], _ = read({"topic": "a", "routes": {"rules": [{"path": "/r"}], "default": "/d"}})
    assert subscription.route == "/r"
    rules = [{"path": "/first"}, {"match": "", "path": "/never"}]
    [subscription], _ = read({"topic": "a", "routes": {"rules": rules, "default": "/d"}})
    assert subscription.route == "/first", "the first that matches, as in Dapr"
    [subscription], _ = read({"topic": "a", "routes": {"rules": []}, "route": "/a"})
    assert subscription.route == "/a"


def test_raw_and_bulk_are_asked_for_in_the_entry():
    [subscription], _ = read(
        {
            "pubsubname": "p",
            "topic": "a",
            "route": "/a",
            "metadata": {"rawPayload": "true"},
            "bulkSubscribe": {"enabled": True, "maxMessagesCount": 7},
        }
    )
    assert subscription == Subscription("a", "/a", "p", is_raw=True, bulk=Bulk(7, 1_000))


def test_what_is_not_asked_for_is_not_given():
    more = {"metadata": {"rawPayload": "false"}, "bulkSubscribe": {"enabled": False}, "pubsubname": 7}
    assert read({"topic": "a", "route": "/a", **more}) == read({"topic": "a", "route": "/a"})
    [subscription], _ = read({"topic": "a", "route": "/a", "metadata": {"rawPayload": True}})
    assert subscription.is_raw


@pytest.mark.parametrize("value", [0, -1, "7", None, True, 2.5])
def test_a_bulk_without_sensible_numbers_has_the_usual_ones(value):
    asked = {"enabled": True, "maxMessagesCount": value, "maxAwaitDurationMs": value}
    [subscription], _ = read({"topic": "a", "route": "/a", "bulkSubscribe": asked})
    assert subscription.bulk == Bulk(100, 1_000)


def test_a_bulk_is_bounded():
    asked = {"enabled": True, "maxMessagesCount": 1, "maxAwaitDurationMs": 1}
    [subscription], _ = read({"topic": "a", "route": "/a", "bulkSubscribe": asked})
    assert subscription.bulk == Bulk(1, 1)
    asked = {"enabled": True, "maxMessagesCount": 10**9, "maxAwaitDurationMs": 10**9}
    [subscription], _ = read({"topic": "a", "route": "/a", "bulkSubscribe": asked})
    assert subscription.bulk == Bulk(1_000, 60_000)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{broken", "no JSON"),
        (b"\xff", "no JSON"),
        (b"{}", "no list"),
        (b"[1]", "no object"),
        (b'[{"route": "/a"}]', "without a topic"),
        (b'[{"topic": "", "route": "/a"}]', "without a topic"),
        (b'[{"topic": "a"}]', "no route"),
        (b'[{"topic": "a", "route": ""}]', "no route"),
        (b'[{"topic": "a", "route": 7}]', "no route"),
        (b'[{"topic": "a", "routes": {"rules": [{"match": "event.type == \'x\'", "path": "/x"}]}}]', "conditions"),
        (b'[{"topic": "a", "routes": {"rules": ["x"], "default": "/d"}}]', "conditions"),
    ],
)
def test_what_cannot_be_followed_is_refused_as_a_whole(body, reason):
    with pytest.raises(SubscriptionsRefused, match=reason):
        read_subscriptions(body)


def test_what_is_not_done_is_remarked():
    found, remarks = read(
        {"pubsubname": "p", "topic": "a", "route": "/a", "deadLetterTopic": "dead"},
        {"pubsubname": "q", "topic": "a", "route": "/b"},
    )
    assert len(found) == 2
    assert [remark.partition(" ")[0] for remark in remarks] == ["deadLetterTopic", "a"]


def test_the_first_that_attracts_a_topic_takes_it():
    subscriptions = Subscriptions([Subscription("orders/new", "/new"), Subscription("orders/>", "/all")])
    assert subscriptions.find("orders/new").route == "/new"
    assert subscriptions.find("orders/old").route == "/all"
    assert subscriptions.find("orders/old").route == "/all"
    assert subscriptions.find("else") is None


def test_so_many_topics_are_remembered_and_no_more(monkeypatch):
    monkeypatch.setattr("lbg_runtime.sidecar.subscriptions.MAX_ROUTES_REMEMBERED", 2)
    subscriptions = Subscriptions([Subscription("orders/>", "/all")])
    kept = []
    for topic in ("orders/a", "orders/b", "orders/b", "orders/c"):
        assert subscriptions.find(topic).route == "/all"
        kept.append(len(subscriptions._found))
    assert kept == [1, 2, 2, 1]


def test_those_of_the_settings_have_a_content_mode():
    settings = SubscriptionSettings(topic="orders/>", route="/orders", content_mode="binary")
    [subscription] = configured([settings])
    assert (subscription.topic, subscription.content_mode) == ("orders/>", ContentMode.BINARY)
    assert subscription.is_configured
