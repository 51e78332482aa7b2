"""Bundles that cannot be sent keep no other from being sent; virtual time, on control threads that a test plays."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.model.message import Message
from lbg_runtime.transport.base import MAX_TOGETHER
from lbg_runtime.transport.solace.transactions import Transactions


class Threads:
    """Every commit succeeds at once, but that there may be no memory to begin one."""

    def __init__(self) -> None:
        self.has_memory = True

    def begin(self, _: Callable[..., None], __: object) -> asyncio.Future[None]:
        if not self.has_memory:
            raise MemoryError
        committed = asyncio.get_running_loop().create_future()
        committed.set_result(None)
        return committed


class Bench:
    def __init__(self) -> None:
        self.threads = Threads()
        self._transactions = Transactions(
            None, cast(Any, self.threads), lambda message: (message, message.topic), print
        )

    def send(self, count: int = 1) -> asyncio.Future[None]:
        end = asyncio.get_running_loop().create_future()
        self._transactions.send([Message("t", b"")] * count, end)
        return end


async def test_a_commit_that_cannot_be_begun_fails_and_keeps_no_later_one_from_its_end() -> None:
    bench = Bench()
    bench.threads.has_memory = False
    ends = [bench.send(), bench.send()]
    for end in ends:
        with pytest.raises(PublishFailed, match="MemoryError"):
            await end
    bench.threads.has_memory = True
    await bench.send()


async def test_a_bundle_that_is_too_large_is_refused_and_holds_nobody_up() -> None:
    bench = Bench()
    with pytest.raises(PublishRefused):
        await bench.send(MAX_TOGETHER + 1)
    await bench.send()
