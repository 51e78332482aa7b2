"""Which member this process is, from the command line, the environment, the settings or the host name.

Two members that claim one index are not found out: both would hold back from giving way to the other, and queues may
stay with one of them. Order is not at risk.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lbg_runtime.config.settings import MembershipMode, MembershipSettings
from lbg_runtime.core.roles import check_membership
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.ids import MemberId

INDEX_VARIABLE = "LBG_MEMBER_INDEX"
COUNT_VARIABLE = "LBG_MEMBER_COUNT"

_ORDINAL = re.compile(r".*-([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Membership:
    """This member's place among the planned ones."""

    index: int
    count: int

    @property
    def member(self) -> MemberId:
        """The member's name, the same in every life of it."""
        return MemberId(f"member-{self.index}")


def find_membership(
    settings: MembershipSettings,
    queue_count: int,
    environ: Mapping[str, str],
    host_name: str,
    index: int | None = None,
    count: int | None = None,
) -> Membership:
    """The first source that knows wins: arguments, environment, settings, host name (ordinal mode only).

    Raises `ConfigError` where none knows, or where queues would not suffice for the members.
    """
    count = _first(count, _whole(environ, COUNT_VARIABLE), settings.count)
    if count is None:
        raise ConfigError("membership.count", "not set", f"the number of planned members, here or in {COUNT_VARIABLE}")
    index = _first(index, _whole(environ, INDEX_VARIABLE), settings.index)
    if index is None and settings.mode is MembershipMode.ORDINAL:
        index = _ordinal(host_name)
    if index is None:
        raise ConfigError("membership.index", "not set", f"this member's number from 0, here or in {INDEX_VARIABLE}")
    try:
        check_membership(index, count)
    except UserError as error:
        raise ConfigError(error.where, error.found, error.expected) from None
    if count > queue_count:
        raise ConfigError(
            "membership.count",
            f"{count} members for {queue_count} queues",
            "at most group.queue_count, or some members are primary nowhere",
        )
    return Membership(index, count)


def _first(*candidates: int | None) -> int | None:
    return next((candidate for candidate in candidates if candidate is not None), None)


def _whole(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if text == "":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ConfigError(f"environment {name}", repr(text), "a whole number")
    return int(text)


def _ordinal(host_name: str) -> int:
    # The name alone, should the host name be a full one.
    match = _ORDINAL.fullmatch(host_name.partition(".")[0])
    if match is None:
        raise ConfigError(
            "membership.mode", f"host name {host_name!r}", f"a host name that ends in -NUMBER, or {INDEX_VARIABLE}"
        )
    return int(match[1])
