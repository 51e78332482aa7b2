"""Whether a broker takes the names that are made of a group's settings."""

import os
import socket

from lbg_runtime.config.fields import SettingProblem
from lbg_runtime.model.group import GroupShape, is_reserved

LARGEST_QUEUE_NAME = 200
LARGEST_TOPIC_BYTES = 250
LARGEST_CLIENT_NAME_BYTES = 159
"""Less than PubSub+ takes by one: the client drops a login whose answer has 160 and the zero behind them."""
LARGEST_VPN_BYTES = 32
LARGEST_USERNAME_BYTES = 189
LARGEST_PASSWORD_BYTES = 128
"""What PubSub+ takes; of the names of queues so many characters, else so many bytes of UTF-8."""


def client_name(group: str, member: str) -> str:
    """What the client of a member in this process is called where the settings do not say: unique on the broker."""
    return f"{group}/{member}/{socket.gethostname()}/{os.getpid()}"


def check_names(shape: GroupShape, control_topic: str) -> None:
    """Raise `SettingProblem` where no queue or topic can be made of a name, a hash prefix or a control topic."""
    for setting, text in (("name", shape.name), ("hash_prefix", shape.hash_prefix)):
        if not text.isprintable():
            raise SettingProblem((setting,), repr(text), "characters that can be printed")
    check_outside_topic(shape, ("control_topic",), control_topic)
    largest = LARGEST_QUEUE_NAME - (len(shape.queue_name(shape.queue_count - 1)) - len(shape.name))
    if len(shape.name) > largest:
        expected = f"at most {largest}, as the names of its queues have at most {LARGEST_QUEUE_NAME}"
        raise SettingProblem(("name",), f"{len(shape.name)} characters", expected)
    topics = {"control_topic": control_topic, "hash_prefix": shape.subscription(shape.hash_count - 1)}
    for setting, topic in topics.items():
        if (size := len(topic.encode())) > LARGEST_TOPIC_BYTES:
            raise SettingProblem((setting,), f"{size} bytes in {topic}", f"at most {LARGEST_TOPIC_BYTES}")


def check_outside_topic(shape: GroupShape, path: tuple[str, ...], topic: str) -> None:
    """Raise `SettingProblem` where a topic of the group's own words cannot be subscribed to, or reaches its queues."""
    if any(letter in topic for letter in "*>"):
        raise SettingProblem(path, repr(topic), "a topic without wildcards")
    if is_reserved(topic):
        expected = "a first letter other than # and !, with which a broker means something else"
        raise SettingProblem(path, repr(topic), expected)
    if "" in topic.split("/"):
        raise SettingProblem(path, repr(topic), "levels that are not empty")
    # And below it: the records of a re-striping lie there.
    if shape.split_topic(f"{topic}/below") is not None:
        raise SettingProblem(
            path, repr(topic), f"a topic outside of {shape.hash_prefix}/<shard>/, which the group's queues take"
        )
