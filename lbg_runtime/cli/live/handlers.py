"""The handler of a live group's members: a few milliseconds of pretended work, so that a crash cuts some off."""

import random

import anyio

from lbg_runtime import Handlers, Message

handlers = Handlers()

_WORK_S = (0.001, 0.010)


@handlers.handler("orders/>")
async def on_order(message: Message) -> None:  # noqa: ARG001 - the work does not depend on the order
    """Take as long as a small call to another service would."""
    await anyio.sleep(random.uniform(*_WORK_S))
