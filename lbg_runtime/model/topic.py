"""Topic subscriptions of the broker: `*` matches one level, `abc*` the rest of a level, `>` one or more last levels."""

LARGEST_TOPIC_BYTES = 250
"""The longest topic or subscription, in bytes of UTF-8."""


def is_valid_topic(topic: str) -> bool:
    """Whether `topic` can be published to: 1 to 250 bytes of UTF-8."""
    try:
        return 1 <= len(topic.encode()) <= LARGEST_TOPIC_BYTES
    except UnicodeEncodeError:
        return False  # half of a surrogate pair


def subscription_fault(subscription: str) -> str | None:
    """What a topic subscription should have been, if the broker would not understand it as intended; None if it is
    right.

    The broker takes a wildcard character in a wrong position literally, so that nothing ever arrives; nor does anything
    with a NUL.
    """
    *above, last = subscription.split("/")
    if not is_valid_topic(subscription):
        return "1 to 250 bytes"
    if "\0" in subscription:
        return "no NUL, as no topic has one"
    if any(">" in level for level in above) or (">" in last and last != ">"):
        return "`>` only as the whole last level"
    if any("*" in level[:-1] for level in (*above, last)):
        return "`*` only as the last character of a level"
    return None


def mqtt_remark(subscription: str) -> str | None:
    """A remark for the user if the subscription has a wildcard of another protocol; None if it has none. That is no
    error, as `#` and `+` may be levels of topics."""
    if {"#", "+"}.isdisjoint(subscription.split("/")):
        return None
    return "`#` and `+` are no wildcards here: `*` stands for one level, `>` for one or more last ones"


def matches(subscription: str, topic: str) -> bool:
    """Whether a topic subscription attracts a topic. Linear in the number of levels."""
    wanted = subscription.split("/")
    levels = topic.split("/")
    for position, level in enumerate(wanted):
        if level == ">" and position == len(wanted) - 1:
            return len(levels) > position
        if position >= len(levels):
            return False
        if not level_matches(level, levels[position]):
            return False
    return len(levels) == len(wanted)


def level_matches(wanted: str, level: str) -> bool:
    """Whether one level of a subscription attracts one of a topic; `*` counts only as a level's last character."""
    if wanted.endswith("*"):
        return level.startswith(wanted[:-1])
    return wanted == level


def covers(wide: str, narrow: str) -> bool:
    """Whether `wide` attracts every topic that `narrow`, a subscription or a topic, attracts. Linear as `matches`."""
    # `*` would match the level `>`, which stands for many levels.
    return (_is_open(wide) or not _is_open(narrow)) and matches(wide, narrow)


def _is_open(subscription: str) -> bool:
    return subscription == ">" or subscription.endswith("/>")
