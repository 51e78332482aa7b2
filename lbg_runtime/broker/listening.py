"""Where the servers of a broker listen."""

import os
import socket

from lbg_runtime.model.errors import UserError


def listen(name: str, host: str, port: int) -> socket.socket:
    """A socket that listens there; raises a `UserError` that begins with `name` if the address cannot be had."""
    # One family only, or a name with two would get two different ports if the system chooses.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # The number's text is shorter than the error's own; a host that has no address has neither.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)
        raise UserError(f"{name} {host}:{port}", reason, "an address of this machine with a free port") from error
