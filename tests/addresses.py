"""An address for each process of the tests, where no other one listens."""

import os
import socket

OWN_HOST = f"127.{1 + (os.getpid() >> 16)}.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF}"
"""On loopback, by the number of this process. For servers that are not there yet, or any more: a port of 127.0.0.1 that
is free may be given to another test at any moment, whose server is then taken for the one that is meant."""


def own_port() -> int:
    """A port of `OWN_HOST` for a process that cannot tell which one the system chose; it stays free until then."""
    with socket.socket() as free:
        free.bind((OWN_HOST, 0))
        port: int = free.getsockname()[1]
        return port
