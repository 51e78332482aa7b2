"""The examples of docs/failing.md do what the page says."""

import asyncio
import sys
from collections import Counter

import pytest

from lbg_runtime import Delivery, Handlers, Message, Proceed
from lbg_runtime.testing import Running
from tests.docs.pages import DOCS, blocks


async def test_an_outage_is_waited_for_and_what_will_never_do_is_parked_at_once(lbg_running: Running) -> None:
    handlers = Handlers()
    handler, _ = blocks(DOCS / "failing.md", "py")
    tries: Counter[str] = Counter()

    async def book(message: Message) -> None:
        tries[str(message.key)] += 1
        if message.key == "wrong":
            raise ValueError
        if tries["right"] <= 9:
            raise ConnectionRefusedError

    exec(handler, {"handlers": handlers, "Message": Message, "book": book})  # noqa: S102  # it is our own page
    async with lbg_running(handlers) as group:
        for key in ("right", "wrong"):
            await group.publish("payments/new", "", key=key)
        await group.settled()
        assert [each.original.key for each in group.parked()] == ["wrong"]
    assert tries == {"right": 10, "wrong": 1}


async def test_the_middleware_leaves_a_line_before_and_after_an_attempt(
    lbg_running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = Handlers()
    _, middleware = blocks(DOCS / "failing.md", "py")
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
