"""The window of the fast path and its callback, on a client that only takes notes; virtual time."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast.path import FLUSH_EVERY, PATIENCE_S, FastPath
from lbg_runtime.transport.solace.inbound import UnreadableMessage
from lbg_runtime.transport.solace.inbox import FULL, Inbox


class NotedCalls:
    """In place of `FastCalls`."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.settled: list[int] = []
        self.freed: list[int] = []
        self.settle_code = 0

    def pin(self) -> int:
        self.notes.append("pin")
        return 0

    def start(self, handle: Any) -> int:
        self.notes.append("start")
        return 0

    def stop(self, handle: Any) -> int:
        self.notes.append("stop")
        return 0

    def accept_of(self, handle: Any) -> Callable[[DeliveryId], int]:
        def accept(delivery_id: DeliveryId) -> int:
            self.settled.append(delivery_id)
            return self.settle_code

        return accept

    def free(self, reference: Any) -> int:
        self.freed.append(reference._obj.value)
        return 0

    def take_notes(self) -> list[str]:
        notes, self.notes = self.notes, []
        return notes


class Owner:
    """In place of the flow."""

    queue, epoch = QueueName("q"), Epoch(1)

    def __init__(self) -> None:
        self.arrivals: list[DeliveryId] = []
        self.reasons: list[str] = []
        self.refused: list[str] = []

    def arrived(self, delivery: Delivery) -> None:
        self.arrivals.append(delivery.delivery_id)

    def refuse(self, error: UnreadableMessage) -> None:
        self.refused.append(error.reason)

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)


class Bench:
    """A path whose callback the test calls, from the loop's thread: the order of calls is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiled, "INTAKE", None)
        self.calls, self.owner = NotedCalls(), Owner()
        self.inbox = Inbox(asyncio.get_running_loop())
        self.read: Callable[[int], None] = lambda _: None
        self.path = FastPath(self.calls, self._read, self.inbox, self.owner)  # type: ignore[arg-type]
        self.patience = True
        self.waits = 0
        self.inbox.wait_for_room = self._wait  # type: ignore[method-assign]  # this is the loop's thread
        receiver = SimpleNamespace(flow_p=object())
        self.path.attach(receiver)
        self.callback = receiver._flow_msg_callback_func_routine
        self.received = 0

    def _wait(self, timeout_s: float) -> bool:
        assert timeout_s == PATIENCE_S
        self.waits += 1
        return self.patience

    def _read(self, pointer: int, queue: QueueName, epoch: Epoch) -> Delivery:
        self.read(pointer)
        return Delivery(queue, epoch, DeliveryId(pointer), Message("t", b""), False, 0)

    def receive(self, count: int) -> list[int]:
        numbers = range(self.received + 1, self.received + count + 1)
        self.received += count
        return [self.callback(None, number, None) for number in numbers]

    async def hand_over(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def settle(self, count: int) -> None:
        first = len(self.calls.settled) + 1
        assert all(self.path.accept(DeliveryId(number)) for number in range(first, first + count))


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(monkeypatch)
    bench.path.set_intake(is_open=True)
    assert bench.calls.take_notes() == ["start"]
    return bench


async def test_the_state_of_the_thread_is_kept_once_and_messages_are_taken(bench: Bench) -> None:
    assert bench.receive(3) == [1, 1, 1]
    await bench.hand_over()
    assert bench.owner.arrivals == [1, 2, 3]
    assert bench.calls.take_notes() == ["pin"]


async def test_settlements_are_flushed_now_and_then_while_the_window_is_open(bench: Bench) -> None:
    for _ in range(3):
        bench.settle(FLUSH_EVERY - 1)
        assert bench.calls.take_notes() == []
        bench.settle(1)
        assert bench.calls.take_notes() == ["start"]
    bench.path.set_intake(is_open=False)
    assert bench.calls.take_notes() == ["stop"]
    bench.settle(2 * FLUSH_EVERY)
    assert bench.calls.take_notes() == []


async def test_a_loop_that_keeps_up_is_not_waited_for(bench: Bench) -> None:
    for _ in range(5):
        bench.receive(FULL - 1)
        await bench.hand_over()
    assert bench.waits == 0


async def test_a_busy_loop_is_waited_for_and_the_window_stays_open(bench: Bench) -> None:
    bench.receive(FULL)
    assert bench.waits == 1
    bench.receive(2)
    assert bench.waits == 3
    await bench.hand_over()
    assert bench.calls.take_notes() == ["pin"]


async def test_a_blocked_loop_closes_the_window_once_and_opens_it_when_it_moves(bench: Bench) -> None:
    bench.patience = False
    bench.receive(FULL + 100)
    assert bench.waits == 1
    assert bench.calls.take_notes() == ["pin", "stop"]
    await bench.hand_over()
    assert bench.calls.take_notes() == ["start"]
    bench.receive(FULL)
    assert bench.waits == 2
    assert bench.calls.take_notes() == ["stop"]
    await bench.hand_over()
    assert bench.calls.take_notes() == ["start"]


async def test_the_window_opens_in_its_turn_among_the_messages(bench: Bench) -> None:
    bench.patience = False
    seen: list[list[str]] = []
    bench.read = lambda _: seen.append(bench.calls.take_notes())
    bench.receive(FULL + 10)
    bench.calls.take_notes()
    await bench.hand_over()
    # After what had come before the window was closed, and before what was under way.
    assert [number for number, notes in enumerate(seen) if notes] == [FULL]
    assert seen[FULL] == ["start"]


async def test_an_intake_that_the_runtime_closed_stays_closed_when_the_loop_moves_again(bench: Bench) -> None:
    bench.patience = False
    bench.receive(FULL + 50)
    bench.path.set_intake(is_open=False)
    assert bench.calls.take_notes() == ["pin", "stop", "stop"]
    await bench.hand_over()
    bench.settle(FULL + 50)
    assert bench.calls.take_notes() == []
    bench.path.set_intake(is_open=True)
    assert bench.calls.take_notes() == ["start"]


async def test_the_window_of_a_flow_that_has_ended_meanwhile_is_left_alone(bench: Bench) -> None:
    """Its session may be being freed at that moment."""
    bench.patience = False
    bench.receive(FULL)
    assert bench.calls.take_notes() == ["pin", "stop"]
    bench.path.end()
    await bench.hand_over()
    assert bench.calls.take_notes() == []


async def test_the_runtime_opens_no_window_of_a_loop_that_is_behind(bench: Bench) -> None:
    bench.patience = False
    bench.receive(FULL)
    bench.calls.take_notes()
    # As after an outage too: closed once more, in case that got lost.
    bench.path.set_intake(is_open=True)
    assert bench.calls.take_notes() == ["stop"]
    bench.settle(FLUSH_EVERY)
    assert bench.calls.take_notes() == []
    await bench.hand_over()
    assert bench.calls.take_notes() == ["start"]


async def test_a_settlement_that_the_client_refuses_is_told(bench: Bench) -> None:
    bench.receive(1)
    bench.calls.settle_code = -1
    assert not bench.path.accept(DeliveryId(1))


async def test_a_callback_that_fails_ends_the_flow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise MemoryError("for a test")

    assert bench.receive(2) == [1, 1]
    again = Bench(monkeypatch)
    monkeypatch.setattr(again.calls, "pin", fail)
    assert again.receive(1) == [0]
    await again.hand_over()
    assert again.owner.arrivals == []
    assert again.owner.reasons == ["a message could not be taken: MemoryError('for a test')"]


async def test_a_callback_that_fails_when_it_has_taken_the_message_says_that_it_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(timeout_s: float) -> bool:
        raise MemoryError("for a test")

    monkeypatch.setattr(bench.inbox, "wait_for_room", fail)
    # Else it would be freed twice.
    assert bench.receive(FULL) == [1] * FULL
    await bench.hand_over()
    assert bench.owner.reasons == ["a message could not be taken: MemoryError('for a test')"]


async def test_a_callback_that_cannot_wake_the_loop_says_that_it_has_taken_the_message(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the inbox, which would free it as well as the client; and the next one wakes the loop for both."""
    call, failures = bench.inbox._loop.call_soon_threadsafe, [MemoryError("for a test")]

    def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return call(*arguments)

    monkeypatch.setattr(bench.inbox, "_loop", SimpleNamespace(call_soon_threadsafe=fail_once))
    assert bench.receive(1) == [1]
    await bench.hand_over()
    assert bench.owner.reasons == ["a message could not be taken: MemoryError('for a test')"]
    assert (bench.owner.arrivals, bench.calls.freed) == ([], [1])


