"""Whether a broker accepts the names that are made from a group's settings."""

import os
import socket
from collections.abc import Iterable
from hashlib import blake2b

from lbg_runtime.config.fields import SettingProblem, no_longer_than
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.failure import DEAD_MESSAGE_QUEUE
from lbg_runtime.model.group import LARGEST_QUEUE_NAME, GroupShape, is_reserved, queue_name_fault
from lbg_runtime.model.topic import LARGEST_TOPIC_BYTES

LARGEST_QUEUE_NAME_BYTES = 250
"""What the client takes, beside the number of characters that the broker takes."""
LARGEST_CLIENT_NAME_BYTES = 159
"""One less than PubSub+ takes: the client drops a login whose answer has 160 bytes and the zero behind them."""
LARGEST_VPN_BYTES = 32
LARGEST_USERNAME_BYTES = 189
LARGEST_PASSWORD_BYTES = 128
"""What PubSub+ takes: bytes of UTF-8."""


def client_name(group: str, member: str, process: int | None = None) -> str:
    """The client name of a member in a process of this host, by default this one, if the settings give none: unique on
    the broker."""
    return f"{group}/{member}/{socket.gethostname()}/{process or os.getpid()}"


def given_client_name(value: str) -> str:
    """A validator of a client name of the settings."""
    if not value.isprintable() or any(letter in value for letter in "*>"):
        raise ValueError("a client name: printable characters, and none of * >")
    return no_longer_than(LARGEST_CLIENT_NAME_BYTES)(value)


def program_name(purpose: str) -> str:
    """The client name of a program that is no member, in this process: unique on the broker."""
    return f"lbg-{purpose}-{socket.gethostname()}-{os.getpid()}"


def conductor_name(group: str) -> str:
    """The client name of whoever re-stripes the group: the same for all, so that the broker lets in only one."""
    name = f"lbg-restriper-{group}"
    if len(name.encode()) <= LARGEST_CLIENT_NAME_BYTES:
        return name
    # Cut short, it could be that of another group, whose conductor would be thrown out.
    return f"lbg-restriper-{blake2b(group.encode(), digest_size=16).hexdigest()}"


def check_client_name(group: str, member: str, given: str | None) -> None:
    """Raise `ConfigError` if the broker would refuse the client name of a member; `given` is that of the settings.

    Unlike other names, it is known only where the member is.
    """
    size = len(client_name(group, member).encode(errors="surrogateescape"))
    if given is not None or size <= LARGEST_CLIENT_NAME_BYTES:
        return
    too_much = size - LARGEST_CLIENT_NAME_BYTES
    where, taken, others = "group.name", len(group.encode()), "member"
    if taken <= too_much:
        where, taken, others = "membership.id", len(member.encode(errors="surrogateescape")), "group"
    raise ConfigError(
        where,
        f"{taken} bytes",
        f"at most {max(0, taken - too_much)}, as the client name contains it, {others}, host and process, and has "
        f"at most {LARGEST_CLIENT_NAME_BYTES}; or a connection.client_name",
    )


def check_names(shape: GroupShape, control_topic: str) -> None:
    """Raise `SettingProblem` if the names of queues or topics that are made of a group's settings cannot be."""
    if problem := _too_long(shape.name, shape.queue_name(shape.queue_count - 1)):
        raise SettingProblem(("name",), *problem)
    check_outside_topic(shape, ("control_topic",), control_topic)
    _check_size(("hash_prefix",), shape.subscription(shape.hash_count - 1))


def check_made_queues(group: str, queues: Iterable[str]) -> None:
    """Raise `ConfigError` if a queue that a failure policy asks for is named after the group, and its name cannot be.

    Only where the policies of all handlers are known is it known whether the group needs such a queue.
    """
    for queue in queues:
        if problem := _too_long(group, queue):
            found, expected = problem
            raise ConfigError("group.name", found, f"{expected}, such as {queue.replace(group, '<name>')}")


def _too_long(group: str, queue: str) -> tuple[str, str] | None:
    """What was found and expected, if a queue that is named after the group cannot have that name."""
    if (over := len(queue) - LARGEST_QUEUE_NAME) > 0:
        largest = len(group) - over
        expected = f"at most {largest}, as the names of its queues have at most {LARGEST_QUEUE_NAME}"
        return f"{len(group)} characters", expected
    taken = len(group.encode())
    if (over := len(queue.encode()) - LARGEST_QUEUE_NAME_BYTES) > 0:
        expected = f"at most {taken - over}, as the client takes {LARGEST_QUEUE_NAME_BYTES} for the name of a queue"
        return f"{taken} bytes", expected
    return None


def queue_name(value: str) -> str:
    """A validator of the name of a queue that somebody else may have made."""
    if value != DEAD_MESSAGE_QUEUE and (expected := queue_name_fault(value)) is not None:
        raise ValueError(expected)
    if len(value) > LARGEST_QUEUE_NAME:
        raise SettingProblem((), f"{len(value)} characters", f"at most {LARGEST_QUEUE_NAME}")
    if (size := len(value.encode())) > LARGEST_QUEUE_NAME_BYTES:
        expected = f"at most {LARGEST_QUEUE_NAME_BYTES}, which the client takes for the name of a queue"
        raise SettingProblem((), f"{size} bytes", expected)
    return value


def check_outside_topic(shape: GroupShape, path: tuple[str, ...], topic: str) -> None:
    """Raise `SettingProblem` if a topic for the group's own messages cannot be subscribed to, or reaches its queues."""
    if any(letter in topic for letter in "*>"):
        raise SettingProblem(path, repr(topic), "a topic without wildcards")
    if is_reserved(topic):
        expected = "a first character other than # and !, which are reserved by the broker"
        raise SettingProblem(path, repr(topic), expected)
    if "" in topic.split("/"):
        raise SettingProblem(path, repr(topic), "levels that are not empty")
    if not topic.isprintable():
        raise SettingProblem(path, repr(topic), "printable characters")
    _check_size(path, topic)
    # And below it: the records of a re-striping lie there.
    if shape.split_topic(f"{topic}/below") is not None:
        raise SettingProblem(
            path, repr(topic), f"a topic outside of {shape.hash_prefix}/<shard>/, which the group's queues take"
        )


def _check_size(path: tuple[str, ...], topic: str) -> None:
    if (size := len(topic.encode())) > LARGEST_TOPIC_BYTES:
        raise SettingProblem(path, f"{size} bytes in {topic}", f"at most {LARGEST_TOPIC_BYTES}")
