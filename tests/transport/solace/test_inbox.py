"""The inbox keeps the order of posting threads, wakes the loop once for many items, and survives a closed loop."""

import asyncio
import threading

import pytest

from lbg_runtime.transport.solace.inbox import QUANTUM, Inbox

pytestmark = pytest.mark.real_time


async def test_items_of_each_thread_arrive_in_its_order_and_none_is_lost() -> None:
    inbox = Inbox(asyncio.get_running_loop())
    thread_count, item_count = 4, 5_000
    taken: list[tuple[int, int]] = []
    done = asyncio.Event()

    def take(item: tuple[int, int]) -> None:
        taken.append(item)
        if len(taken) == thread_count * item_count:
            done.set()

    def post_all(thread: int) -> None:
        for number in range(item_count):
            inbox.post(take, (thread, number))

    threads = [threading.Thread(target=post_all, args=(thread,)) for thread in range(thread_count)]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(30):
        await done.wait()
    for thread in threads:
        thread.join()
    for number in range(thread_count):
        assert [item for thread, item in taken if thread == number] == list(range(item_count))


async def test_takers_run_on_the_thread_of_the_loop() -> None:
    inbox = Inbox(asyncio.get_running_loop())
    taken_on: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    await asyncio.to_thread(inbox.post, lambda _: taken_on.set_result(threading.get_ident()), None)
    assert await taken_on == threading.get_ident()


async def test_a_flood_leaves_turns_to_others() -> None:
    loop = asyncio.get_running_loop()
    inbox = Inbox(loop)
    taken: list[int] = []
    seen_in_between: list[int] = []
    for number in range(3 * QUANTUM):
        inbox.post(taken.append, number)
    while len(taken) < 3 * QUANTUM:
        await asyncio.sleep(0)
        seen_in_between.append(len(taken))
    assert seen_in_between == [QUANTUM, 2 * QUANTUM, 3 * QUANTUM]
    assert taken == list(range(3 * QUANTUM))


async def test_one_wake_up_serves_what_was_posted_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    wake_ups: list[object] = []
    monkeypatch.setattr(loop, "call_soon_threadsafe", wake_ups.append)
    inbox = Inbox(loop)
    for number in range(100):
        inbox.post(print, number)
    assert len(wake_ups) == 1


async def test_what_is_posted_from_within_a_taker_comes_later() -> None:
    inbox = Inbox(asyncio.get_running_loop())
    order: list[str] = []
    done = asyncio.Event()

    def first(_: None) -> None:
        inbox.post(last, None)
        order.append("first")

    def last(_: None) -> None:
        order.append("last")
        done.set()

    inbox.post(first, None)
    inbox.post(order.append, "second")
    await done.wait()
    assert order == ["first", "second", "last"]


async def test_a_taker_that_raises_does_not_hold_up_the_others() -> None:
    loop = asyncio.get_running_loop()
    reported: list[BaseException | None] = []
    loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    inbox = Inbox(loop)
    done = asyncio.Event()

    def fail(_: None) -> None:
        raise ValueError("a sink must not raise")

    inbox.post(fail, None)
    inbox.post(lambda _: done.set(), None)
    await done.wait()
    assert [type(error) for error in reported] == [ValueError]


async def test_a_closed_inbox_drops_what_it_has_and_what_comes() -> None:
    inbox = Inbox(asyncio.get_running_loop())
    taken: list[str] = []
    inbox.post(taken.append, "before")
    inbox.close()
    inbox.post(taken.append, "after")
    await asyncio.sleep(0)
    assert taken == []


def test_posting_to_a_closed_loop_is_quiet() -> None:
    loop = asyncio.new_event_loop()
    inbox = Inbox(loop)
    loop.close()
    inbox.post(print, "nobody reads this")
    inbox.post(print, "nor this")
