"""The lane of a flow handle while its member lands: no delivery twice in a lane, whatever its handler goes through.

More than 400 lines, as all of it is tried on one bench.
"""

import asyncio
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import LandingWriteFailed
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message
from lbg_runtime.pipeline.landing import lane as lane_module
from lbg_runtime.pipeline.landing import rows
from lbg_runtime.pipeline.landing.lane import LaneWriter, is_being_written
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.open_lane import FlushLimits, OpenLane
from tests.pipeline.landing.landed import LogOnDisk, ids_of


def message(number: int) -> Message:
    properties = {PARTITION_KEY_PROPERTY: "k", PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: number}
    return Message("hp/3/orders", b"x", properties, sent_at_ms=number)


def foreign(number: int) -> Message:
    """Of a publisher that is not ours."""
    return Message("hp/3/orders", f"{number}".encode(), sent_at_ms=number)


class Bench:
    """An open lane, and the gate that its flushes wait at."""

    def __init__(self, log: LogOnDisk, threads: Executor, limits: FlushLimits) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.log = log
        self.written: list[int] = []
        self.open = OpenLane(3, "m-1.1", self._make_writer, limits, threads, lambda: 1, self.written.append)

    def _make_writer(self) -> LaneWriter:
        self.gate.wait(30)
        return self.log.lane(handle="m-1.1")

    async def land(
        self, number: int, received_at_ns: int | None = None, made: Callable[[int], Message] = message
    ) -> None:
        await self.open.land(made(number), 3, "k", DeliveryId(number), redelivered=False, received_at_ns=received_at_ns)

    def begin(self, number: int) -> "asyncio.Task[None]":
        return asyncio.create_task(self.land(number))

    def lanes(self) -> list[list[int]]:
        """The numbers in each lane, as they lie there, copies and all."""
        log = LandingLog(self.log.root)
        return [
            [int(each.split(".")[1].split("/")[0]) for each in ids_of(log.read(name, 0, extent.rows))]
            for name, extent in log.lanes().items()
        ]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture
async def bench(log_on_disk: LogOnDisk, threads: ThreadPoolExecutor) -> Bench:
    return Bench(log_on_disk, threads, FlushLimits(rows=3, wait_ms=20))


async def test_rows_that_come_together_are_flushed_together(bench: Bench) -> None:
    await asyncio.gather(*(bench.land(number) for number in range(1, 6)))
    assert bench.lanes() == [[1, 2, 3, 4, 5]]
    assert len(bench.written) == 2
    [lane] = bench.log.root.glob("queue=003/lane=*")
    assert is_being_written(lane)
    await bench.open.close()
    assert not is_being_written(lane), "others may prune it"


