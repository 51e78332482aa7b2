"""Batches, window and answers of the fast publish path, on a library that only takes notes; virtual time.

More than 400 lines, as all of it has one bench.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.model.message import Message
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.fast import publish as fast_publish
from lbg_runtime.transport.solace.fast.publish import ACKNOWLEDGED, BATCH, WINDOW, FastPublisher
from lbg_runtime.transport.solace.fast.publish_calls import NOT_READY, WOULD_BLOCK
from lbg_runtime.transport.solace.fast.writer import TAG_BYTES
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.library import SOLCLIENT_OK, PubSubPlusClientError

FAILED = -1
REJECTED = 3
CAN_SEND = 11


class NotedCalls:
    """In place of `PublishCalls`. Takes what its plan says, then everything."""

    def __init__(self) -> None:
        self.plan: list[tuple[int, int | None]] = []
        """Answer and how many are taken, for the next calls; None: none, and that is not said."""
        self.batches: list[list[tuple[int, Message]]] = []
        """What each call took: tag and message."""
        self.written: dict[int, tuple[int, Message]] = {}
        self.calls = 0
        self.pins = 0
        self.allocated: list[int] = []
        self.freed: list[int] = []

    def alloc(self, reference: Any) -> int:
        reference._obj.value = 1_000 + len(self.allocated)
        self.allocated.append(reference._obj.value)
        return SOLCLIENT_OK

    def free(self, reference: Any) -> int:
        self.freed.append(reference._obj.value)
        return SOLCLIENT_OK

    def pin(self) -> int:
        self.pins += 1
        return 0

    def send(self, session: Any, natives: Sequence[int], count: int, taken: Any) -> int:
        assert session
        assert len(set(natives[:count])) == count <= BATCH
        self.calls += 1
        code, wanted = self.plan.pop(0) if self.plan else (SOLCLIENT_OK, count)
        if wanted is not None:
            taken._obj.value = wanted
        self.batches.append([self.written[natives[index]] for index in range(wanted or 0)])
        return code

    @property
    def sent(self) -> list[Message]:
        return [message for batch in self.batches for _, message in batch]


class Bench:
    """A publisher whose session the test plays."""

    def __init__(self) -> None:
        self.calls = NotedCalls()
        self.publisher = FastPublisher(self.calls, self._write, Inbox(asyncio.get_running_loop()))  # type: ignore[arg-type]
        self.publisher.service = SimpleNamespace(session_pointer=object())
        self.hear = self.publisher._hearer()
        self.unwritable: set[str] = set()
        self.lack: str | None = None
        """What there is to say if the session may not publish."""
        self.count = 0

    def _write(self, native: Any, message: Message, tag: int) -> None:
        if message.topic in self.unwritable:
            raise PublishRefused(message.topic, "for a test")
        self.calls.written[native.value] = (tag, message)

    def send(self, count: int) -> list[asyncio.Future[None]]:
        futures = []
        for _ in range(count):
            futures.append(asyncio.get_running_loop().create_future())
            self.publisher.send(Message(str(self.count), b""), futures[-1])
            self.count += 1
        return futures

    def confirm(self, count: int) -> None:
        """So many of the messages that were sent, from the first one on."""
        assert self.hear(ACKNOWLEDGED, 200, self.tags()[count - 1])

    def tags(self) -> list[int]:
        return [tag for batch in self.calls.batches for tag, _ in batch]

    @property
    def numbers(self) -> list[int]:
        return [int(message.topic) for message in self.calls.sent]


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench()
    monkeypatch.setattr(native, "missing_right", lambda *_: bench.lack)
    return bench


async def test_what_is_sent_in_one_turn_leaves_in_few_calls_in_order(bench: Bench) -> None:
    bench.send(BATCH + 7)
    assert bench.calls.calls == 0
    await turn()
    assert [len(batch) for batch in bench.calls.batches] == [BATCH, 7]
    bench.send(1)
    await turn()
    assert bench.numbers == list(range(BATCH + 8))


async def test_what_nobody_wants_any_more_does_not_leave(bench: Bench) -> None:
    futures = bench.send(WINDOW + 10)
    await turn()
    for future in futures[WINDOW - 1 : WINDOW + 6]:
        future.cancel()
    bench.confirm(WINDOW)
    await turn()
    # The first of them was on its way already.
    assert bench.numbers == [*range(WINDOW), *range(WINDOW + 6, WINDOW + 10)]
    bench.confirm(WINDOW + 4)
    await turn()
    assert [future.cancelled() for future in futures[WINDOW - 1 :]] == [True] * 7 + [False] * 4
    assert len(bench.publisher._room) == WINDOW


async def test_a_confirm_ends_the_futures_up_to_its_own_in_order(bench: Bench) -> None:
    ended: list[int] = []
    futures = bench.send(5)
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: ended.append(number))  # type: ignore[misc]  # a default
    await turn()
    bench.confirm(2)
    await turn()
    assert ended == [0, 1]
    bench.confirm(5)
    await turn()
    assert ended == [0, 1, 2, 3, 4]
    assert [future.result() for future in futures] == [None] * 5
    assert bench.calls.pins == 1


async def test_confirms_one_by_one_are_understood_too(bench: Bench) -> None:
    futures = bench.send(5)
    await turn()
    for number in range(5):
        bench.confirm(number + 1)
    await turn()
    assert all(future.done() for future in futures)
    assert len(bench.publisher._room) == WINDOW


async def test_confirms_that_gather_wake_the_loop_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    posts: list[Any] = []
    post = bench.publisher.inbox.post
    monkeypatch.setattr(bench.publisher.inbox, "post", lambda *item: posts.append(item) or post(*item))
    bench.hear = bench.publisher._hearer()
    futures = bench.send(100)
    await turn()
    for number in range(100):
        bench.confirm(number + 1)
    assert len(posts) == 1
    await turn()
    assert all(future.done() for future in futures)
    bench.send(1)
    await turn()
    bench.confirm(101)
    assert len(posts) == 2


async def test_no_more_than_the_window_is_under_way_and_the_rest_follows_in_order(bench: Bench) -> None:
    bench.send(3 * WINDOW)
    await turn()
    assert bench.numbers == list(range(WINDOW))
    assert len(set(bench.tags())) == WINDOW
    bench.confirm(10)
    await turn()
    assert bench.numbers == list(range(WINDOW + 10))
    while len(bench.numbers) < 3 * WINDOW:
        bench.confirm(len(bench.numbers))
        await turn()
    assert bench.numbers == list(range(3 * WINDOW))


async def test_places_are_addresses_inside_one_memory(bench: Bench) -> None:
    bench.send(WINDOW)
    await turn()
    tags = sorted(bench.tags())
    assert [tag - tags[0] for tag in tags] == [place * TAG_BYTES for place in range(WINDOW)]
    assert not bench.hear(ACKNOWLEDGED, 200, tags[-1] + TAG_BYTES)
    assert not bench.hear(ACKNOWLEDGED, 200, tags[0] - 1)
    assert not bench.hear(ACKNOWLEDGED, 200, 0)


@pytest.mark.parametrize("code", [WOULD_BLOCK, NOT_READY])
async def test_what_the_library_does_not_take_now_waits_for_the_next_event_in_order(bench: Bench, code: int) -> None:
    bench.calls.plan = [(code, 3)]
    bench.send(10)
    await turn()
    assert bench.numbers == [0, 1, 2]
    assert not bench.hear(CAN_SEND, 0, 0)
    await turn()
    assert bench.numbers == list(range(10))


async def test_a_call_that_does_not_say_how_many_it_took_has_taken_none(bench: Bench) -> None:
    bench.calls.plan = [(SOLCLIENT_OK, 5), (NOT_READY, None)]
    bench.send(5)
    await turn()
    bench.send(7)
    await turn()
    bench.hear(CAN_SEND, 0, 0)
    await turn()
    assert bench.numbers == list(range(12))


async def test_a_blocked_library_is_tried_again_when_it_confirms(bench: Bench) -> None:
    bench.calls.plan = [(WOULD_BLOCK, 3)]
    bench.send(10)
    await turn()
    bench.confirm(1)
    await turn()
    assert bench.numbers == list(range(10))


async def test_later_messages_do_not_overtake_what_waits(bench: Bench) -> None:
    bench.calls.plan = [(WOULD_BLOCK, 0), (WOULD_BLOCK, 1), (WOULD_BLOCK, 0)]
    for _ in range(6):
        bench.send(2)
        await turn()
    assert bench.numbers == list(range(12))


async def test_nothing_is_given_to_a_session_that_is_gone(bench: Bench) -> None:
    bench.publisher.service.session_pointer = None
    futures = bench.send(2)
    await turn()
    assert bench.calls.calls == 0
    bench.publisher.fail_all("the session ended")
    for future in futures:
        with pytest.raises(PublishFailed, match="the session ended"):
            await future


async def test_a_message_that_cannot_be_written_is_refused_alone(bench: Bench) -> None:
    bench.unwritable = {"0", "2", "3"}
    futures = bench.send(5)
    await turn()
    assert bench.numbers == [1, 4]
    for number in (0, 2, 3):
        with pytest.raises(PublishRefused, match="for a test"):
            await futures[number]
    bench.confirm(2)
    await turn()
    assert futures[1].done()
    assert futures[4].done()
    assert len(bench.publisher._room) == WINDOW


async def test_messages_that_cannot_be_written_fill_no_call(bench: Bench) -> None:
    bench.unwritable = {str(number) for number in range(3 * BATCH)}
    futures = bench.send(3 * BATCH)
    await turn()
    assert bench.calls.calls == 0
    for future in futures:
        assert isinstance(future.exception(), PublishRefused)


async def test_a_message_that_the_library_does_not_want_fails_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = PubSubPlusClientError({"error_info_contents": "too large", "error_info_sub_code": 20})
    monkeypatch.setattr(fast_publish, "get_last_error_info", lambda *_: error)
    bench.calls.plan = [(FAILED, 2), (FAILED, 0)]
    futures = bench.send(6)
    await turn()
    for number in (2, 3):
        with pytest.raises(PublishRefused, match="too large"):
            await futures[number]
    assert bench.numbers == [0, 1, 4, 5]
    bench.confirm(4)
    await turn()
    assert all(future.done() for future in futures)


async def test_a_refusal_reaches_its_own_future_with_its_reason(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def last_error(code: int, _: str) -> Exception:
        asked.append(code)
        return PubSubPlusClientError({"error_info_contents": "Spool Over Quota", "error_info_sub_code": 71})

    monkeypatch.setattr(fast_publish, "get_last_error_info", last_error)
    futures = bench.send(6)
    await turn()
    tags = bench.tags()
    bench.hear(ACKNOWLEDGED, 200, tags[0])
    bench.hear(REJECTED, 503, tags[1])
    # While the network thread is at it, not later.
    assert asked == [503]
    # Those before a refused message may be confirmed after it.
    bench.hear(REJECTED, 503, tags[3])
    bench.hear(ACKNOWLEDGED, 200, tags[4])
    await turn()
    assert [future.done() for future in futures] == [True, True, True, True, True, False]
    assert [futures[number].result() for number in (0, 2, 4)] == [None] * 3
    for number in (1, 3):
        with pytest.raises(PublishRefused) as refusal:
            await futures[number]
        assert (refusal.value.topic, refusal.value.reason) == (str(number), "Spool Over Quota")
    bench.hear(REJECTED, 503, tags[5])
    await turn()
    assert isinstance(futures[5].exception(), PublishRefused)
    assert sorted(bench.publisher._room) == list(range(WINDOW))
    assert not bench.publisher._order


async def test_answers_of_which_the_loop_could_not_be_told_are_taken_with_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    futures = bench.send(3)
    await turn()
    with monkeypatch.context() as patched:
        patched.setattr(bench.publisher.inbox, "post", no_memory)
        with pytest.raises(MemoryError):
            bench.confirm(1)
    bench.confirm(2)
    await turn()
    assert [future.done() for future in futures] == [True, True, False]


async def test_a_refusal_whose_reason_cannot_be_had_is_no_confirm(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> Exception:
        raise MemoryError("for a test")

    futures = bench.send(3)
    await turn()
    monkeypatch.setattr(fast_publish, "get_last_error_info", no_memory)
    assert bench.hear(REJECTED, 503, bench.tags()[1])
    bench.confirm(3)
    await turn()
    with pytest.raises(PublishFailed, match="for a test"):
        await futures[1]
    assert [futures[number].result() for number in (0, 2)] == [None] * 2


async def test_messages_that_are_all_refused_give_their_places_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = PubSubPlusClientError({"error_info_contents": "no", "error_info_sub_code": 71})
    monkeypatch.setattr(fast_publish, "get_last_error_info", lambda *_: error)
    futures = bench.send(2 * WINDOW)
    await turn()
    for number in range(2 * WINDOW):
        bench.hear(REJECTED, 503, bench.tags()[number])
        await turn()
    assert all(isinstance(future.exception(), PublishRefused) for future in futures)


async def test_a_message_whose_sender_has_gone_since_it_left_is_confirmed_all_the_same(bench: Bench) -> None:
    first, second = bench.send(2)
    await turn()
    first.cancel()
    bench.confirm(2)
    await turn()
    assert second.done()
    assert len(bench.publisher._room) == WINDOW


async def test_the_end_fails_everything_frees_everything_and_late_answers_change_nothing(bench: Bench) -> None:
    futures = bench.send(WINDOW + 5)
    await turn()
    bench.confirm(1)
    bench.publisher.fail_all("closed")
    assert sorted(bench.calls.freed) == sorted(bench.calls.allocated) == list(range(1_000, 1_000 + BATCH))
    for future in futures:
        error = future.exception()
        assert isinstance(error, PublishFailed)
        assert error.reason == "closed"
    bench.confirm(WINDOW)
    bench.hear(CAN_SEND, 0, 0)
    await turn()
    assert len(bench.numbers) == WINDOW
    bench.publisher.fail_all("again")
    assert len(bench.calls.freed) == BATCH


async def test_what_has_failed_with_its_session_is_not_sent_by_a_late_event(bench: Bench) -> None:
    """The session may live on for a moment, and whoever was told may have sent it again in the next one."""
    bench.calls.plan = [(WOULD_BLOCK, 1)]
    bench.send(3)
    await turn()
    bench.publisher.fail_all("logs in again")
    bench.hear(CAN_SEND, 0, 0)
    await turn()
    assert bench.numbers == [0]


class Scarce:
    """Calls that may fail for want of memory: the one with a given number does, and no other."""

    def __init__(self, fails_at: int) -> None:
        self.left = fails_at

    def __call__(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*arguments: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise MemoryError("no room")
            return call(*arguments)

        return calling

    def deque(self, items: deque[Any]) -> deque[Any]:
        class ScarceDeque(deque[Any]):
            append = self(deque.append)
            appendleft = self(deque.appendleft)
            extendleft = self(deque.extendleft)

        return ScarceDeque(items)


async def leave_with_a_failure(monkeypatch: pytest.MonkeyPatch, code: int, fails_at: int) -> bool:
    """Send more than a batch while the call with this number fails; return whether there are so many."""
    bench, scarce = Bench(), Scarce(fails_at)
    publisher, calls = bench.publisher, bench.calls
    before = bench.send(2)
    await turn()
    futures = bench.send(BATCH + 3)
    calls.plan = [] if code == SOLCLIENT_OK else [(code, 2)]
    error = PubSubPlusClientError({"error_info_contents": "too large", "error_info_sub_code": 20})
    monkeypatch.setattr(fast_publish, "get_last_error_info", scarce(lambda *_: error))
    monkeypatch.setattr(native, "missing_right", scarce(lambda *_: None))
    monkeypatch.setattr(publisher, "_write", scarce(publisher._write))
    monkeypatch.setattr(calls, "send", scarce(calls.send))
    for name in ("_order", "_waiting", "_room"):
        monkeypatch.setattr(publisher, name, scarce.deque(getattr(publisher, name)))
    await turn()
    is_struck = scarce.left <= 0
    assert not (is_struck and publisher._waiting), "nothing may ever flush it"
    scarce.left, calls.plan = 0, []
    # What the library has it confirms, and what comes later finds everything as it should be.
    (after,) = bench.send(1)
    await turn()
    bench.confirm(len(bench.tags()))
    await turn()
    every = [*before, *futures, after]
    assert all(future.done() for future in every)
    assert bench.numbers == [number for number, future in enumerate(every) if future.exception() is None]
    assert after.exception() is None
    assert len(publisher._room) >= WINDOW - is_struck, "a place may be lost"
    assert len(set(publisher._room)) == len(publisher._room), "and none is free twice"
    assert not publisher._order
    return is_struck


@pytest.mark.parametrize("code", [SOLCLIENT_OK, WOULD_BLOCK, FAILED])
async def test_whatever_fails_while_a_batch_leaves_each_future_has_an_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    fails_at = 1
    while await leave_with_a_failure(monkeypatch, code, fails_at):
        fails_at += 1
    assert fails_at > 2 * BATCH
    assert failures == ["no room"] * (fails_at - 1), "each is told"


async def test_a_message_that_did_not_leave_is_not_confirmed_with_later_ones_even_if_nobody_could_be_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory is short, so it is for telling that. Its place was left among those that the library has."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def no_memory(*_: object) -> None:
        raise MemoryError("no room")

    futures = bench.send(3)
    with monkeypatch.context() as patch:
        patch.setattr(bench.calls, "send", no_memory)
        patch.setattr(fast_publish, "PublishFailed", no_memory)
        await turn()
    (after,) = bench.send(1)
    await turn()
    bench.confirm(1)
    await turn()
    assert bench.numbers == [3]
    assert after.result() is None
    for future in futures:
        assert isinstance(future.exception(), PublishFailed)
    assert sorted(bench.publisher._room) == list(range(WINDOW))
    assert not bench.publisher._order


async def test_messages_that_the_client_could_not_make_are_made_by_the_next_try(bench: Bench) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    alloc, bench.calls.alloc = bench.calls.alloc, lambda _: FAILED  # type: ignore[method-assign]
    (first,) = bench.send(1)
    await turn()
    assert isinstance(first.exception(), PublishFailed)
    bench.calls.alloc = lambda reference: alloc(reference) if len(bench.calls.allocated) < 7 else FAILED  # type: ignore[method-assign]
    (second,) = bench.send(1)
    await turn()
    assert isinstance(second.exception(), PublishFailed)
    bench.calls.alloc = alloc  # type: ignore[method-assign]
    bench.send(BATCH)
    await turn()
    assert bench.numbers == list(range(2, BATCH + 2))


async def test_a_send_that_raises_sends_nothing_and_keeps_no_other_from_leaving(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "call_soon", Scarce(1)(print))
        with pytest.raises(MemoryError):
            bench.send(1)
    bench.count += 1
    bench.send(2)
    await turn()
    assert bench.numbers == [1, 2]


async def test_a_publisher_that_publishes_nothing_allocates_nothing(bench: Bench) -> None:
    bench.hear(CAN_SEND, 0, 0)
    await turn()
    bench.publisher.fail_all("closed")
    assert bench.calls.allocated == bench.calls.freed == []
    assert bench.calls.pins == 0


async def test_a_session_that_may_not_publish_is_told_of_at_a_refusal_and_at_a_login_with_something_waiting(
    bench: Bench,
) -> None:
    told: list[str] = []
    bench.publisher.on_lacking = told.append
    bench.publisher.logged_in()
    (future,) = bench.send(1)
    bench.publisher.logged_in()
    assert told == []
    bench.lack = "no right"
    bench.publisher.logged_in()
    assert told == ["no right"]
    bench.calls.plan = [(FAILED, 0)]
    await turn()
    assert told == ["no right"] * 2
    with pytest.raises(PublishFailed, match="no right"):
        await future
    bench.publisher.logged_in()
    assert told == ["no right"] * 2
