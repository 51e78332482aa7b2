"""Reads a group's control topic for those who are not members: observers and conductors."""

from dataclasses import dataclass

import structlog

from lbg_runtime.core.group.control_codec import (
    CONTROL_VERSION,
    ControlMessageRefused,
    RefusalReason,
    decode,
)
from lbg_runtime.core.group.control_messages import ControlMessage, Inquiry
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.model.ids import GroupName

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """Says that somebody speaks another version: members may be there of which nothing is known."""

    found: str
    """The other version, such as `version 2`."""
    heard_ms: int

    @property
    def expected(self) -> str:
        """The version that is understood here, such as `version 3`."""
        return f"version {CONTROL_VERSION}"

    def __str__(self) -> str:
        return f"members are not understood: they speak control messages of {self.found}, expected {self.expected}"


class ControlReader:
    """Belongs to one observer or conductor. Times are of one monotonic clock."""

    def __init__(self, group: GroupName, timing: MembershipTiming) -> None:
        self._group = group
        self._timing = timing
        self._other: OtherVersion | None = None

    def understand(self, payload: bytes, now_ms: int) -> ControlMessage | Inquiry | None:
        """Decode what somebody said in the group; None for other bytes.

        Only another version is logged, once: members that speak it exist, and would seem to be missing. Everything else
        is logged by the members.
        """
        try:
            return decode(payload, self._group)
        except ControlMessageRefused as refusal:
            if refusal.reason is RefusalReason.VERSION:
                is_first = self._other is None
                self._other = OtherVersion(refusal.found, now_ms)
                if is_first:
                    _log.warning("members_not_understood", found=refusal.found, expected=self._other.expected)
            return None

    def other_version(self, now_ms: int) -> OtherVersion | None:
        """What the last message of another version said; None if that is so long ago that its sender, silent since
        then, would count as dead."""
        other = self._other
        return other if other is not None and now_ms - other.heard_ms < self._timing.dead_ms else None
