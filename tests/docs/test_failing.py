"""The middleware of docs/failing.md says what began and did not end."""

import asyncio
import sys

import pytest

from lbg_runtime import Delivery, Handlers, Message, Proceed
from lbg_runtime.testing import Running
from tests.docs.pages import DOCS, blocks


async def test_the_middleware_leaves_a_line_before_and_after_an_attempt(
    lbg_running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = Handlers()
    (middleware,) = blocks(DOCS / "failing.md", "py")
    names = {"handlers": handlers, "sys": sys, "Delivery": Delivery, "Message": Message, "Proceed": Proceed}
    exec(middleware, names)  # noqa: S102  # it is our own page

    has_begun = asyncio.Event()

    @handlers.handler("orders/new")
    async def on_order(message: Message) -> None:
        if message.key == "k2":
            has_begun.set()
            await asyncio.get_running_loop().create_future()

    async with lbg_running(handlers) as group:
        await group.publish("orders/new", "", key="k1")
        await group.settled()
        await group.publish("orders/new", "", key="k2")
        await has_begun.wait()
        lines = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert [line[0] for line in lines] == ["begins", "ends", "begins"]
    assert [line[2] for line in lines if line[0] == "begins"] == ["k1", "k2"]
