"""An application of `everything`, run as `HOW ADDRESS`: `single` and `bulk` listen there, `pull` asks there.

Each event that came is a line of the file `handled` here: life of the publisher and key, and number. Now and then one
is to come again.
"""

import http.client
import json
import os
import random
import sys
import time
from collections.abc import Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

_RETRIES = 0.001
_AT_A_TIME = 8


def take(facts: Mapping[str, str] | Message) -> str:
    """What is answered to an event."""
    if random.random() < _RETRIES:
        return "RETRY"
    place = "/".join(unquote(facts[name]) for name in ("lbg-publisher", "lbg-key"))
    os.write(HANDLED, f"{place} {facts['lbg-fencing-token']}\n".encode())
    return "SUCCESS"


class Application(BaseHTTPRequestHandler):
    """Events one by one, or in bulks."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """What it wants."""
        wanted: dict[str, Any] = {"pubsubname": "pubsub", "topic": "orders/>", "route": "/orders"}
        if HOW == "bulk":
            wanted["bulkSubscribe"] = {"enabled": True, "maxMessagesCount": _AT_A_TIME, "maxAwaitDurationMs": 20}
        self._answer([wanted])

    def do_POST(self) -> None:
        """Take an event, or several."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if HOW == "single":
            self._answer({"status": take(self.headers)})
            return
        entries = json.loads(body)["entries"]
        self._answer({"statuses": [{"entryId": e["entryId"], "status": take(e["metadata"])} for e in entries]})

    def log_message(self, *_: object) -> None:
        """Nothing of each request."""

    def _answer(self, told: object) -> None:
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Has room for all connections of a member at once."""

    request_queue_size = 128
    daemon_threads = True


def pull(host: str, port: int) -> None:
    """Take events from a stream, and settle each by itself, for as long as the stream lasts."""
    stream, settling = (http.client.HTTPConnection(host, port, timeout=30) for _ in range(2))
    stream.request("POST", f"/v1/pull?max={_AT_A_TIME}")
    for line in stream.getresponse():
        if line.strip():
            event = json.loads(line)
            settling.request("POST", "/v1/settle", json.dumps({"id": event["id"], "status": take(event["metadata"])}))
            settling.getresponse().read()


if __name__ == "__main__":
    HOW, address = sys.argv[1:]
    host, _, port = address.rpartition(":")
    HANDLED = os.open("handled", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while HOW == "pull":
        try:
            pull(host, int(port))
        except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
            # The sidecar is away, or has just left in the middle of a line.
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201  # its log
        time.sleep(0.2)
    with Server((host, int(port)), Application) as server:
        server.serve_forever()
