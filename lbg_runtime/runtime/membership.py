"""Which member this process is, from the command line, the environment, the settings or the host name."""

import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lbg_runtime.config.settings import MembershipMode, MembershipSettings, Settings
from lbg_runtime.core.roles import CountedPlace
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.model.whole import whole_number

INDEX_VARIABLE = "LBG_MEMBER_INDEX"
COUNT_VARIABLE = "LBG_MEMBER_COUNT"
ID_VARIABLE = "LBG_MEMBER_ID"

_ORDINAL = re.compile(r".*-([0-9]{1,6})")
_ID = re.compile(r"[\w.:-]{1,100}")


@dataclass(frozen=True, slots=True)
class Membership:
    """Who this member is."""

    member: MemberId
    """Its name, the same in all its lives."""
    place: CountedPlace | None
    """None if members discover each other."""


def counted_member(index: int) -> MemberId:
    """The name of a counted member."""
    return MemberId(f"member-{index}")


def counted_homes(queues: Iterable[QueueName], count: int) -> dict[QueueName, MemberId]:
    """The homes of a group's queues, given in their order, among so many counted members: queue mod count = index."""
    return {queue: counted_member(index % count) for index, queue in enumerate(queues)}


def membership_of_process(
    settings: Settings, index: int | None = None, count: int | None = None, member_id: str | None = None
) -> Membership:
    """`find_membership` for this process."""
    return find_membership(
        settings.membership,
        settings.group.queue_count,
        os.environ,
        socket.gethostname(),
        os.getpid(),
        index,
        count,
        member_id,
    )


def find_membership(
    settings: MembershipSettings,
    queue_count: int,
    environ: Mapping[str, str],
    host_name: str,
    pid: int,
    index: int | None = None,
    count: int | None = None,
    member_id: str | None = None,
) -> Membership:
    """Take the member's identity from the first source that has it: arguments, environment, settings, then the host
    name; if members discover each other, the process id is added to that.

    Raises `ConfigError` if no source has it, if a number is given to a member that is not counted or an id to one that
    is, or if there are fewer queues than members.
    """
    index, count = _first(index, _whole(environ, INDEX_VARIABLE)), _first(count, _whole(environ, COUNT_VARIABLE))
    if settings.mode is MembershipMode.DISCOVERED:
        if index is not None or count is not None:
            found = "discovered, and a member's index or count is given"
            raise ConfigError("membership.mode", found, "static or ordinal, or no index and no count")
        return Membership(_discovered_id(member_id, settings, environ, host_name, pid), None)
    if member_id is not None:
        found = f"{settings.mode.value}, and a member's id is given"
        raise ConfigError("membership.mode", found, "discovered, or no id")
    place = _counted_place(settings, host_name, _first(index, settings.index), _first(count, settings.count))
    if place.count > queue_count:
        found = f"{place.count} members for {queue_count} queues"
        raise ConfigError("membership.count", found, "at most group.queue_count, or some members are primary nowhere")
    return Membership(counted_member(place.index), place)


def checked_id(where: str, given: str) -> MemberId:
    """The member's name that a user gave; raises `ConfigError` if it is invalid."""
    if not _ID.fullmatch(given):
        raise ConfigError(where, ascii(given), "1 to 100 letters, digits and any of _ . : -")
    return MemberId(given)


def _counted_place(settings: MembershipSettings, host_name: str, index: int | None, count: int | None) -> CountedPlace:
    if count is None:
        raise ConfigError("membership.count", "not set", f"the number of planned members, here or in {COUNT_VARIABLE}")
    if index is None and settings.mode is MembershipMode.ORDINAL:
        index = _ordinal(host_name)
    if index is None:
        raise ConfigError("membership.index", "not set", f"this member's number from 0, here or in {INDEX_VARIABLE}")
    try:
        return CountedPlace(index, count)
    except UserError as error:
        raise ConfigError(error.where, error.found, error.expected) from None


def _discovered_id(
    argument: str | None, settings: MembershipSettings, environ: Mapping[str, str], host_name: str, pid: int
) -> MemberId:
    for where, given in (("member id", argument), (f"environment {ID_VARIABLE}", environ.get(ID_VARIABLE))):
        if given:
            return checked_id(where, given)
    # In a container, both are the same in every life; elsewhere, the process id tells members on one host apart.
    return MemberId(settings.id or f"{host_name[:90]}-{pid}")


def _first(*candidates: int | None) -> int | None:
    return next((candidate for candidate in candidates if candidate is not None), None)


def _whole(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if text == "":
        return None
    if (number := whole_number(text, 9)) is None:
        raise ConfigError(f"environment {name}", repr(text), "a whole number")
    return number


def _ordinal(host_name: str) -> int:
    # Only its first label, as the host name may be fully qualified.
    match = _ORDINAL.fullmatch(host_name.partition(".")[0])
    if match is None:
        raise ConfigError(
            "membership.mode", f"host name {host_name!r}", f"a host name that ends in -NUMBER, or {INDEX_VARIABLE}"
        )
    return int(match[1])
