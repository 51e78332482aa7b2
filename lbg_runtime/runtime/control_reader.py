"""What those who are no members understand of a group's control topic."""

import structlog

from lbg_runtime.core.group.control_codec import (
    CONTROL_VERSION,
    ControlMessageRefused,
    RefusalReason,
    decode,
)
from lbg_runtime.core.group.control_messages import ControlMessage, Inquiry
from lbg_runtime.model.ids import GroupName

_log = structlog.get_logger(__name__)


class ControlReader:
    """Belongs to one observer or conductor."""

    def __init__(self, group: GroupName) -> None:
        self._group = group
        self._has_told = False

    def understand(self, payload: bytes) -> ControlMessage | Inquiry | None:
        """What somebody said in the group; None for other bytes.

        Only another version is told, once: members that speak it are there, and would be taken for missing. All else
        the members log themselves.
        """
        try:
            return decode(payload, self._group)
        except ControlMessageRefused as refusal:
            if refusal.reason is RefusalReason.VERSION and not self._has_told:
                self._has_told = True
                _log.warning("members_not_understood", found=refusal.found, expected=f"version {CONTROL_VERSION}")
            return None
