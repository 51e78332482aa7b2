"""What a group is to be on the broker, and what its objects there are called. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName

MARKER_PREFIX = "lbg/"
"""JNDI names of groups begin so."""

MARKER_VERSION = 1
LARGEST_MARKER = 200
"""Characters that the physical name of a JNDI queue may have."""

SHARED_USERNAME = "default"
"""The client username that every VPN has; a group that uses it has no account of its own."""

_LARGEST_PROFILE_NAME = 32
_LARGEST_QUEUE_NAME = 200
_LARGEST_USERNAME = 189


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Everything that an administrator says of a group. Raises `UserError` for what no broker would take."""

    shape: GroupShape
    hash_function: HashFunction
    key: str
    """The rule of `group.key`, as it is written."""
    username: str
    password: str = field(repr=False)
    """Set when the username is created, never stored in the group's settings, and never changed."""
    queue_spool_mb: int
    client_profile: str | None
    """One that exists and is not ours; None: the group's own."""
    creates_queues: bool
    """Whether members may create queues."""

    def __post_init__(self) -> None:
        name = self.shape.name
        if " " in name or not name.isprintable():
            raise ConfigError("group.name", repr(name), "no spaces, as it becomes part of a JNDI name")
        if name.startswith("#") or "" in name.split("/"):
            raise ConfigError("group.name", repr(name), "levels that are not empty, and no # at the beginning")
        longest = self.shape.queue_name(self.shape.queue_count - 1)
        if len(longest) > _LARGEST_QUEUE_NAME:
            raise ConfigError("group.name", f"{len(longest)} characters in {longest}", f"at most {_LARGEST_QUEUE_NAME}")
        if len(self.username) > _LARGEST_USERNAME or any(c in self.username for c in "*?"):
            raise ConfigError(
                "connection.username", repr(self.username), f"at most {_LARGEST_USERNAME} characters, none of * ?"
            )
        if len(marker := self.marker()) > LARGEST_MARKER:
            raise UserError(
                "the settings of the group",
                f"{len(marker)} characters as they are stored: {marker}",
                f"at most {LARGEST_MARKER}: a shorter hash prefix, key or client username",
            )

    @property
    def has_account(self) -> bool:
        """Whether the group has a client username, an ACL profile and perhaps a client profile of its own."""
        return self.username != SHARED_USERNAME

    @property
    def manages_client_profile(self) -> bool:
        """Whether the client profile is the group's own."""
        return self.has_account and self.client_profile is None

    @property
    def profile_name(self) -> str:
        """Of the group's own ACL profile, and of its own client profile."""
        return profile_name_of(self.shape.name)

    @property
    def client_profile_name(self) -> str:
        """Of the client profile that its username has."""
        return self.client_profile or self.profile_name

    @property
    def marker_name(self) -> str:
        """The JNDI name under which the settings are stored."""
        return MARKER_PREFIX + self.shape.name

    def marker(self) -> str:
        """The settings as they are stored: readable by everybody who may read the VPN, so without the password."""
        settings: dict[str, object] = {
            "V": MARKER_VERSION,
            "HP": self.shape.hash_prefix,
            "HC": self.shape.hash_count,
            "QC": self.shape.queue_count,
            "QS": self.queue_spool_mb,
            "CU": self.username,
            "HF": self.hash_function.value,
            "KY": self.key,
        }
        if self.client_profile is not None:
            settings["CF"] = self.client_profile
        return json.dumps(settings, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as its stored settings say."""

    shape: GroupShape
    hash_function: HashFunction
    key: str
    username: str
    queue_spool_mb: int
    client_profile: str | None

    def as_object(self) -> dict[str, object]:
        """For programs; keys are stable."""
        return {
            "name": self.shape.name,
            "hash_prefix": self.shape.hash_prefix,
            "hash_count": self.shape.hash_count,
            "queue_count": self.shape.queue_count,
            "hash_function": self.hash_function.value,
            "key": self.key,
            "username": self.username,
            "queue_spool_mb": self.queue_spool_mb,
            "client_profile": self.client_profile,
        }

    def to_spec(self) -> GroupSpec:
        """What the group is to be, apart from what is not stored."""
        return GroupSpec(
            shape=self.shape,
            hash_function=self.hash_function,
            key=self.key,
            username=self.username,
            password="",
            queue_spool_mb=self.queue_spool_mb,
            client_profile=self.client_profile,
            creates_queues=False,
        )


def read_marker(marker_name: str, text: str) -> StoredGroup | None:
    """The group stored under a JNDI name; None where it is somebody else's entry, or of another version."""
    name = marker_name.removeprefix(MARKER_PREFIX)
    try:
        settings = json.loads(text) if name != marker_name else None
        if not isinstance(settings, Mapping) or settings["V"] != MARKER_VERSION:
            return None
        return StoredGroup(
            shape=GroupShape(GroupName(name), _text(settings["HP"]), _number(settings["HC"]), _number(settings["QC"])),
            hash_function=HashFunction(settings["HF"]),
            key=_text(settings["KY"]),
            username=_text(settings["CU"]),
            queue_spool_mb=_number(settings["QS"]),
            client_profile=_text(settings["CF"]) if "CF" in settings else None,
        )
    except (ValueError, KeyError, RecursionError, UserError):
        return None


def profile_name_of(group: str) -> str:
    """A name for profiles that only this group gets: profiles have short names of letters, digits, `-` and `_`."""
    name = "lbg-" + re.sub(r"[^A-Za-z0-9_-]", "-", group)
    if name == f"lbg-{group}" and len(name) <= _LARGEST_PROFILE_NAME:
        return name
    check = f"-{crc32(group.encode()):08x}"
    return name[: _LARGEST_PROFILE_NAME - len(check)] + check


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")  # noqa: TRY004  # caught here, with the others
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("no number")  # noqa: TRY004  # caught here, with the others
    return value
