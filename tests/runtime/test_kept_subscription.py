"""A topic counts as heard once the broker has said so on the connection that there is; in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from lbg_runtime.model.errors import SubscribeFailed
from lbg_runtime.runtime.kept_subscription import KeptSubscription

REFUSED = SubscribeFailed("control", "Subscription ACL Denied", permanent=True)
ANSWER_S = 0.5


class _Session:
    """Answers late; `failure` is the answer as long as it is set."""

    failure: SubscribeFailed | None = None

    def __init__(self) -> None:
        self.asked_at_s: list[float] = []

    async def subscribe(self, topic: str, sink: object) -> None:
        self.asked_at_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(ANSWER_S)
        if self.failure is not None:
            raise self.failure


@asynccontextmanager
async def kept(session: _Session, told: list[bool]) -> AsyncIterator[KeptSubscription]:
    listening = KeptSubscription(cast(Any, session), "control", lambda _: None)
    keeping = asyncio.create_task(listening.keep(await listening.subscribe(), told.append))
    listening.connection_changed(True)
    yield listening
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_each_connection_counts_when_the_broker_has_answered() -> None:
    told: list[bool] = []
    async with kept(_Session(), told) as listening:
        for times in (1, 2):
            await asyncio.sleep(ANSWER_S / 2)
            assert told == [False] * (times - 1)
            await asyncio.sleep(ANSWER_S)
            assert told == [False] * times
            listening.connection_changed(False)
            listening.connection_changed(True)


async def test_an_answer_that_comes_when_the_connection_is_gone_again_does_not_count() -> None:
    told: list[bool] = []
    session = _Session()
    async with kept(session, told) as listening:
        await asyncio.sleep(ANSWER_S / 2)
        listening.connection_changed(False)
        await asyncio.sleep(100)
        assert told == []
        assert len(session.asked_at_s) == 2  # nobody is asked without a connection
        listening.connection_changed(True)
        await asyncio.sleep(2 * ANSWER_S)
        assert told == [False]


async def test_a_refusal_counts_as_deaf_until_the_broker_says_yes() -> None:
    told: list[bool] = []
    session = _Session()
    async with kept(session, told) as listening:
        await asyncio.sleep(10)
        told.clear()
        session.failure = REFUSED
        listening.connection_changed(False)
        listening.connection_changed(True)
        await asyncio.sleep(100)
        assert told == []
        session.failure = None
        await asyncio.sleep(40)
        assert told == [True]


async def test_the_waits_are_short_again_when_the_connection_is_back() -> None:
    session = _Session()
    async with kept(session, []) as listening:
        await asyncio.sleep(1)
        session.failure = REFUSED
        for _ in range(2):
            session.asked_at_s.clear()
            listening.connection_changed(False)
            listening.connection_changed(True)
            await asyncio.sleep(60)
            first = session.asked_at_s[0]
            assert [each - first for each in session.asked_at_s[1:5]] == [1.5, 4.0, 8.5, 17.0]
