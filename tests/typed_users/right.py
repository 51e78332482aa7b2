# ruff: noqa: T201
"""What users may write, in every form that docs/handlers.md, publishing.md and testing.md have: no checker objects.

Only type checkers read this, by `tests/test_typed_users.py`.
"""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict, assert_type, runtime_checkable

import pytest
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from structlog.stdlib import BoundLogger
from structlog.typing import FilteringBoundLogger

from lbg_runtime import (
    App,
    Batch,
    BatchItem,
    Delivery,
    Handlers,
    Headers,
    Message,
    Proceed,
    Receipt,
    State,
    TerminalFailure,
    open_publisher,
)
from lbg_runtime.guard.memory import MemoryGuard
from lbg_runtime.guard.postgres import PostgresEffect, PostgresGuard
from lbg_runtime.guard.protocol import Guard
from lbg_runtime.guard.sqlite import SqliteEffect, SqliteGuard
from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.model.message import FencingToken
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.runtime.supervisor import StopReport
from lbg_runtime.testing import Attempt, BrokerOnPort, Group, Handled, HandlerFunction, LawsBroken, LifeState, Running

handlers = Handlers()


@dataclass
class Order:
    number: int
    fruit: str


class Row(TypedDict):
    name: str


class Pool:
    async def price(self, fruit: str) -> int:
        return len(fruit)


@runtime_checkable
class Clock(Protocol):
    def now(self) -> int: ...


# -- lifespans, hooks, middleware


@handlers.lifespan
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


@handlers.lifespan
async def nothing() -> AsyncGenerator[None, None]:
    yield


@handlers.lifespan
async def bills_group() -> AsyncIterator[HashedPublisher]:
    async with open_publisher("bills.yaml") as publisher:
        yield publisher


@handlers.on_assigned
@handlers.on_drain
@handlers.on_revoked
async def look(queue: str, epoch: int) -> None: ...


@handlers.middleware
async def audit(message: Message, proceed: Proceed, it: Delivery, log: FilteringBoundLogger) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(proceed(message))
    log.info("audited", delivery=it.delivery_id)


@handlers.middleware
async def bounded(message: Message, proceed: Proceed, *, pool: State[Pool]) -> object:
    await pool.price("apple")
    return await asyncio.wait_for(proceed(message), 3)


class Auditor:
    async def audit(self, message: Message, proceed: Callable[[Message], Awaitable[object]]) -> None:
        await proceed(message)


handlers.middleware(Auditor().audit)

# -- parameters


@handlers.handler("orders/new", "orders/old", attempts=5, timeout="10s", then="error_queue", backoff=("1s", "30s"))
async def on_order(order: Order, message: Message, log: FilteringBoundLogger, it: Delivery, tries: int = 3) -> None:
    log.info("order_taken", number=order.number, topic=message.topic, tries=tries)
    assert_type(message.key, str | None)
    assert_type(message.fencing_token, FencingToken | None)
    assert_type(message.headers.sequence_number, int | None)
    print(it.queue.upper(), it.epoch + 1, it.message.payload.decode(), it.redelivered)


@handlers.handler("payments/>", attempts="unlimited", retriable=(OSError,), terminal={KeyError}, then="park")
def on_payment(message: Message) -> None:
    raise TerminalFailure


@handlers.handler("texts/>", retriable=[OSError, ValueError])
async def on_text(text: str) -> str:
    return text


@handlers.handler("states/>")
async def on_state(body: list[Order], pool: State[Pool], clock: State[Clock], *, log: BoundLogger) -> None:
    assert_type(pool, Pool)
    log.info("state", now=clock.now(), price=await pool.price(body[0].fruit))


@handlers.handler("rows/>")
async def on_row(row: Row | Order) -> None:
    assert_type(row, Row | Order)


class Books:
    async def on_entry(self, message: Message) -> None: ...


handlers.handler("entries/>")(Books().on_entry)

# -- receipts and batches


@handlers.handler("slow/>")
async def on_slow(receipt: Receipt, message: Message) -> "asyncio.Future[None]":
    done = asyncio.get_running_loop().create_future()
    done.add_done_callback(lambda it: receipt.settle(it.exception()))
    receipt.fail("no")
    receipt.fail(ValueError())
    receipt.fail(TerminalFailure)
    receipt.accept()
    return done


def refuse(view: BatchItem[Order]) -> None:
    view.fail(TerminalFailure("no such number"))


@handlers.batch_handler("views/>", max_count=100, max_wait="50ms", attempts=3, then="dmq")
async def on_views(views: Batch[Order], pool: State[Pool]) -> None:
    assert_type(views[0], BatchItem[Order])
    for view in views:
        assert_type(view.body, Order)
        if view.body.number < 0 and view.delivery.redelivered:
            refuse(view)
    print([await pool.price(view.body.fruit) for view in views[1:]])


@handlers.batch_handler("payloads/>", max_count=100, max_wait="50ms")
def on_payloads(payloads: Batch) -> None:
    assert_type(payloads, Batch[bytes])
    print(b"".join(each.body for each in payloads))


# -- publishing


