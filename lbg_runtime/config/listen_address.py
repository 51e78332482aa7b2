"""Where a server of this project listens, as settings write it."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.whole import whole_number

ADDRESS_FORM = "HOST:PORT with a port from 0 to 65535"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Host and port; port 0 lets the system choose one."""

    host: str
    """Without brackets."""
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address of `HOST:PORT`, a host with colons in brackets; raises `UserError`."""
        host, _, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        name = host[1:-1] if is_bracketed else host
        is_host = bool(name) and name.isprintable() and not set(name) & set("[]/@ ") and (":" in name) == is_bracketed
        if not (is_host and is_port(port)):
            raise UserError("address", repr(text), ADDRESS_FORM)
        return cls(name, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether nobody on another machine can reach the address. A name other than `localhost` may mean anything."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_port(text: str) -> bool:
    """Whether this is the number of a port, 0 included."""
    number = whole_number(text, 5)
    return number is not None and number <= 65_535
