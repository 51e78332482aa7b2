"""`lbg land`: an ordinary handler of the runtime, which returns when its message is durable.

So every law of the runtime holds for what lands: one flow feeds a queue, a key lands in order, a message is settled
only after it is on the disk, and what was not settled comes again. What comes again lands again, in another lane;
readers drop the copy.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from lbg_runtime.admin.stored import Difference
from lbg_runtime.config.fields import MAX_INTERVAL_MS
from lbg_runtime.config.settings import GroupBackend, MissingKey, Settings
from lbg_runtime.metrics.reading import SidecarReading
from lbg_runtime.model.errors import ConfigError, InvariantViolated, LandingError, UserError
from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.sole_error import sole_error
from lbg_runtime.pipeline.landing.age import Ages
from lbg_runtime.pipeline.landing.lane import SEGMENT_BYTES, LaneWriter
from lbg_runtime.pipeline.landing.layout import GroupNote, claim_folder
from lbg_runtime.pipeline.landing.open_lane import FlushLimits, OpenLane
from lbg_runtime.pipeline.landing.prune import Unpruned, prune
from lbg_runtime.pipeline.landing.room import Room
from lbg_runtime.pipeline.landing.usage import DiskSpace, disk_space, used_bytes
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.clock import steady_s, wall_us
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.runners.batch_turns import BatchTurns
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING
from lbg_runtime.runtime.runners.pool import CURRENT_POOL, aside
from lbg_runtime.runtime.session import Session
from lbg_runtime.transport.threads import started_threads

_log = structlog.get_logger(__name__)

THREADS = 4
"""For flushes: they wait for the disk, each for a different lane."""

MEASURE_S = 2.0
"""Between two measurements of what the log holds; other members write into it too."""

PRUNE_S = 60.0
"""Between two prunings, or the retention if that is shorter."""

IDLE_MS = 60_000
"""Without a retention, a lane in a full log ends when nothing has landed in it for this long."""

MAX_IN_FLIGHT = 2_500
"""Per queue, unless the settings say more: a quarter of what a broker allows unsettled on a flow, as with hot keys four
times as many may be under way."""


@dataclass(frozen=True, slots=True)
class LandingOptions:
    """How a member lands."""

    root: Path
    limits: FlushLimits = field(default_factory=FlushLimits)
    is_synced: bool = True
    """Whether a flush is on the disk when it is done, not only with the operating system."""
    quota_bytes: int | None = None
    """Of the whole log: when it holds this many, nothing more is taken."""
    retention_ms: int | None = None
    """Rows that landed longer ago are pruned. None: they stay until `lbg landing prune`."""
    segment_bytes: int = SEGMENT_BYTES


def lander_app(
    settings: Settings,
    options: LandingOptions,
    *,
    member_index: int | None = None,
    member_count: int | None = None,
    member_id: str | None = None,
    session: Session | None = None,
) -> tuple[App, "Lander"]:
    """A member that lands the messages of its group. The settings of handlers, of the sidecar and of what follows their
    failures do not apply, and no message is refused for lack of a key.

    The other parameters are those of `App`. Raises as `App`, and as `claim_folder`; `ConfigError` for a partitioned
    queue.
    """
    if settings.group.backend is not GroupBackend.EXCLUSIVE:
        # A key that comes back to a flow handle goes on in its lane, which readers take before those of its other
        # owners: what these landed in between would come too late.
        expected = "exclusive: a log keeps no order of keys that move while a flow stays bound"
        raise ConfigError("group.backend", settings.group.backend.value, expected)
    lander = Lander(settings, options, claim_folder(options.root, settings.group.shape()))
    # A flush can be full only if this many messages are under way; the second half gathers while it is written.
    wanted = min(2 * options.limits.rows, MAX_IN_FLIGHT)
    in_flight = max(settings.dispatch.max_in_flight, wanted)
    # The settings for failing handlers do not apply, nor those for missing keys: everything lands.
    missing_key = settings.dispatch.missing_key
    if missing_key is MissingKey.ERROR:
        missing_key = MissingKey.SHARD
    dispatch = settings.dispatch.model_copy(update={"max_in_flight": in_flight, "missing_key": missing_key})
    failure = settings.failure.model_copy(update={"attempts": None, "then": None, "retriable": (), "terminal": ()})
    app = App(
        lander.handlers,
        settings.model_copy(update={"dispatch": dispatch, "failure": failure}),
        member_index=member_index,
        member_count=member_count,
        member_id=member_id,
        session=session,
        companion=lander,
    )
    lander.member = app.membership.member
    return app, lander


@dataclass(slots=True)
class _HeldLane:
    """The lane of a flow handle, and how it is used."""

    lane: OpenLane
    landing_count: int = 0
    """Messages on their way into it."""
    used_s: float = 0.0
    """When the last one ended, on the loop's clock."""