async def test_as_many_rows_as_a_flush_takes_that_came_during_the_last_one_land_though_nothing_follows(
    bench: Bench,
) -> None:
    bench.gate.clear()
    first = [bench.begin(number) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    following = [bench.begin(number) for number in (4, 5, 6)]
    await asyncio.sleep(0)
    bench.gate.set()
    await asyncio.wait_for(asyncio.gather(*first, *following), 1)
    assert bench.lanes() == [[1, 2, 3, 4, 5, 6]]
    await bench.open.close()


async def test_what_was_written_adds_up_to_what_the_lane_holds(bench: Bench) -> None:
    for number in (1, 2, 3):
        await bench.land(number)
    [lane] = bench.log.lanes
    assert sum(bench.written) == lane.bytes
    assert min(bench.written) > 0
    await bench.open.close()


async def test_a_lane_whose_rows_could_not_be_made_is_let_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    await bench.land(1)
    with monkeypatch.context() as patched:
        patched.setattr("lbg_runtime.pipeline.landing.open_lane.to_batches", fail)
        with pytest.raises(MemoryError):
            await bench.land(2)
    [lane] = bench.log.root.glob("queue=003/lane=*")
    assert not is_being_written(lane)
    await bench.land(2)
    assert bench.lanes() == [[1], [2]]
    await bench.open.close()


async def test_the_first_row_waits_no_longer_than_it_is_said(bench: Bench) -> None:
    began_s = asyncio.get_running_loop().time()
    await bench.land(1)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(0.02)
    await bench.open.close()


async def test_nor_does_it_where_others_come_before_its_time_is_up(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    first = bench.begin(1)
    await asyncio.sleep(0.015)
    second = bench.begin(2)
    await first
    assert loop.time() - began_s == pytest.approx(0.02)
    await second
    assert len(bench.written) == 1
    await bench.open.close()


async def test_a_row_that_was_held_up_by_the_last_flush_waits_for_others_of_these_alone(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    await bench.land(1)
    began_s = loop.time()
    held_up = asyncio.create_task(bench.land(2, received_at_ns=0))
    await asyncio.sleep(0.0008)
    await bench.land(3, received_at_ns=0)
    assert loop.time() - began_s == pytest.approx(0.0018)
    await held_up
    assert len(bench.written) == 2
    # This one came when the flush had begun.
    began_s = loop.time()
    await bench.land(4, received_at_ns=int(began_s * 1e9))
    assert loop.time() - began_s == pytest.approx(0.02)
    assert bench.lanes() == [[1, 2, 3, 4]]
    await bench.open.close()


async def test_rows_that_wait_are_flushed_with_one_that_was_held_up(bench: Bench) -> None:
    await bench.land(1)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    waiting = bench.begin(2)
    await asyncio.sleep(0.005)
    await bench.land(3, received_at_ns=0)
    await waiting
    assert loop.time() - began_s == pytest.approx(0.006)
    assert bench.lanes() == [[1, 2, 3]]
    await bench.open.close()


async def test_so_are_those_that_come_after_it(bench: Bench) -> None:
    await bench.land(1)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    waiting = asyncio.create_task(bench.land(2, received_at_ns=0))
    await asyncio.sleep(0.0005)
    await bench.land(3, received_at_ns=int(loop.time() * 1e9))
    await waiting
    assert loop.time() - began_s == pytest.approx(0.0015)
    await bench.open.close()


async def test_rows_in_a_hurry_wait_for_no_others_and_neither_does_what_waits_with_them(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    bench.open.hurry()
    first = bench.begin(1)
    await asyncio.sleep(0.005)
    bench.open.hurry()
    await first
    assert loop.time() - began_s == pytest.approx(0.005)
    waiting = bench.begin(2)
    await bench.open.land(message(3), 3, "k", DeliveryId(3), redelivered=False, is_hurried=True)
    await waiting
    assert loop.time() - began_s == pytest.approx(0.006)
    assert len(bench.written) == 2
    await bench.open.close()


async def test_a_handler_that_is_cancelled_before_the_flush_lands_its_row_once(bench: Bench) -> None:
    first = bench.begin(1)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait((first,))
    assert first.cancelled(), "its row has not landed"
    await bench.land(1)
    await bench.land(2)
    assert bench.lanes() == [[1, 2]]
    await bench.open.close()


async def test_so_does_one_that_is_cancelled_while_it_is_written(bench: Bench) -> None:
    bench.gate.clear()
    first = bench.begin(1)
    await asyncio.sleep(0.02)
    first.cancel()
    await asyncio.wait((first,))
    again = bench.begin(1)
    await asyncio.sleep(0)
    bench.gate.set()
    await again
    assert bench.lanes() == [[1]]
    await bench.open.close()


async def test_and_one_that_is_cancelled_twice(bench: Bench) -> None:
    bench.gate.clear()
    # After the first of them the flush is under way, and time stands still while a thread works.
    for delay_s in (0.02, 0):
        handler = bench.begin(1)
        await asyncio.sleep(delay_s)
        handler.cancel()
        await asyncio.wait((handler,))
    bench.gate.set()
    await bench.land(1)
    assert bench.lanes() == [[1]]
    await bench.open.close()


async def test_after_a_flush_that_failed_another_lane_is_begun(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.land(1)
    append = lane_module.SegmentWriter.append

    def fail(self: lane_module.SegmentWriter, batch: object) -> None:
        append(self, batch)
        raise LandingWriteFailed("lane", "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(lane_module.SegmentWriter, "append", fail)
        with pytest.raises(LandingWriteFailed):
            await bench.land(2)
    await bench.land(2)
    await bench.land(3)
    assert bench.lanes() == [[1, 2], [2, 3]]
    await bench.open.close()


@pytest.mark.parametrize("step", [1, 2, 9], ids=["row_by_row", "two_by_two", "at_once"])
async def test_rows_of_a_foreign_publisher_come_once_though_flushes_failed_when_they_could_be_seen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Nothing in a range of an index told of them, and each came with every flush that had failed."""
    flushes = itertools.count(1)
    bench.open._clock_us = lambda: next(flushes)
    # Every row is a batch of its own, as where payloads are large.
    monkeypatch.setattr(rows, "FLUSH_BYTES", 1)
    append = lane_module.SegmentWriter.append
    appends = itertools.count(1)

    def fail_at_the_end(self: lane_module.SegmentWriter, batch: object) -> None:
        append(self, batch)
        if next(appends) in (3, 5):
            raise LandingWriteFailed("lane", "Input/output error")

    async def land(*numbers: int) -> None:
        await asyncio.gather(*(bench.land(number, made=foreign) for number in numbers))

    monkeypatch.setattr(lane_module.SegmentWriter, "append", fail_at_the_end)
    await land(1)
    for _ in range(2):
        with pytest.raises(LandingWriteFailed):
            await land(2, 3)
    await land(2, 3, 4)
    log = LandingLog(bench.log.root)
    end = {name: extent.rows for name, extent in log.lanes(3).items()}
    assert list(end.values()) == [3, 2, 3]
    at, found = {}, []
    while at != end:
        to = log.cut(3, at, end, step)
        found += [each for batch in log.read_queue(3, at, to) for each in batch.column("payload").to_pylist()]
        at = to
    assert found == [b"1", b"2", b"3", b"4"]
    await bench.open.close()


async def test_a_row_whose_handler_was_cancelled_and_whose_flush_failed_is_written_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> LaneWriter:
        bench.gate.wait(30)
        raise LandingWriteFailed("lane", "No space left on device")

    bench.gate.clear()
    monkeypatch.setattr(bench.open, "_make_writer", fail)
    first = bench.begin(1)
    await asyncio.sleep(0.02)
    first.cancel()
    await asyncio.wait((first,))
    again = bench.begin(1)
    await asyncio.sleep(0)
    monkeypatch.undo()
    bench.gate.set()
    await again
    assert bench.lanes() == [[1]]
    await bench.open.close()


@pytest.mark.parametrize("left", [2, 5])
async def test_rows_whose_handlers_are_gone_are_not_flushed_when_the_lane_is_closed(bench: Bench, left: int) -> None:
    bench.gate.clear()
    flushed = [bench.begin(number) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    waiting = [bench.begin(number) for number in range(4, 4 + left)]
    await asyncio.sleep(0)
    for handler in waiting:
        handler.cancel()
    await asyncio.wait(waiting)
    closing = asyncio.create_task(bench.open.close())
    await asyncio.sleep(0)
    bench.gate.set()
    with capture_logs() as logs:
        await asyncio.gather(closing, *flushed)
        await asyncio.sleep(1)
    assert bench.lanes() == [[1, 2, 3]]
    assert logs == []


async def test_a_lane_that_ends_before_its_first_flush_is_not_begun(bench: Bench) -> None:
    handler = bench.begin(1)
    await asyncio.sleep(0)
    handler.cancel()
    await asyncio.wait((handler,))
    await bench.open.close()
    await asyncio.sleep(1)
    assert list(bench.log.root.glob("queue=*")) == []


async def test_a_lane_whose_closing_is_cancelled_on_a_slow_disk_ends_with_its_flush(bench: Bench) -> None:
    bench.gate.clear()
    flushed = [bench.begin(number) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(bench.open.close())
    await asyncio.sleep(0)
    assert not closing.done()
    closing.cancel()
    await asyncio.wait((closing,))
    bench.gate.set()
    await asyncio.gather(*flushed)
    [lane] = bench.log.root.glob("queue=003/lane=*")
    assert not is_being_written(lane)
    assert bench.lanes() == [[1, 2, 3]]


def test_a_lane_is_begun_once(log_on_disk: LogOnDisk, tmp_path: Path) -> None:
    log_on_disk.lane().close()
    log_on_disk.ticks = iter([1])  # type: ignore[assignment]  # the same moment again
    with pytest.raises(LandingWriteFailed):
        log_on_disk.lane()


async def test_after_its_lane_was_taken_away_another_is_begun(bench: Bench) -> None:
    await bench.land(1)
    [lost] = bench.log.root.glob("queue=003/lane=*")
    shutil.rmtree(lost)
    with pytest.raises(LandingWriteFailed):
        await bench.land(2)
    await bench.land(2)
    assert bench.lanes() == [[2]]
    await bench.open.close()


async def test_a_row_of_a_lane_that_was_taken_away_is_not_claimed_for_the_next_attempt(bench: Bench) -> None:
    first = bench.begin(1)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait((first,))
    await bench.land(2)
    [lost] = bench.log.root.glob("queue=003/lane=*")
    shutil.rmtree(lost)
    with pytest.raises(LandingWriteFailed):
        await bench.land(3)
    await bench.land(1)
    assert bench.lanes() == [[1]]
    await bench.open.close()


class OnDemand(Executor):
    """Flushes when it is told to, so that what comes just before the end of a flush is no matter of chance."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]  # as the class above has it
        future: Future[object] = Future()

        def call() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except LandingWriteFailed as error:
                future.set_exception(error)

        self._calls.append(call)
        return future

    def flush(self) -> None:
        self._calls.pop(0)()


async def test_nor_if_it_is_taken_away_just_when_that_attempt_asks_for_the_row(log_on_disk: LogOnDisk) -> None:
    threads = OnDemand()
    bench = Bench(log_on_disk, threads, FlushLimits(rows=3, wait_ms=20))
    first = bench.begin(1)
    await asyncio.sleep(0.02)
    first.cancel()
    await asyncio.wait((first,))
    threads.flush()
    await asyncio.sleep(0.001)
    assert bench.lanes() == [[1]]
    others = [bench.begin(number) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    [lost] = bench.log.root.glob("queue=003/lane=*")
    shutil.rmtree(lost)
    again = bench.begin(1)
    threads.flush()
    found = await asyncio.gather(*others, return_exceptions=True)
    assert [type(each) for each in found] == [LandingWriteFailed] * 3
    await asyncio.sleep(0.02)
    threads.flush()
    await again
    assert bench.lanes() == [[1]]
    await bench.open.close()
