# ruff: noqa: B018, T201
"""What users may get wrong, and have to be told: a line that is not reported has an ignore too many, which is reported.

Only type checkers read this, by `tests/test_typed_users.py`.
"""

import asyncio
from collections.abc import AsyncIterator

from lbg_runtime import App, Batch, Delivery, Handlers, Headers, Message, Proceed, Receipt, State, open_publisher
from lbg_runtime.guard.memory import MemoryGuard
from lbg_runtime.guard.sqlite import SqliteGuard
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.testing import BrokerOnPort, Running, running

handlers = Handlers()


class Pool:
    def price(self) -> int:
        return 1


@handlers.handler  # type: ignore[arg-type]
async def h1(message: Message) -> None: ...


@handlers.handler("x", attempts="many")  # type: ignore[arg-type]
async def h2(message: Message) -> None: ...


@handlers.handler("x", tiemout="3s")  # type: ignore[call-arg]
async def h3(message: Message) -> None: ...


@handlers.handler("x", then="parked")  # type: ignore[arg-type]
async def h4(message: Message) -> None: ...


@handlers.handler("x", timeout=3)  # type: ignore[arg-type]
async def h5(message: Message) -> None: ...


@handlers.handler("x", retriable=OSError)  # type: ignore[arg-type]
async def h6(message: Message) -> None: ...


@handlers.handler("x", retriable=["OSError"])  # type: ignore[list-item]
async def h7(message: Message) -> None: ...


@handlers.batch_handler("x", max_count=3)  # type: ignore[call-arg]
async def h8(message: Batch[bytes]) -> None: ...


@handlers.batch_handler("x", max_count=3, max_wait=50)  # type: ignore[arg-type]
async def h9(message: Batch[bytes]) -> None: ...


@handlers.handler(3)  # type: ignore[arg-type]
async def h10(message: Message) -> None: ...


@handlers.middleware  # type: ignore[type-var]
def m1(message: Message, proceed: Proceed) -> None: ...


@handlers.middleware  # type: ignore[type-var]
async def m2(proceed: Proceed, message: Message) -> None: ...


@handlers.middleware  # type: ignore[type-var]
async def m3(message: Message) -> None: ...


@handlers.middleware
async def m4(message: Message, proceed: Proceed) -> None:
    proceed(message)  # type: ignore[unused-coroutine]
    await proceed()  # type: ignore[call-arg]
    await proceed(message.payload)  # type: ignore[arg-type]


@handlers.on_assigned  # type: ignore[type-var]
def o1(queue: str, epoch: int) -> None: ...


@handlers.on_assigned  # type: ignore[type-var]
async def o2(queue: str) -> None: ...


@handlers.on_revoked  # type: ignore[type-var]
async def o3(queue: int, epoch: str) -> None: ...


@handlers.lifespan  # type: ignore[type-var]
async def l1() -> Pool:
    return Pool()


@handlers.lifespan  # type: ignore[type-var]
async def l2(x: int) -> AsyncIterator[Pool]:
    yield Pool()


@handlers.lifespan  # type: ignore[type-var]
def l3() -> Pool:
    return Pool()


