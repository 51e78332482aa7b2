"""Whether a broker takes the names that are made of a group's settings."""

import os
import socket

from lbg_runtime.config.fields import SettingProblem
from lbg_runtime.model.group import GroupShape

LARGEST_QUEUE_NAME = 200
LARGEST_TOPIC_BYTES = 250
LARGEST_CLIENT_NAME = 160
LARGEST_PASSWORD_BYTES = 128
"""What PubSub+ takes; of topics and passwords so many bytes of UTF-8, of names so many characters."""


def client_name(group: str, member: str) -> str:
    """What the client of a member in this process is called where the settings do not say: unique on the broker."""
    return f"{group}/{member}/{socket.gethostname()}/{os.getpid()}"


def check_names(shape: GroupShape, control_topic: str) -> None:
    """Raise `SettingProblem` where no queue or topic can be made of a name, a hash prefix or a control topic."""
    for setting, text in (("name", shape.name), ("hash_prefix", shape.hash_prefix)):
        if not text.isprintable():
            raise SettingProblem((setting,), repr(text), "characters that can be printed")
    if any(letter in control_topic for letter in "*>"):
        raise SettingProblem(("control_topic",), repr(control_topic), "a topic without wildcards")
    largest = LARGEST_QUEUE_NAME - (len(shape.queue_name(shape.queue_count - 1)) - len(shape.name))
    if len(shape.name) > largest:
        expected = f"at most {largest}, as the names of its queues have at most {LARGEST_QUEUE_NAME}"
        raise SettingProblem(("name",), f"{len(shape.name)} characters", expected)
    topics = {"control_topic": control_topic, "hash_prefix": shape.subscription(shape.hash_count - 1)}
    for setting, topic in topics.items():
        if (size := len(topic.encode())) > LARGEST_TOPIC_BYTES:
            raise SettingProblem((setting,), f"{size} bytes in {topic}", f"at most {LARGEST_TOPIC_BYTES}")
