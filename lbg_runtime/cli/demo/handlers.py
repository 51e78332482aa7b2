"""The demo's handler: a few milliseconds of pretended work, so that handlings overlap and some are cut off."""

import random

import anyio

from lbg_runtime import Handlers, Message

handlers = Handlers()

_WORK_S = (0.001, 0.010)


@handlers.handler("orders/>")
async def on_order(message: Message) -> None:  # noqa: ARG001 - the demo's work does not depend on the order
    """Take as long as a small call to another service would."""
    await anyio.sleep(random.uniform(*_WORK_S))
