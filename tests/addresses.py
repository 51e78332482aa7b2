"""An address for each process of the tests, where no other one listens."""

import os
import socket
from contextlib import ExitStack

OWN_HOST = f"127.{1 + (os.getpid() >> 16)}.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF}"
"""On loopback, by the number of this process. For servers that are not there yet, or any more: a port of 127.0.0.1 that
is free may be given to another test at any moment, whose server is then taken for the one that is meant."""


def own_ports(count: int) -> list[int]:
    """Ports of `OWN_HOST` for processes that cannot tell which ones the system chose; they stay free until then."""
    with ExitStack() as ending:
        found = [ending.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind((OWN_HOST, 0))
        return [each.getsockname()[1] for each in found]
