"""Finds the application's route for an event: by the settings first, then by what the application asks for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from lbg_runtime.config.sidecar_settings import ContentMode, SubscriptionSettings
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.topic import is_valid_topic, matches, mqtt_remark
from lbg_runtime.sidecar.answer import MARK

MAX_BULK_COUNT = 1_000
DEFAULT_BULK_COUNT = 100
MAX_BULK_WAIT_MS = 60_000
DEFAULT_BULK_WAIT_MS = 1_000

MAX_ROUTES_REMEMBERED = 10_000

PUBSUB_NAME = "pubsub"
"""The `pubsubname` in pulled events, and in events for subscriptions that name none, such as those in the settings."""


class SubscriptionsRefused(LbgError):
    """The application's answer to `GET /dapr/subscribe` cannot be followed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"GET /dapr/subscribe: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Bulk:
    """How many events go in one request, and how long one may wait for others."""

    max_count: int
    max_wait_ms: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """Events of a topic, or of many with wildcards, and where they go."""

    topic: str
    route: str
    pubsub_name: str = PUBSUB_NAME
    content_mode: ContentMode = ContentMode.STRUCTURED
    is_raw: bool = False
    bulk: Bulk | None = None
    is_configured: bool = False
    """Whether it comes from the settings, so that it holds whatever the application wants."""


class Subscriptions:
    """Looked up for every event, in the order given; the first that attracts a topic takes it."""

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self.subscriptions = tuple(subscriptions)
        self._found: dict[str, Subscription | None] = {}

    @property
    def topics(self) -> list[str]:
        """The topics of the subscriptions, which may have wildcards."""
        return [each.topic for each in self.subscriptions]

    def find(self, topic: str) -> Subscription | None:
        if topic not in self._found:
            if len(self._found) >= MAX_ROUTES_REMEMBERED:
                self._found.clear()
            found = (each for each in self.subscriptions if matches(each.topic, topic))
            self._found[topic] = next(found, None)
        return self._found[topic]


def configured(settings: Iterable[SubscriptionSettings]) -> list[Subscription]:
    return [
        Subscription(each.topic, each.route, content_mode=each.content_mode, is_configured=True) for each in settings
    ]


def read_subscriptions(body: bytes) -> tuple[list[Subscription], list[str]]:
    """The subscriptions that the application asks for in Dapr's form, and remarks for the log about what is not
    supported.

    Raises `SubscriptionsRefused` for anything but such a list, and for rules with conditions: if these were ignored,
    events would go to the wrong route.
    """
    try:
        told = orjson.loads(body.removeprefix(MARK))
    except orjson.JSONDecodeError:
        raise SubscriptionsRefused("no JSON") from None
    if not isinstance(told, list):
        raise SubscriptionsRefused("no list of subscriptions")
    found: list[Subscription] = []
    topics: set[str] = set()
    remarks: list[str] = []
    for entry in told:
        subscription = _read_entry(entry, remarks)
        if subscription.topic in topics:
            remarks.append(f"a second subscription to {subscription.topic!r} gets nothing")
        topics.add(subscription.topic)
        found.append(subscription)
    return found, remarks


def mqtt_remarks(subscriptions: Iterable[Subscription]) -> list[str]:
    """Remarks on topics with a wildcard of another protocol."""
    return [f"{each.topic!r}: {remark}" for each in subscriptions if (remark := mqtt_remark(each.topic)) is not None]


def _read_entry(entry: object, remarks: list[str]) -> Subscription:
    if not isinstance(entry, dict):
        raise SubscriptionsRefused("an entry that is no object")
    topic = entry.get("topic")
    if not isinstance(topic, str) or not is_valid_topic(topic):
        raise SubscriptionsRefused("an entry without a topic of 1 to 250 bytes")
    route = _route(entry, topic)
    metadata = entry.get("metadata")
    raw = metadata.get("rawPayload") if isinstance(metadata, dict) else None
    if entry.get("deadLetterTopic"):
        remarks.append(f"deadLetterTopic of {topic!r} is not used: what fails stays in its place")
    name = entry.get("pubsubname")
    return Subscription(
        topic=topic,
        route=route,
        pubsub_name=name if isinstance(name, str) else PUBSUB_NAME,
        is_raw=raw is True or (isinstance(raw, str) and raw.lower() == "true"),
        bulk=_bulk(entry.get("bulkSubscribe")),
    )


def _route(entry: dict[str, object], topic: str) -> str:
    routes = entry.get("routes")
    route = entry.get("route")
    if isinstance(routes, dict):
        route = routes.get("default") or route
        rules = routes.get("rules")
        for rule in reversed(rules) if isinstance(rules, list) else ():
            if not isinstance(rule, dict) or str(rule.get("match") or "").strip():
                raise SubscriptionsRefused(f"rules with conditions for {topic!r}; one route can be given")
            route = rule.get("path")
    if not isinstance(route, str) or not route:
        raise SubscriptionsRefused(f"no route for {topic!r}")
    return route


def _bulk(told: object) -> Bulk | None:
    if not isinstance(told, dict) or told.get("enabled") is not True:
        return None
    return Bulk(
        _bounded(told.get("maxMessagesCount"), DEFAULT_BULK_COUNT, MAX_BULK_COUNT),
        _bounded(told.get("maxAwaitDurationMs"), DEFAULT_BULK_WAIT_MS, MAX_BULK_WAIT_MS),
    )


def _bounded(value: object, default: int, most: int) -> int:
    return min(value, most) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
