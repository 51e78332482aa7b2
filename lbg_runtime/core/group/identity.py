"""The identity of a member within its group."""

from collections.abc import Mapping
from dataclasses import dataclass

from lbg_runtime.core.group.control_messages import Life, is_valid_text
from lbg_runtime.core.group.placement import Candidate
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.ids import GroupName, MemberId


@dataclass(frozen=True, slots=True)
class Identity:
    """What this member says about itself in every heartbeat. Raises `UserError` for values that cannot be sent."""

    group: GroupName
    member: MemberId
    life: Life
    weight: int
    settings: Mapping[str, str]
    """The settings that must be the same on all members of the group, by name; values may be empty."""

    def __post_init__(self) -> None:
        texts = [("group.name", self.group), ("membership.member", self.member)]
        texts += [("membership.settings", name) for name in self.settings]
        texts += [(name, value) for name, value in self.settings.items() if value]
        for where, text in texts:
            if not is_valid_text(text):
                raise UserError(where, ascii(text), "1 to 250 printable characters")
        Candidate(self.member, self.weight)  # raises for a weight that placement cannot use
