"""Where the servers of a broker listen."""

import socket

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import UserError


def listen(name: str, host: str, port: int) -> socket.socket:
    """A socket that listens there; raises a `UserError` that begins with `name` if the address cannot be had."""
    return ListenAddress(host, port).listen(
        lambda reason, expected: UserError(f"{name} {host}:{port}", reason, expected)
    )
