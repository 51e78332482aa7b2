"""The inbox keeps the order of posting threads, wakes the loop once for many items, and survives a closed loop."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from lbg_runtime.transport.solace.inbox import FULL, QUANTUM, Inbox
from tests.patience import PATIENCE_S

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
    async with asyncio.timeout(PATIENCE_S):
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


async def test_what_ends_with_it_ends_once_and_before_what_it_drops() -> None:
    inbox = Inbox(asyncio.get_running_loop())
    ended: list[str] = []
    inbox.at_close(lambda: ended.append("first"))
    inbox.at_close(lambda: ended.append("second"))
    assert inbox.is_empty
    inbox.post(print, "item", ended.append)
    assert (ended, inbox.is_empty) == ([], False)
    for _ in range(2):
        inbox.close()
    assert (ended, inbox.is_empty) == (["first", "second", "item"], True)


def test_posting_to_a_closed_loop_is_quiet() -> None:
    loop = asyncio.new_event_loop()
    inbox = Inbox(loop)
    ended: list[str] = []
    inbox.at_close(lambda: ended.append("end"))
    loop.close()
    inbox.post(print, "nobody reads this")
    inbox.post(print, "nor this")
    assert ended == ["end"]


async def test_what_is_in_a_closed_inbox_is_dropped_once_by_whoever_can() -> None:
    inbox = Inbox(asyncio.get_running_loop())
    taken: list[int] = []
    dropped: list[int] = []

    def take(number: int) -> None:
        taken.append(number)
        if number == 2:
            inbox.close()

    for number in range(1, 6):
        inbox.post(take, number, dropped.append)
    await asyncio.sleep(0)
    inbox.post(take, 6, dropped.append)
    await asyncio.sleep(0)
    assert (taken, dropped) == ([1, 2], [3, 4, 5, 6])


def test_what_is_posted_to_a_closed_loop_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    inbox = Inbox(loop)
    dropped: list[int] = []
    loop.close()
    for number in (1, 2):
        inbox.post(print, number, dropped.append)
    assert dropped == [1, 2]


def post_many(inbox: Inbox, take: Callable[[int], None], drop: Callable[[int], None]) -> None:
    for number in range(2_000):
        inbox.post(take, number, drop)


async def test_nothing_is_taken_and_dropped_or_neither_while_threads_post_and_it_closes() -> None:
    for _ in range(20):
        inbox = Inbox(asyncio.get_running_loop())
        taken: list[int] = []
        dropped: list[int] = []

        posting = asyncio.ensure_future(asyncio.to_thread(post_many, inbox, taken.append, dropped.append))
        while not taken:  # noqa: ASYNC110 - the next turn of the loop is what it waits for
            await asyncio.sleep(0)
        inbox.close()
        await posting
        assert sorted(taken + dropped) == list(range(2_000))


async def test_who_waits_for_room_goes_on_when_the_loop_has_taken_what_was_there() -> None:
    inbox = Inbox(asyncio.get_running_loop())
    taken: list[int] = []
    posted = [inbox.post(taken.append, number) for number in range(FULL)]
    assert posted == [True] * (FULL - 1) + [False]
    assert await asyncio.to_thread(inbox.wait_for_room, 2 * PATIENCE_S)
    assert taken == list(range(FULL))
    assert await asyncio.to_thread(inbox.wait_for_room, 2 * PATIENCE_S)


async def test_a_loop_that_does_not_move_is_waited_for_once_until_it_moves_again() -> None:
    inbox = Inbox(asyncio.get_running_loop())
    for number in range(FULL):
        inbox.post(lambda _: None, number)
    # On the loop's thread, which therefore takes nothing meanwhile.
    assert not inbox.wait_for_room(0.01)
    started_at = time.monotonic()
    assert not inbox.wait_for_room(PATIENCE_S)
    assert time.monotonic() - started_at < PATIENCE_S
    await asyncio.sleep(0)
    assert inbox.wait_for_room(PATIENCE_S)


async def test_nobody_waits_for_an_inbox_that_is_closed() -> None:
    inbox = Inbox(asyncio.get_running_loop())
    for number in range(FULL):
        inbox.post(lambda _: None, number)
    waiting = asyncio.create_task(asyncio.to_thread(inbox.wait_for_room, 2 * PATIENCE_S))
    inbox.close()
    assert await asyncio.wait_for(waiting, PATIENCE_S)


async def test_a_thread_that_waits_for_room_never_waits_in_vain_while_the_loop_moves() -> None:
    inbox = Inbox(asyncio.get_running_loop())
    taken: list[int] = []
    waited: list[bool] = []
    done = asyncio.Event()

    def post_all() -> None:
        for number in range(20_000):
            has_room = inbox.post(taken.append, number) or inbox.wait_for_room(PATIENCE_S)
            waited.append(has_room)
        inbox.post(lambda _: done.set(), None)

    thread = threading.Thread(target=post_all)
    thread.start()
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    thread.join()
    assert taken == list(range(20_000))
    assert all(waited)
