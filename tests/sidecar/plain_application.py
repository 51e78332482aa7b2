"""A process: an application as the FastAPI extension of the Dapr SDK makes it, written on starlette alone.

`python plain_application.py PORT LOG`. Its routes and answers are those that dapr-ext-fastapi 1.18.3 has when one asks
it: a list of subscriptions, handlers under the path `/events/<pubsub>/<topic>`, and what a handler returns as JSON,
`null` where it returns nothing.

Each event is a line in the log when it begins and one when it ends. The message's data says what to do with it.
"""

import asyncio
import json
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

TOPIC = "orders/new"
ROUTE = f"/events/pubsub/{TOPIC}"


class Application:
    def __init__(self, log):
        self.log = log
        self.tries = {}

    def say(self, step, request, data):
        told = {name: request.headers[f"lbg-{name}"] for name in ("key", "attempt", "redelivered")}
        told["traceparent"] = request.headers.get("traceparent")
        self.log.write(json.dumps({"step": step, "n": data["n"], **told}) + "\n")
        self.log.flush()

    async def subscribe(self, _):
        return JSONResponse([{"pubsubname": "pubsub", "topic": TOPIC, "route": ROUTE, "metadata": {}}])

    async def on_order(self, request):
        data = (await request.json())["data"]
        self.say("begin", request, data)
        tries = self.tries[data["k"], data["n"]] = self.tries.get((data["k"], data["n"]), 0) + 1
        match data.get("do"):
            case "hang once" if request.headers["lbg-redelivered"] == "false" and request.headers["lbg-attempt"] == "1":
                await asyncio.Event().wait()
            case "retry twice" if tries < 3:
                return JSONResponse({"status": "RETRY"})
            case "drop":
                return JSONResponse({"status": "DROP"})
        self.say("end", request, data)
        return JSONResponse(None)

    def routes(self):
        return [Route("/dapr/subscribe", self.subscribe), Route(ROUTE, self.on_order, methods=["POST"])]


def main():
    with open(sys.argv[3], "a") as log, socket.create_server((sys.argv[1], int(sys.argv[2]))) as listener:
        uvicorn.Server(uvicorn.Config(Starlette(routes=Application(log).routes()), log_config=None)).run([listener])


if __name__ == "__main__":
    main()
