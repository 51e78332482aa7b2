"""Where a server of this project listens, as settings write it."""

import os
import socket
from collections.abc import Callable
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
        if not (is_host and is_encodable(name) and is_port(port)):
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

    def listen(self, refused: Callable[[str, str], UserError]) -> socket.socket:
        """A socket that listens there; raises what `refused` makes of the reason, and of what was expected, if the
        address cannot be had."""
        # One family only, or a name with two would get two different ports if the system chooses.
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            # The number's text is shorter than the error's own; a host that has no address has neither.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)
            raise refused(reason, "an address of this machine with a free port") from error

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_encodable(host: str) -> bool:
    """Whether the system can be asked for this host: if a part of the name is empty or too long, Python raises instead,
    and not an `OSError`."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def is_port(text: str) -> bool:
    """Whether this is the number of a port, 0 included."""
    number = whole_number(text, 5)
    return number is not None and number <= 65_535
