"""Topic subscriptions of the broker: `*` matches one level, `abc*` a level's rest, `>` one or more last levels."""

LARGEST_TOPIC_BYTES = 250
"""In UTF-8."""


def is_valid_topic(topic: str) -> bool:
    """Whether `topic` can be published to: 1 to 250 bytes of UTF-8."""
    try:
        return 1 <= len(topic.encode()) <= LARGEST_TOPIC_BYTES
    except UnicodeEncodeError:
        return False  # half of a surrogate pair


def subscription_fault(subscription: str) -> str | None:
    """What a topic subscription would have to be, where the broker would not understand it as it is meant; else None.

    Elsewhere the broker takes a wildcard's character for itself, and nothing ever comes.
    """
    *above, last = subscription.split("/")
    if not is_valid_topic(subscription):
        return "1 to 250 bytes"
    if any(">" in level for level in above) or (">" in last and last != ">"):
        return "`>` only as the whole last level"
    if any("*" in level[:-1] for level in (*above, last)):
        return "`*` only as the last character of a level"
    return None


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
    """Whether one level of a subscription attracts one of a topic; `*` only counts as a level's last character."""
    if wanted.endswith("*"):
        return level.startswith(wanted[:-1])
    return wanted == level
