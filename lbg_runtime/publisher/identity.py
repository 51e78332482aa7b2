"""The name of one life of a publisher."""

import os
import re
import socket
import time


def new_publisher_id() -> str:
    """An id unique across hosts, processes and time: `<host>-<process>-<start, microseconds, hex>`.

    Key sequences start at 1 with every life of a publisher, so two lives must never share an id.
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "host"
    return f"{host}-{os.getpid()}-{time.time_ns() // 1000:x}"
