"""What the kit's own tests build from."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.registry import Handlers


@pytest.fixture
def handlers() -> Callable[..., Handlers]:
    """Makes handlers of `orders/>`: one that does `work`, and takes so long."""

    def make(work: Callable[[Message], Awaitable[object]] | None = None, *, seconds: float = 0, **said) -> Handlers:
        made = Handlers()

        @made.handler("orders/>", **said)
        async def on_order(message: Message) -> None:
            if seconds:
                await asyncio.sleep(seconds)
            if work is not None:
                await work(message)

        return made

    return make
