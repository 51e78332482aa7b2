"""What a group is to be on the broker, and what its objects there are called. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from lbg_runtime.admin.roles import NO_TOPICS, Grant, Login, Role, Topics, grant_of
from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.failure import ERROR_TOPIC_PREFIX
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName, QueueName
from lbg_runtime.model.topic import LARGEST_TOPIC_BYTES

MARKER_PREFIX = "lbg/"
"""How JNDI names of groups begin."""

MARKER_VERSION = 1
_MARKED_USERNAMES = {Role.PUBLISHER: "PU", Role.CONDUCTOR: "DU"}
"""Under which keys those usernames are stored that a group need not have."""
LARGEST_MARKER = 200
"""Characters that the physical name of a JNDI queue may have."""

SHARED_USERNAME = "default"
"""The client username that every VPN has; a group that uses it has no account of its own."""

_LARGEST_PROFILE_NAME = 32

USERNAME_SETTINGS = {
    Role.PUBLISHER: "semp.publisher.username",
    Role.CONDUCTOR: "semp.conductor.username",
    Role.MEMBER: "connection.username",
}


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Everything that an administrator says about a group.

    Raises `UserError` for what no broker would accept, beyond what the settings were checked for when they were loaded.
    """

    shape: GroupShape
    hash_function: HashFunction
    key: str
    """The rule of `group.key`, as it is written."""
    accounts: Mapping[Role, Login]
    """Of each role that has one of its own; members always have. A password is set when its username is created, never
    stored in the group's settings, and never changed."""
    queue_spool_mb: int
    client_profile: str | None
    """An existing one that is not ours; None for the group's own."""
    creates_queues: bool
    """Whether members may create queues."""
    topics: Topics = NO_TOPICS
    """Topics of members' work; empty if nothing is to be made, as for a group that is being deleted."""
    aside: tuple[QueueName, ...] = ()
    """Queues for what members set aside, as errors or parked; each subscribes only to its own name."""
    is_aside_whole: bool = False
    """Whether `aside` has all of them; False if handlers may need more."""
    borrowed: tuple[QueueName, ...] = ()
    """Queues of others to which members move messages: looked at, and never changed."""
    binds: int = 1
    """Flows of members that each of the group's queues has to let bind at once."""

    def __post_init__(self) -> None:
        self._check_usernames()
        for topic in self.grant(Role.MEMBER).publish if self.has_account else ():
            if (size := len(topic.encode())) > LARGEST_TOPIC_BYTES:
                # Topics that are settings were measured when these were loaded; these are made of them.
                is_of_name = topic.startswith((ERROR_TOPIC_PREFIX, PARKING_PREFIX))
                where = "group.name" if is_of_name else "group.control_topic"
                raise ConfigError(where, f"{size} bytes in {topic}", f"at most {LARGEST_TOPIC_BYTES}")
        if len(marker := self.marker()) > LARGEST_MARKER:
            raise UserError(
                "the settings of the group",
                f"{len(marker)} characters as they are stored: {marker}",
                f"at most {LARGEST_MARKER}: a shorter hash prefix, key or client username",
            )

    def _check_usernames(self) -> None:
        taken: set[str] = set()
        for role, where in USERNAME_SETTINGS.items():
            if role not in self.accounts:
                continue
            name = self.accounts[role].username
            if any(c in name for c in "*?"):
                raise ConfigError(where, repr(name), "none of * ?")
            if name in taken or (len(self.accounts) > 1 and name == SHARED_USERNAME):
                raise ConfigError(where, repr(name), "a name of its own, as others of the group have one")
            taken.add(name)

    @property
    def username(self) -> str:
        """The client username of members."""
        return self.accounts[Role.MEMBER].username

    @property
    def logins(self) -> Mapping[Role, Login]:
        """The accounts that are the group's own."""
        return self.accounts if self.has_account else {}

    def grant(self, role: Role) -> Grant:
        """What the account of a role may do."""
        given = frozenset(self.logins)
        return grant_of(role, given, self.shape, self.topics, creates_queues=self.creates_queues)

    @property
    def has_account(self) -> bool:
        """Whether the group has a client username, an ACL profile and perhaps a client profile of its own."""
        return self.username != SHARED_USERNAME

    @property
    def manages_client_profile(self) -> bool:
        """Whether the client profile is the group's own."""
        return self.has_account and self.client_profile is None

    def profile_name(self, role: Role) -> str:
        """The name of a role's ACL profile, and of its client profile if that is the group's own."""
        # With an empty level, so that it is the name of no other group.
        name = self.shape.name if role is Role.MEMBER else f"{self.shape.name}//{role.value}"
        return profile_name_of(name)

    def client_profile_name(self, role: Role = Role.MEMBER) -> str:
        """The name of the client profile that a role's username has."""
        return self.client_profile or self.profile_name(role)

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
        for role, key in _MARKED_USERNAMES.items():
            if role in self.accounts:
                settings[key] = self.accounts[role].username
        return _written(settings)


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as its stored settings describe it."""

    shape: GroupShape
    hash_function: HashFunction
    key: str
    usernames: Mapping[Role, str]
    """The client username of each role that has one; members always have."""
    queue_spool_mb: int
    client_profile: str | None

    @property
    def username(self) -> str:
        """The client username of members."""
        return self.usernames[Role.MEMBER]

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
            "publisher": self.usernames.get(Role.PUBLISHER),
            "conductor": self.usernames.get(Role.CONDUCTOR),
        }

    def to_spec(self) -> GroupSpec:
        """What the group is to be, apart from what is not stored."""
        return GroupSpec(
            shape=self.shape,
            hash_function=self.hash_function,
            key=self.key,
            accounts={role: Login(username, "") for role, username in self.usernames.items()},
            queue_spool_mb=self.queue_spool_mb,
            client_profile=self.client_profile,
            creates_queues=False,
        )


def read_marker(name: str, text: str) -> StoredGroup | None:
    """The group of this name, whose stored settings these are; None if they are no such, or of another version."""
    try:
        settings = json.loads(text)
        if not isinstance(settings, Mapping) or settings["V"] != MARKER_VERSION:
            return None
        return StoredGroup(
            shape=GroupShape(GroupName(name), _text(settings["HP"]), _number(settings["HC"]), _number(settings["QC"])),
            hash_function=HashFunction(settings["HF"]),
            key=_text(settings["KY"]),
            usernames={
                Role.MEMBER: _text(settings["CU"]),
                **{role: _text(settings[key]) for role, key in _MARKED_USERNAMES.items() if key in settings},
            },
            queue_spool_mb=_number(settings["QS"]),
            client_profile=_text(settings["CF"]) if "CF" in settings else None,
        )
    except (ValueError, KeyError, RecursionError, UserError):
        return None


def with_queue_count(marker: str, queue_count: int) -> str:
    """Stored settings that `read_marker` can read, with another number of queues."""
    return _written({**json.loads(marker), "QC": queue_count})


def profile_name_of(group: str) -> str:
    """A name for profiles that only this group gets: profiles have short names of letters, digits, `-` and `_`."""
    name = "lbg-" + re.sub(r"[^A-Za-z0-9_-]", "-", group)
    if name == f"lbg-{group}" and len(name) <= _LARGEST_PROFILE_NAME:
        return name
    check = f"-{crc32(group.encode()):08x}"
    return name[: _LARGEST_PROFILE_NAME - len(check)] + check


def _written(settings: Mapping[str, object]) -> str:
    return json.dumps(settings, separators=(",", ":"), ensure_ascii=False)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")  # noqa: TRY004  # caught here, with the others
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("no number")  # noqa: TRY004  # caught here, with the others
    return value