@handlers.handler("split/>")
async def split(message: Message) -> AsyncIterator[Message]:
    yield Message("bills/new", message.payload)
    yield Message("bills/new", b"", {"a": 1, "b": None}, headers=Headers(correlation_id=message.headers.correlation_id))


@handlers.handler("split2/>", transacted=True)
def split_on_a_thread(message: Message) -> Iterator[Message]:
    yield Message("bills/new", message.payload, message.properties)


@handlers.handler("one/>", publishes=True)
async def one_or_none(message: Message) -> Message | None:
    return None


@handlers.handler("several/>", publishes=True, transacted=True)
def several(message: Message) -> list[Message]:
    return [message]


@handlers.handler("into/>")
async def into_a_group(message: Message, publisher: State[HashedPublisher]) -> None:
    assert_type(await publisher.publish("bills/new", message.payload, key=message.key), Confirmation)
    await publisher.publish("bills/new", bytearray(message.payload))
    await publisher.publish("bills/new", memoryview(message.payload))
    told: dict[str, str] = {"a": "b"}
    waiting = [await publisher.submit("bills/new", b"", key=f"{n}", properties=told) for n in range(3)]
    assert_type(await asyncio.gather(*waiting), list[Confirmation])
    print(publisher.counts.unconfirmed)


async def publish() -> None:
    try:
        async with open_publisher(Path("config.yaml"), ledger="runs") as publisher:
            assert_type(publisher, HashedPublisher)
    except PublishRefused as refused:
        print(refused.topic, refused.reason)
    except PublishFailed as failed:
        print(failed.topic, failed.reason)


# -- guards

totals: MemoryGuard[int] = MemoryGuard()
booked = SqliteGuard("bookings.db", scope="orders")


class PostgresBooks:
    def __init__(self, connections: AsyncConnectionPool) -> None:
        self.guard = PostgresGuard(connections.connection, scope="orders")


@handlers.handler("guarded/>")
async def guarded(message: Message, books: State[PostgresBooks], counts: State[MemoryGuard[int]]) -> None:
    assert_type(counts, MemoryGuard[int])

    def book(database: sqlite3.Connection) -> None:
        database.execute("INSERT INTO bookings VALUES (?)", (message.key,))

    async def write(connection: AsyncConnection) -> None:
        await connection.execute("INSERT INTO bookings VALUES (%s)", (message.key,))

    assert_type(await totals.once(message, lambda total: (total or 0) + 1), bool)
    assert_type(totals.entries["4711"].value, int)
    await booked.once(message, book)
    await booked.once(message, lambda database: database.execute("DELETE FROM bookings"))
    await books.guard.once(message, write)


def are_guards(books: PostgresBooks) -> None:
    memory: Guard[Callable[[int | None], int]] = totals
    sqlite: Guard[SqliteEffect] = booked
    postgres: Guard[PostgresEffect] = books.guard
    print(memory, sqlite, postgres)


# -- an App as a library


@asynccontextmanager
async def with_a_member(_: object) -> AsyncGenerator[None]:
    async with asyncio.TaskGroup() as tasks:
        member = App(handlers, "config.yaml", member_id="member-7")
        life = tasks.create_task(member.run())
        yield
        member.stop()
    assert_type(life.result(), StopReport)
    print(life.result().is_clean, member.settings.group.name)


def main() -> None:
    sys.exit(App(handlers, Path("config.yaml"), member_index=0, member_count=2).run_sync().exit_code)


# -- tests

SETTINGS = {"failure": {"attempts": 1, "then": "park"}, "dispatch": {"runners": 3}, "ops": {"stuck_key": "1s"}}


def latest_first(handle: HandlerFunction) -> HandlerFunction:
    async def gather(message: Message) -> None:
        await handle(message)

    return gather


async def test_a_group(lbg_running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lbg_running(
        handlers, members=2, states=[Pool()], seed=3, settings=SETTINGS, around=latest_first
    ) as group:
        assert_type(group, Group)
        await group.publish(
            "orders/new", "pear", b"apple", key="4711", properties={"a": 1}, headers=Headers(priority=3)
        )
        await group.settled(within_s=3)
        (pear, apple) = group.parked("4711")
        assert pear.error == apple.original.topic
        await group.until(lambda: not group.parked())
        expected = {"4711": ["pear", "apple"]}
        group.assert_handled(expected)
        group.assert_handled({"4711": ["pear", b"apple"]})
        group.assert_failed("4711", 1, KeyError)
        assert_type(await group.started(key="4711"), Attempt)
        assert_type(group.handled(), list[Handled])
        assert_type(group.error_queue()[0], Message)
        assert_type(await group.stop("member-0"), StopReport)
        assert_type(group.members["member-0"], LifeState)
        group.broker.create_queue("given", ["quotes/>"])
    with pytest.raises(LawsBroken, match="4711"):
        async with lbg_running(App(handlers, "config.yaml"), ("one", "two"), settings={"failure": {"attempts": 1}}):
            pass


def test_a_broker(lbg_broker: BrokerOnPort) -> None:
    lbg_broker.create_queue("invoices", "invoices/>")
    lbg_broker.wait_until("invoices", lambda status: status.depth == 1 and len(status.flows) == 1)
    assert_type(lbg_broker.queue_status("invoices").depth, int)