async def body(
    message: Message,
    pool: State[Pool],
    it: Delivery,
    receipt: Receipt,
    batch: Batch[int],
    publisher: State[HashedPublisher],
    sqlite: SqliteGuard,
    totals: MemoryGuard[int],
) -> None:
    message.payloud  # type: ignore[attr-defined]
    message.payload = b""  # type: ignore[misc]
    message.properties["x"] = 1  # type: ignore[index]
    message.key.upper()  # type: ignore[union-attr]
    message.fencing_token.number  # type: ignore[union-attr]
    pool.cost  # type: ignore[attr-defined]
    it.message.foo  # type: ignore[attr-defined]
    it.settle()  # type: ignore[attr-defined]
    receipt.accept(1)  # type: ignore[call-arg]
    receipt.fail(3)  # type: ignore[arg-type]
    receipt.acept()  # type: ignore[attr-defined]
    batch[0].body.upper()  # type: ignore[attr-defined]
    batch.append(3)  # type: ignore[attr-defined]
    batch[0].fale()  # type: ignore[attr-defined]
    publisher.publish("x", b"x")  # type: ignore[unused-coroutine]
    await publisher.publish("x", "x")  # type: ignore[arg-type]
    await publisher.publish("x")  # type: ignore[call-arg]
    await publisher.publish("x", b"x", "key")  # type: ignore[call-arg]
    await publisher.publish("x", b"x", key=3)  # type: ignore[arg-type]
    await publisher.publish("x", b"x", properties={"x": []})  # type: ignore[dict-item]
    await publisher.publish("x", b"x", headers={"correlation_id": "x"})  # type: ignore[arg-type]
    publisher.submit("x", b"x")  # type: ignore[unused-coroutine]
    Message("x")  # type: ignore[call-arg]
    Message("x", "x")  # type: ignore[arg-type]
    Message("x", b"x", {"x": object()})  # type: ignore[dict-item]
    Headers(corelation_id="x")  # type: ignore[call-arg]
    Headers(priority="x")  # type: ignore[arg-type]
    sqlite.once(message, lambda db: None)  # type: ignore[unused-coroutine]

    await sqlite.once(message, lambda: None)  # type: ignore[misc, arg-type]
    await totals.once(message, lambda total: total + 1)  # type: ignore[operator]
    await totals.once(message, lambda total: "x")  # type: ignore[arg-type, return-value]
    totals.once(message, lambda total: 1)  # type: ignore[unused-coroutine]


async def publishing() -> None:
    publisher = open_publisher("x")
    await publisher.publish("x", b"x")  # type: ignore[attr-defined]
    with open_publisher("x") as other:  # type: ignore[attr-defined]
        print(other)
    async with open_publisher(3) as third:  # type: ignore[arg-type]
        await third.publsh("x", b"x")  # type: ignore[attr-defined]


async def running_it() -> None:
    app = App(handlers, "x")
    app.run()  # type: ignore[unused-coroutine]
    await app.run_sync()  # type: ignore[misc]
    app.foo  # type: ignore[attr-defined]
    app.settings.group.nam  # type: ignore[attr-defined]
    app.settings.group.name = "x"  # type: ignore[misc]
    App(handlers)  # type: ignore[call-arg]
    App([], "x")  # type: ignore[arg-type]
    App(handlers, "x", member_index="1")  # type: ignore[arg-type]
    app.stop(1)  # type: ignore[call-arg]
    await app.stop()  # type: ignore[misc, func-returns-value]
    (await app.run()).foo  # type: ignore[attr-defined]


async def test(lbg_running: Running, lbg_broker: BrokerOnPort) -> None:
    async with lbg_running() as group:  # type: ignore[call-arg]
        print(group)
    async with lbg_running(handlers, member=2) as group:  # type: ignore[call-arg]
        group.publish("x", "x")  # type: ignore[unused-coroutine]
        await group.publish("x", 3)  # type: ignore[arg-type]
        await group.publish("x", "x", "y", keys="3")  # type: ignore[call-arg]
        group.settled()  # type: ignore[unused-coroutine]
        group.handled()[0].foo  # type: ignore[attr-defined]
        group.assert_handled(["x"])  # type: ignore[arg-type]
        group.assert_failed("x", 1, "KeyError")  # type: ignore[arg-type]
        await group.until(True)  # type: ignore[arg-type]
        group.stop("x")  # type: ignore[unused-coroutine]
        group.kil("x")  # type: ignore[attr-defined]
        (await group.started()).foo  # type: ignore[attr-defined]
    lbg_running(handlers).publish("x", "x")  # type: ignore[attr-defined]
    with running(handlers) as other:  # type: ignore[attr-defined]
        print(other)
    lbg_broker.create_queue("x", 3)  # type: ignore[arg-type]
    lbg_broker.queue_status("x").foo  # type: ignore[attr-defined]
    lbg_broker.port.upper()  # type: ignore[attr-defined]
    await lbg_broker.stop()  # type: ignore[misc, func-returns-value]
    asyncio.run(test)  # type: ignore[arg-type]
