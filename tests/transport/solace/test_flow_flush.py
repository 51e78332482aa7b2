"""When settlements leave, on virtual time: what a crash has handled again is what was settled since."""

import asyncio
from typing import Any, cast

import pytest

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.transport.solace.flow import ACK_DELAY_S, SolaceFlow


class Path:
    """A receive path that notes what it is asked for."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.left: list[tuple[float, list[int]]] = []

    def accept(self, delivery_id: DeliveryId) -> bool:
        self.waiting.append(delivery_id)
        return True

    def set_intake(self, *, is_open: bool) -> None:
        if self.waiting:
            self.left.append((asyncio.get_running_loop().time(), self.waiting))
            self.waiting = []

    def end(self) -> None: ...


def _bound() -> tuple[SolaceFlow, Path]:
    path, nobody = Path(), cast(Any, None)
    flow = SolaceFlow(nobody, nobody, QueueName("q"), Epoch(1), lambda _: None, lambda *_: cast(Any, path), nobody, 255)
    flow.handed_over()
    return flow, path


async def test_what_is_settled_leaves_in_half_a_second() -> None:
    flow, path = _bound()
    start = asyncio.get_running_loop().time()
    for number in range(1, 11):
        flow.settle(DeliveryId(number), Outcome.ACCEPTED)
        await asyncio.sleep(0.11)
    await asyncio.sleep(1)
    left = [(round(at - start, 3), ids) for at, ids in path.left]
    assert left == [(ACK_DELAY_S, [1, 2, 3, 4, 5]), (1.05, [6, 7, 8, 9, 10])]


async def test_a_flush_that_could_not_be_arranged_is_arranged_by_the_next_settlement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow, path = _bound()

    def call_later(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "call_later", call_later)
        with pytest.raises(MemoryError):
            flow.settle(DeliveryId(1), Outcome.ACCEPTED)
    flow.settle(DeliveryId(2), Outcome.ACCEPTED)
    await asyncio.sleep(1)
    assert [ids for _, ids in path.left] == [[1, 2]]


async def test_what_a_flush_asks_for_leaves_at_once() -> None:
    flow, path = _bound()
    flow.settle(DeliveryId(1), Outcome.ACCEPTED)
    assert path.left == []
    flow.flush()
    assert [ids for _, ids in path.left] == [[1]]


async def test_a_handle_that_died_leaves_no_timer() -> None:
    flow, _ = _bound()
    flow.settle(DeliveryId(1), Outcome.ACCEPTED)
    flow.silence()
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]  # only the loop knows its timers
    assert all(each.cancelled() for each in scheduled)


async def test_a_handle_that_died_meanwhile_flushes_nothing() -> None:
    flow, path = _bound()
    flow.settle(DeliveryId(1), Outcome.ACCEPTED)
    flow.silence()
    await asyncio.sleep(1)
    assert path.left == []
