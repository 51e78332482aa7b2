"""The server on real sockets, with peers that are no clients."""

import asyncio
import contextlib
import random
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.changes import MessageKept
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.listening import listen
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.broker.store.store import Store
from lbg_runtime.model.errors import BrokerRefusal, StoreFailed, UserError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.smf.assured_items import AssuredKind, ItemKind
from lbg_runtime.smf.frame import Frame, Protocol, encode_frame
from lbg_runtime.smf.message import make_relay
from lbg_runtime.smf.smp import SubscriptionKind, SubscriptionRequest, encode_subscription
from tests.addresses import OWN_HOST
from tests.broker.server.desk import control, text
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

KEEP_ALIVE = bytes.fromhex("038b00010000000c0000000c")
KEEP_ALIVE_REPLY = bytes.fromhex("038b00ff0000000c0000000c")
LOGIN = bytes.fromhex(
    "038c0001 0000000c 00000032 8100 00000026 050000000a 636c2d3100 860000000d 64656661756c7400 1800000009 00000003"
)


@contextlib.asynccontextmanager
async def peer(server: BrokerServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        header = await reader.readexactly(12)
        return header + await reader.readexactly(int.from_bytes(header[8:], "big") - 12)


async def test_a_login_over_a_socket_in_single_bytes() -> None:
    async with BrokerServer(port=0) as server, peer(server) as (reader, writer):
        for position in range(len(LOGIN)):
            writer.write(LOGIN[position : position + 1])
            await writer.drain()
        assert b"OK" in await read_frame(reader)
        assert server.client_names() == ["cl-1"]


async def test_garbage_of_one_peer_is_nothing_to_another() -> None:
    chance = random.Random(1)
    async with BrokerServer(port=0) as server, peer(server) as (reader, writer):
        writer.write(LOGIN)
        await read_frame(reader)
        with capture_logs() as logs:
            for number in range(50):
                async with peer(server) as (bad_reader, bad_writer):
                    start = LOGIN.replace(b"cl-1", b"x%03d" % number) if number % 2 else b""
                    # A small length, so that none of them is a frame of which the end is still to come.
                    bad_writer.write(
                        start + bytes((chance.choice((0x03, 0x47, 0x16)),)) + bytes(7) + chance.randbytes(500)
                    )
                    with contextlib.suppress(ConnectionError):
                        async with asyncio.timeout(PATIENCE_S):
                            await bad_reader.read()
                writer.write(KEEP_ALIVE)
                assert await read_frame(reader) == KEEP_ALIVE_REPLY
        dropped = [log for log in logs if log["event"] == "peer_dropped"]
        assert len(dropped) == 50
        assert server.client_names() == ["cl-1"]


async def test_output_that_cannot_be_made_ends_its_connection_and_no_other() -> None:
    async with BrokerServer(port=0) as server, peer(server) as (reader, writer), peer(server) as (other, other_writer):
        server.create_queue("q", ["q/a"])
        bind = control(AssuredKind.BIND, (ItemKind.QUEUE, text("q")), (ItemKind.WINDOW, b"\xff"))
        subscribe = encode_subscription(SubscriptionRequest(SubscriptionKind.ADD, 0x0C, "b"))
        writer.write(LOGIN + bind)
        other_writer.write(LOGIN.replace(b"cl-1", b"cl-2") + encode_frame(Frame(Protocol.SUBSCRIPTION, (), subscribe)))
        for _ in range(2):
            await read_frame(reader)
            await read_frame(other)
        client, _ = server.engine.connect("default", "default", "", "ann")
        relay = make_relay("b", b"body")
        with capture_logs() as logs:
            # Nothing that can be written to anybody.
            server.carry_out(server.engine.publish_direct(client, Published("q/a", object(), 4)))
            server.carry_out(server.engine.publish_direct(client, Published("b", relay, relay.size_bytes)))
            assert b"body" in await read_frame(other)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await read_frame(reader)
        assert [(log["event"], log["client_name"]) for log in logs if log["log_level"] == "error"] == [
            ("output_failed", "cl-1")
        ]
        assert server.client_names() == ["cl-2"]
        assert server.engine.queue_depth("default", QueueName("q")) == 1


async def test_peers_that_say_nothing_hold_nobody_up() -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(BrokerServer(port=0))
        for _ in range(20):
            await stack.enter_async_context(peer(server))
        reader, writer = await stack.enter_async_context(peer(server))
        writer.write(LOGIN)
        assert b"OK" in await read_frame(reader)


async def test_a_client_is_cut_off_by_name_and_its_name_is_free_again() -> None:
    async with BrokerServer(port=0) as server:
        for _ in range(3):
            async with peer(server) as (reader, writer):
                writer.write(LOGIN)
                await read_frame(reader)
                assert server.faults.drop("nobody") == 0
                assert server.faults.drop("cl-1") == 1
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await read_frame(reader)
            assert server.client_names() == []


async def test_the_older_connection_of_a_name_is_closed() -> None:
    async with BrokerServer(port=0) as server, peer(server) as first, peer(server) as second:
        for reader, writer in (first, second):
            writer.write(LOGIN)
            await read_frame(reader)
        async with asyncio.timeout(PATIENCE_S):
            assert await first[0].read() == b""
        assert server.client_names() == ["cl-1"]


async def test_a_port_in_use_is_a_users_mistake() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = BrokerServer(port=taken.getsockname()[1])
        with pytest.raises(UserError, match="in use"):
            await server.start()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_an_address_of_nobody_is_a_users_mistake(host: str) -> None:
    with pytest.raises(UserError):
        await BrokerServer(host, 0).start()


async def test_a_start_that_is_cancelled_leaves_no_port_taken() -> None:
    with listen("smf", "127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    server = BrokerServer("127.0.0.1", port)
    starting = asyncio.create_task(server.start())
    # It listens, and waits for a turn of the loop.
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    listen("smf", "127.0.0.1", port).close()


async def test_stopping_cuts_everybody_off_and_can_be_done_twice() -> None:
    server = BrokerServer(OWN_HOST, 0)
    await server.start()
    async with peer(server) as (reader, writer):
        writer.write(LOGIN)
        await read_frame(reader)
        await server.stop()
        await server.stop()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await read_frame(reader)
    with pytest.raises(ConnectionError):
        await asyncio.open_connection(server.host, server.port)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_connection_that_is_accepted_as_the_listener_closes_is_cut_off(is_cancelled: bool) -> None:
    """asyncio makes a connection of it a turn later, and did not where the listener was closed by then: its peer was
    cut off when the garbage was collected, with a warning of a socket that nobody closed."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)  # Else it says nothing of what it could not make a connection of.
    troubles: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: troubles.append(context))
    server = BrokerServer(OWN_HOST, 0)
    await server.start()
    with socket.create_connection((server.host, server.port), PATIENCE_S) as client:
        client.setblocking(False)
        # The loop hears of it, and accepts it behind what runs in that turn.
        await asyncio.sleep(0)
        stopping = asyncio.create_task(server.stop())
        if is_cancelled:
            loop.call_soon(lambda: loop.call_soon(stopping.cancel))
        with pytest.raises(asyncio.CancelledError) if is_cancelled else contextlib.nullcontext():
            await stopping
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionResetError):
                assert await loop.sock_recv(client, 1) == b""
    assert troubles == []
    with pytest.raises(ConnectionError):
        await asyncio.open_connection(server.host, server.port)


async def test_a_stop_that_is_cancelled_leaves_neither_the_store_nor_a_timer(tmp_path: Path) -> None:
    """The file stayed open, and no other broker could have it until this process had ended."""
    path = tmp_path / "store"
    server = BrokerServer(OWN_HOST, 0, store=Store.open(path))
    await server.start()
    async with peer(server) as (reader, writer):
        writer.write(LOGIN)
        await read_frame(reader)
        stopping = asyncio.create_task(server.stop())
        for _ in range(2):
            # It waits for the connection to be gone.
            asyncio.get_running_loop().call_soon(stopping.cancel)
        with pytest.raises(asyncio.CancelledError):
            await stopping
    assert server.client_names() == []
    Store.open(path).close()


async def test_a_server_that_stops_passes_nothing_on_from_one_client_to_the_next() -> None:
    """To each it counted as delivered, which used up its redeliveries and ended the claim of who had it."""
    server = BrokerServer(port=0)
    bind = control(AssuredKind.BIND, (ItemKind.QUEUE, text("q")), (ItemKind.WINDOW, b"\xff"))
    async with server, peer(server) as first, peer(server) as second, peer(server) as third:
        server.create_queue("q", ["q/a"])
        for number, (reader, writer) in enumerate((first, second, third)):
            writer.write(LOGIN.replace(b"cl-1", b"cl-%d" % number) + bind)
            for _ in range(2):
                await read_frame(reader)
        client, _ = server.engine.connect("default", "default", "", "ann")
        relay = make_relay("q/a", b"body")
        server.carry_out(server.engine.publish_direct(client, Published("q/a", relay, relay.size_bytes)))
        assert b"body" in await read_frame(first[0])
        await server.stop()
    status = server.engine.queue_status("default", QueueName("q"))
    assert (status.depth, status.flows, status.redelivered_count) == (1, (), 0)


async def test_queues_are_made_with_their_subscriptions() -> None:
    server = BrokerServer(port=0)
    server.create_queue("q", ["a/>", "b"])
    with pytest.raises(BrokerRefusal, match="Endpoint Already Exists"):
        server.create_queue("q")
    server.delete_queue("q")
    server.create_queue("q")


async def test_what_is_kept_in_one_turn_of_the_loop_is_written_by_one_call(tmp_path: Path) -> None:
    async with BrokerServer(port=0, store=Store.open(tmp_path / "store")) as server:
        server.create_queue("orders", ["orders/new"])
        client, _ = server.engine.connect("default", "default", "", "ann")
        await asyncio.sleep(0)
        loop, asked = asyncio.get_running_loop(), []
        call_soon = loop.call_soon
        relay = make_relay("orders/new", b"body")

        def note(call: Callable[..., object], *args: object, **more: Any) -> asyncio.Handle:
            asked.append(call)
            return call_soon(call, *args, **more)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(loop, "call_soon", note)
            for _ in range(10):
                server.carry_out(server.engine.publish_direct(client, Published("orders/new", relay, relay.size_bytes)))
        assert len(asked) == 1
    with contextlib.closing(Store.open(tmp_path / "store")) as store:
        assert len([each for each in store.read() if isinstance(each, MessageKept)]) == 10


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE subscription SET queue = 7",
        "UPDATE subscription SET topic = ''",
        "UPDATE queue SET name = 'same'",
    ],
)
async def test_a_store_whose_parts_do_not_fit_together_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store"
    with contextlib.closing(Store.open(path)) as store:
        server = BrokerServer(store=store)
        server.create_queue("first", ["orders/>"])
        server.create_queue("second")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(damage)
        database.commit()
    with contextlib.closing(Store.open(path)) as store:
        with pytest.raises(UserError, match=r"it is damaged: .*; expected an undamaged store") as refused:
            BrokerServer(store=store)
        assert "\n" not in str(refused.value)


async def test_a_store_that_refuses_the_last_write_of_a_broker_ends_it_with_its_error(tmp_path: Path) -> None:
    """The request to stop had it end with exit code 0, and nothing said that its state was not kept."""
    path = tmp_path / "store"

    async def serve() -> None:
        store = Store.open(path)
        async with BrokerServer(OWN_HOST, 0, store=store) as server:
            store._connection.execute("PRAGMA max_page_count = 1")
            server.put_row("kind", b"key", bytes(100_000))

    with pytest.raises(StoreFailed, match="database or disk is full"):
        await serve()
    with contextlib.closing(Store.open(path)) as left:
        assert left.rows() == []