class Lander:
    """The `Companion` of one member, and its handlers. Made anywhere, attended on the member's loop, once."""

    def __init__(self, settings: Settings, options: LandingOptions, claimed: GroupNote) -> None:
        """Set `member` before it is attended. It lands into the log `claimed`, and into no other."""
        self.member = MemberId("")
        self.landed_count = 0
        """Messages that this member has landed."""
        # A member that lands elsewhere, or handles, would take a part of the messages away from this log.
        self.shared = {"landing.log": claimed.id or f"one of group {claimed.group} without an id"}
        self.handlers = Handlers()
        # Practically without a time-out: a message waits for the disk, whoever is to blame. That attempts
        # have no end is said by the settings, as `lander_app` makes them.
        self.handlers.handler(">", timeout=f"{MAX_INTERVAL_MS}ms", backoff=("100ms", "5s"))(self._land)
        self.handlers.on_revoked(self._close_lane)
        self._group = settings.group.shape()
        self._options = options
        self._claimed = claimed
        self._born_us = wall_us()
        self._is_measured = True
        """Whether the last measurement of the log succeeded."""
        self._room = Room(options.quota_bytes)
        self._lanes: dict[tuple[QueueName, Epoch], _HeldLane] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._turns: BatchTurns | None = None
        self._ages = Ages((options.retention_ms or 0) * 1_000)

    # -- Companion

    @asynccontextmanager
    async def attend(
        self, session: Session, on_able: Callable[[bool], None], changed: Callable[[], tuple[Difference, ...]]
    ) -> AsyncIterator[None]:
        # A lander without room keeps its queues: the others have none either, as they share the log.
        del session, on_able, changed
        self._ages.look(wall_us(), _steady_us())
        self._threads = _start_threads()
        try:
            await self._measure()
            # Errors in the member are raised as they would be without chores.
            with sole_error():
                async with asyncio.TaskGroup() as group:
                    chores = [group.create_task(self._every(MEASURE_S, self._measure))]
                    if self._options.retention_ms is not None:
                        interval_s = min(PRUNE_S, max(MEASURE_S, self._options.retention_ms / 1_000))
                        chores.append(group.create_task(self._every(interval_s, self._prune)))
                    yield
                    for each in chores:
                        each.cancel()
        finally:
            self._room.close()
            try:
                await self._close_lanes(list(self._lanes))
            finally:
                # Not waited for: the idle ones end at once, and one whose disk hangs would hold up the loop.
                self._threads.shutdown(wait=False)

    def reading(self) -> SidecarReading | None:
        return None

    async def until_ready(self) -> None:
        """See `Companion.until_ready`."""

    def waits_for(self) -> str:
        return ""

    def flow_changed(self, queue: QueueName, epoch: Epoch, *, is_kept: bool) -> None:
        self._room.flow_changed(queue, epoch, is_kept=is_kept)

    # -- handlers

    async def _land(self, _: Message) -> None:
        handling = CURRENT_HANDLING.get()
        delivery = handling.delivery
        # The message as it came: the copy for handlers lacks the stamps of another key, by which readers know copies.
        message = delivery.message
        queue, epoch = delivery.queue, delivery.epoch
        if self._turns is None:
            self._turns = CURRENT_POOL.get().batch_turns
            self._turns.join(self._look)
        # Another runner takes the place of this one while it waits, so that other messages get into the same flush.
        with aside():
            while True:
                if self._room.is_closed(queue):
                    await self._room.wait(queue, epoch)
                held = self._lane(queue, epoch)
                held.landing_count += 1
                try:
                    await held.lane.land(
                        message,
                        handling.shard,
                        handling.key,
                        delivery.delivery_id,
                        redelivered=delivery.redelivered,
                        received_at_ns=delivery.received_at_ns,
                        is_hurried=self._turns.is_leaving(handling),
                    )
                except LandingError:
                    # The flush has reported it, once for all messages in it.
                    self._room.flush_failed(queue)
                else:
                    break
                finally:
                    held.landing_count -= 1
                    held.used_s = asyncio.get_running_loop().time()
        self._room.flush_succeeded(queue)
        self.landed_count += 1

    def _look(self) -> None:
        # All lanes, as it happens seldom, and a flush that is early costs next to nothing.
        if self._turns is not None and self._turns.any_leave:
            for held in self._lanes.values():
                held.lane.hurry()

    async def _close_lane(self, queue: QueueName, epoch: Epoch) -> None:
        # Handlings of older epochs have ended too by now.
        await self._close_lanes([each for each in self._lanes if each[0] == queue and each[1] <= epoch])

    async def _close_lanes(self, handles: Sequence[tuple[QueueName, Epoch]]) -> None:
        """If cancelled, each of them ends with its flush."""
        # Popped all at once, as their handles may be revoked while one of them is being closed; and all are ended
        # before one is waited for, as whoever waits may be cancelled: a disk may hang.
        lanes = [self._lanes.pop(handle).lane for handle in handles]
        for lane in lanes:
            lane.end()
        for lane in lanes:
            await lane.close()

    def _lane(self, queue: QueueName, epoch: Epoch) -> _HeldLane:
        held = self._lanes.get((queue, epoch))
        if held is None:
            if self._threads is None:
                raise InvariantViolated("a message came before the lander was attended")
            index = int(queue.removeprefix(f"{self._group.name}/"))
            handle = f"{self.member}-{epoch}.{self._born_us:x}"
            lane = OpenLane(
                index,
                handle,
                partial(self._make_writer, index, epoch, handle),
                self._options.limits,
                self._threads,
                wall_us,
                self._room.count_written,
            )
            held = self._lanes[queue, epoch] = _HeldLane(lane)
        return held

    def _make_writer(self, queue: int, epoch: Epoch, handle: str) -> LaneWriter:
        """Runs on a thread."""
        writer = LaneWriter(
            self._options.root,
            queue,
            self.member,
            epoch,
            clock_us=wall_us,
            is_synced=self._options.is_synced,
            segment_bytes=self._options.segment_bytes,
            claimed=self._claimed,
            handle=handle,
        )
        _log.info("lane_begun", queue=queue, epoch=epoch, lane=writer.name)
        return writer

    # -- chores

    async def _every(self, interval_s: float, chore: Callable[[], Awaitable[None]]) -> None:
        # The chore itself catches what the disk refuses: any other error of it ends the member.
        while True:
            await asyncio.sleep(interval_s)
            await chore()

    def _look_at_disk(self) -> tuple[int, DiskSpace | None]:
        """Runs on a thread."""
        root = self._options.root
        # All files are looked at only if a bound is set.
        used = 0 if self._options.quota_bytes is None else used_bytes(root)
        return used, disk_space(root)

    async def _measure(self) -> None:
        try:
            used, disk = await asyncio.to_thread(self._look_at_disk)
        except OSError as error:
            # The last figures stay, plus what this member writes. Logged once, as the next measurement is soon.
            if self._is_measured:
                _log.warning("landing_not_measured", reason=str(error), **self._room.figures())
            self._is_measured = False
        else:
            self._is_measured = True
            self._room.count(used, disk)
        if self._room.is_full:
            await self._end_idle_lanes()

    async def _end_idle_lanes(self) -> None:
        """Close lanes in which nothing has landed for so long that all of their rows may be pruned.

        The last segment of a lane stays while the lane is being written, and in a full log nothing more would land in
        it: last segments alone could fill the log. What lands next begins another lane, as after a failed flush.
        """
        kept_ms = IDLE_MS if self._options.retention_ms is None else self._options.retention_ms
        before_s = asyncio.get_running_loop().time() - kept_ms / 1_000
        await self._close_lanes(
            [handle for handle, held in self._lanes.items() if not held.landing_count and held.used_s < before_s]
        )

    async def _prune(self) -> None:
        before_us = self._ages.look(wall_us(), _steady_us())
        if before_us is None:
            return
        failures: list[Unpruned] = []
        pruning = partial(prune, self._options.root, before_us, failures=failures, is_aged=self._ages.is_aged)
        try:
            pruned = await asyncio.to_thread(lambda: list(pruning()))
        except OSError as error:
            _log.error("prune_failed", reason=str(error))
            return
        if failures:
            _log.error("prune_failed", lanes=len(failures), lane=failures[0].lane, reason=str(failures[0].error))
        if pruned:
            _log.info("landing_pruned", segments=len(pruned), bytes=sum(each.bytes for each in pruned))


def _steady_us() -> int:
    """The clock to compare the wall clock with.

    It counts the time for which the host slept: otherwise the wall clock would seem to have been set after that.
    """
    return int(steady_s() * 1e6)


def _start_threads() -> ThreadPoolExecutor:
    """Those of all flushes; raises `UserError` if the system refuses one."""
    try:
        return started_threads(THREADS, "lbg-landing")
    except RuntimeError as error:
        expected = f"{THREADS} for the flushes: raise the limit on processes and threads"
        raise UserError("threads", str(error), expected) from None
