"""A process: an application on the FastAPI extension of the Dapr SDK, as its documentation has one write it.

`python dapr_application.py PORT LOG`, with the events and the log of `plain_application`. Nothing in it is for this
sidecar but what the log says of attempts.
"""

import asyncio
import json
import socket
import sys

import uvicorn
from dapr.ext.fastapi import DaprApp
from fastapi import Body, FastAPI, Request

app = FastAPI()
dapr_app = DaprApp(app)
log = open(sys.argv[3], "a")  # noqa: SIM115 - as long as the process
tries: dict[tuple[str, int], int] = {}


def say(step, request, data):
    told = {name: request.headers[f"lbg-{name}"] for name in ("key", "attempt", "redelivered")}
    log.write(json.dumps({"step": step, "n": data["n"], **told}) + "\n")
    log.flush()


@dapr_app.subscribe(pubsub="pubsub", topic="orders/new")
async def on_order(request: Request, event=Body()):  # noqa: B008 - as the framework has it
    data = event["data"]
    say("begin", request, data)
    name = data["k"], data["n"]
    tries[name] = tries.get(name, 0) + 1
    match data.get("do"):
        case "hang once" if tries[name] == 1 and request.headers["lbg-redelivered"] == "false":
            await asyncio.Event().wait()
        case "retry twice" if tries[name] < 3:
            return {"status": "RETRY"}
        case "raise once" if tries[name] == 1:
            raise RuntimeError
        case "drop":
            return {"status": "DROP"}
    await asyncio.sleep(0.002)
    say("end", request, data)
    return {"status": "SUCCESS"}


if __name__ == "__main__":
    with socket.create_server((sys.argv[1], int(sys.argv[2]))) as listener:
        uvicorn.Server(uvicorn.Config(app, log_config=None)).run([listener])
