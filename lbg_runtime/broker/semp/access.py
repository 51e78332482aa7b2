"""Administrators, and what each of them may do."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.schema import Level
from lbg_runtime.model.semp_code import SempCode


class AccessLevel(Enum):
    """Rights, in one VPN or in the whole broker; each one includes those before it."""

    NONE = "none"
    READ_ONLY = "read-only"
    READ_WRITE = "read-write"
    ADMIN = "admin"

    def includes(self, wanted: "AccessLevel") -> bool:
        """Whether it suffices for an action that needs `wanted`."""
        order = tuple(AccessLevel)
        return order.index(self) >= order.index(wanted)


@dataclass(frozen=True, slots=True)
class Administrator:
    """Someone who may send requests. Rights in the whole broker are rights in each VPN."""

    username: str
    password: str = field(repr=False)
    level: AccessLevel = AccessLevel.NONE
    """Rights in the whole broker."""
    vpn_levels: Mapping[str, AccessLevel] = field(default_factory=dict)

    def level_in(self, vpn: str) -> AccessLevel:
        """Rights in one VPN, never more than read-write."""
        if self.level.includes(AccessLevel.READ_WRITE):
            return AccessLevel.READ_WRITE
        own = self.vpn_levels.get(vpn, AccessLevel.NONE)
        return own if own.includes(self.level) else self.level

    def check_read(self, vpn: str) -> None:
        """Raise `SempFault` if they may not see this VPN."""
        if not self.level_in(vpn).includes(AccessLevel.READ_ONLY):
            raise SempFault(SempCode.UNAUTHORIZED, f"{self.username} may not read message VPN {vpn}")

    def check_write(self, vpn: str, level: Level = Level.VPN) -> None:
        """Raise `SempFault` if they may not change this."""
        held = self.level if level is Level.GLOBAL else self.level_in(vpn)
        if not held.includes(AccessLevel.READ_WRITE):
            raise SempFault(SempCode.UNAUTHORIZED, f"{self.username} lacks {level.value} access")


DEFAULT_ADMINISTRATORS = (Administrator("admin", "admin", AccessLevel.ADMIN),)
"""As in the vendor's container; the development broker listens on loopback."""


def find_administrator(administrators: tuple[Administrator, ...], username: str, password: str) -> Administrator | None:
    """Find an administrator; None if the name or the password is wrong."""
    for each in administrators:
        if each.username == username and secrets.compare_digest(each.password.encode(), password.encode()):
            return each
    return None
