"""What those who are no members understand of a group's control topic."""

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
    """That somebody speaks another version, so that members may be there of which nothing is known."""

    found: str
    """As `version 2`."""
    heard_ms: int

    @property
    def expected(self) -> str:
        """What is understood here, as `version 3`."""
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
        """What somebody said in the group; None for other bytes.

        Only another version is logged, once: members that speak it are there, and would be taken for missing. All else
        the members log themselves.
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
        """The last message of another version; None if whoever sent it would be dead for its silence since then."""
        other = self._other
        return other if other is not None and now_ms - other.heard_ms < self._timing.dead_ms else None
