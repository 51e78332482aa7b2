"""How to test your own handlers: real members, real queues, no sockets, no waiting. `pytest handlers` runs it."""

import asyncio
from collections.abc import Callable

import pytest

from handlers import bookings, orders
from lbg_runtime import Message
from lbg_runtime.testing import HandlerFunction, LawsBroken, Running

pytestmark = pytest.mark.asyncio


async def test_the_orders_of_a_key_are_handled_in_their_order(lbg_running: Running) -> None:
    async with lbg_running(orders, members=2) as group:
        await group.publish("orders/new", "first", "second", "third", key="4711")
        await group.publish("orders/new", "alone", key="4712")
        await group.settled()
        group.assert_handled({"4711": ["first", "second", "third"], "4712": ["alone"]})


class SlowBooks:
    """Stands in for the guard of `handlers.bookings`: a second for every booking, and no database."""

    def __init__(self) -> None:
        self.booked: list[bytes] = []

    async def once(self, message: Message, _effect: Callable[..., object]) -> bool:
        await asyncio.sleep(1)
        self.booked.append(message.payload)
        return True


async def test_what_a_killed_member_was_at_comes_again_to_another(
    lbg_running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = SlowBooks()
    monkeypatch.setattr(bookings, "guard", books)
    async with lbg_running(bookings, members=2) as group:
        await group.publish("orders/new", "first", key="4711")
        attempt = await group.started(key="4711")
        group.kill(attempt.member)
        await group.settled()
        (handled,) = group.handled("4711")
        assert handled.redelivered
        assert handled.member != attempt.member
        assert books.booked == [b"first"], "the other one never came so far"


def latest_first(handle: HandlerFunction) -> HandlerFunction:
    """What not to put around a handler: it lets messages gather, and passes them on in the wrong order."""
    gathered: list[Message] = []

    async def gather(message: Message) -> None:
        gathered.append(message)
        if len(gathered) == 2:
            while gathered:
                await handle(gathered.pop())

    return gather


async def test_a_wrapper_that_reorders_a_key_is_caught(lbg_running: Running) -> None:
    with pytest.raises(LawsBroken, match="publisher/4711: 1 handled first after 2 had started"):
        async with lbg_running(orders, around=latest_first) as group:
            await group.publish("orders/new", "first", "second", key="4711")
            await group.settled()
