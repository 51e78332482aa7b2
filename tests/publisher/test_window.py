"""Room is bounded, and given out in the order it was asked for."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.publisher.window import UnconfirmedWindow
from lbg_runtime.testing.virtual_time import VirtualTimeLoop
from tests.publisher.conftest import settled


async def test_room_is_taken_without_waiting_while_there_is_some() -> None:
    window = UnconfirmedWindow(2, 100)
    assert await window.reserve(10)
    assert await window.reserve(10)
    assert (window.count, window.size_bytes) == (2, 20)


async def test_a_caller_waits_until_a_message_is_released() -> None:
    window = UnconfirmedWindow(1, 100)
    await window.reserve(10)
    waiting = asyncio.create_task(window.reserve(20))
    await settled()
    assert not waiting.done()
    window.release(10)
    assert await waiting
    assert (window.count, window.size_bytes) == (1, 20)


async def test_bytes_are_bounded_as_well_as_messages() -> None:
    window = UnconfirmedWindow(10, 100)
    await window.reserve(60)
    waiting = asyncio.create_task(window.reserve(60))
    await settled()
    assert not waiting.done()
    window.release(60)
    assert await waiting


async def test_a_message_larger_than_the_window_goes_alone() -> None:
    window = UnconfirmedWindow(10, 100)
    assert await window.reserve(500)
    waiting = asyncio.create_task(window.reserve(1))
    await settled()
    assert not waiting.done()
    window.release(500)
    assert await waiting


async def test_the_room_of_one_large_message_lets_several_small_ones_in() -> None:
    window = UnconfirmedWindow(10, 100)
    await window.reserve(90)
    waiting = [asyncio.create_task(window.reserve(30)) for _ in range(4)]
    await settled()
    window.release(90)
    await settled()
    assert [task.done() for task in waiting] == [True, True, True, False]
    window.release(30)
    assert await waiting[3]


async def test_a_small_message_does_not_overtake_a_large_one_that_waits() -> None:
    window = UnconfirmedWindow(10, 100)
    await window.reserve(60)
    large = asyncio.create_task(window.reserve(60))
    small = asyncio.create_task(window.reserve(1))
    await settled()
    assert not large.done()
    assert not small.done()


async def test_what_would_fit_is_not_taken_past_a_large_one_that_waits() -> None:
    window = UnconfirmedWindow(10, 100)
    assert window.take(60)
    large = asyncio.create_task(window.reserve(60))
    await settled()
    assert not window.take(1)
    window.release(60)
    # Woken, and not yet gone.
    assert not window.take(1)
    assert await large
    assert window.take(1)
    assert (window.count, window.size_bytes) == (2, 61)


async def test_a_newcomer_does_not_overtake_a_caller_that_was_woken_and_has_not_run_yet() -> None:
    window = UnconfirmedWindow(1, 100)
    await window.reserve(1)
    order: list[str] = []

    async def enter(name: str) -> None:
        await window.reserve(1)
        order.append(name)
        window.release(1)

    first = asyncio.create_task(enter("first"))
    await settled()
    window.release(1)
    await enter("second")
    await first
    assert order == ["first", "second"]


async def test_a_cancelled_caller_takes_nothing_and_lets_the_next_one_in() -> None:
    window = UnconfirmedWindow(10, 100)
    await window.reserve(60)
    large = asyncio.create_task(window.reserve(60))
    small = asyncio.create_task(window.reserve(40))
    await settled()
    large.cancel()
    assert await small
    assert (window.count, window.size_bytes) == (2, 100)


async def test_a_caller_cancelled_after_it_was_woken_hands_its_turn_on() -> None:
    window = UnconfirmedWindow(1, 100)
    await window.reserve(1)
    first = asyncio.create_task(window.reserve(1))
    second = asyncio.create_task(window.reserve(1))
    await settled()
    window.release(1)
    first.cancel()
    assert await second
    assert window.count == 1


async def test_a_caller_whose_coroutine_is_closed_lets_the_next_one_in() -> None:
    """Its place at the head of the line stayed taken, so that nobody behind it was ever let in."""
    window = UnconfirmedWindow(1, 100)
    await window.reserve(1)
    closed = window.reserve(1)
    closed.send(None)
    second = asyncio.create_task(window.reserve(1))
    await settled()
    closed.close()
    window.release(1)
    await settled()
    assert second.done()
    assert window.count == 1


class CountedFuture(asyncio.Future[None]):
    """Counts how often one is compared with another, as a search in a line does."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        type(self).comparisons += 1
        return self is other

    __hash__ = asyncio.Future.__hash__


async def test_a_caller_leaves_without_being_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 callers, as when a task group is cancelled, took 18 s of the loop, as each was searched for."""
    window = UnconfirmedWindow(1, 100)
    await window.reserve(1)
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "create_future", lambda: CountedFuture(loop=loop))
    waiting = [asyncio.create_task(window.reserve(1)) for _ in range(100)]
    await settled()
    assert await window_is_left_by(reversed(waiting)) == 100
    assert CountedFuture.comparisons == 0


async def window_is_left_by(waiting: Iterable[asyncio.Task[None]]) -> int:
    """How many of the callers were cancelled."""
    cancelled = [task for task in waiting if task.cancel()]
    await asyncio.wait(cancelled)
    return sum(task.cancelled() for task in cancelled)


async def test_closing_turns_everyone_away() -> None:
    window = UnconfirmedWindow(1, 100)
    await window.reserve(1)
    waiting = [asyncio.create_task(window.reserve(1)) for _ in range(3)]
    await settled()
    window.close()
    assert await asyncio.gather(*waiting) == [False, False, False]
    assert await window.reserve(1) is False
    assert window.count == 1


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 5), st.booleans()), max_size=40),
    st.integers(1, 5),
    st.integers(1, 100),
)
def test_whatever_callers_do_the_bound_holds_and_the_order_is_theirs(
    callers: list[tuple[int, int, bool]], max_count: int, max_bytes: int
) -> None:
    """Callers of random sizes arrive together, hold their room for a random time; some are cancelled meanwhile."""

    async def run() -> None:
        window = UnconfirmedWindow(max_count, max_bytes)
        entered: list[int] = []

        async def call(number: int, size: int, hold: int) -> None:
            await window.reserve(size)
            entered.append(number)
            assert window.count <= max_count
            assert window.size_bytes <= max_bytes or window.count == 1
            try:
                await asyncio.sleep(hold)
            finally:
                window.release(size)

        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(call(n, size, hold)) for n, (size, hold, _) in enumerate(callers)]
        for number, (_, hold, cancelled) in enumerate(callers):
            if cancelled:
                loop.call_later(hold + 0.5, tasks[number].cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not [task for task in tasks if not task.cancelled() and task.exception() is not None]
        assert entered == sorted(entered)
        assert (window.count, window.size_bytes) == (0, 0)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())


async def test_a_caller_that_was_woken_when_the_window_is_closed_is_turned_away_as_the_others_are() -> None:
    window = UnconfirmedWindow(1, 100)
    await window.reserve(1)
    waiting = [asyncio.create_task(window.reserve(1)) for _ in range(2)]
    await settled()
    window.release(1)
    window.close()
    assert await asyncio.gather(*waiting) == [False, False]
    assert window.count == 0


async def test_who_comes_when_the_window_is_closed_does_not_queue_behind_those_who_have_not_left_yet() -> None:
    window = UnconfirmedWindow(1, 100)
    await window.reserve(1)
    waiting = asyncio.create_task(window.reserve(1))
    await settled()
    window.close()
    assert not await window.reserve(1)
    assert not await waiting
    assert not window.take(1)
    assert window.count == 1