async def test_messages_that_cannot_even_be_looked_at_are_freed_and_end_the_flow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Poor(list[int]):
        def __iter__(self) -> Any:
            if poor.pop():
                raise MemoryError("for a test")
            return super().__iter__()

    poor = [False, True]
    with pytest.raises(MemoryError):
        bench.path.take_each(Poor([1, 2]))
    bench.path.take_each([3])
    assert bench.owner.reasons == ["a message could not be read"]
    assert (bench.owner.arrivals, bench.calls.freed) == ([], [1, 2, 3])


async def test_nothing_is_shown_behind_a_message_that_is_lost(bench: Bench) -> None:
    bench.receive(2)
    bench.path.broken(MemoryError("for a test"))
    await bench.hand_over()
    assert (bench.owner.arrivals, bench.calls.freed) == ([], [1, 2])
    assert bench.owner.reasons == ["a message could not be taken: MemoryError('for a test')"]


@pytest.mark.parametrize("is_foreseen", [True, False], ids=["foreseen", "bug"])
async def test_a_message_that_cannot_be_read_ends_the_flow(bench: Bench, is_foreseen: bool) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def refuse(pointer: int) -> None:
        if pointer == 2:
            raise UnreadableMessage("for a test") if is_foreseen else ZeroDivisionError

    bench.read = refuse
    bench.receive(3)
    await bench.hand_over()
    # Not even what comes when the handle, which still waits for settlements, has told of it.
    bench.receive(1)
    await bench.hand_over()
    assert (bench.owner.arrivals, bench.calls.freed) == ([1], [3, 4])
    assert bench.owner.refused == (["for a test"] if is_foreseen else [])
    assert bench.owner.reasons == ([] if is_foreseen else ["a message could not be read"])
    assert [type(error) for error in reported] == ([] if is_foreseen else [ZeroDivisionError])


async def test_what_the_loop_never_took_is_freed_when_the_inbox_is_closed(bench: Bench) -> None:
    bench.receive(3)
    bench.inbox.close()
    assert bench.calls.freed == [1, 2, 3]
    assert bench.receive(2) == [1, 1]
    assert bench.calls.freed == [1, 2, 3, 4, 5]
    await asyncio.sleep(0)
    assert bench.owner.arrivals == []


def test_what_comes_when_the_loop_is_closed_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def make() -> Bench:
        return Bench(monkeypatch)

    loop = asyncio.new_event_loop()
    bench = loop.run_until_complete(make())
    loop.close()
    assert bench.receive(3) == [1, 1, 1]
    assert bench.calls.freed == [1, 2, 3]
