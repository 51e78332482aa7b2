"""Publishes landed messages again: a period of time, one key or one shard, in the order of each key.

All rows of a key lie in one queue at a time. A re-striping moves the key to another, whose member lands it only after
the last of it has landed from the first; so rows of several queues are taken by the numbers of their publishers and by
the time at which they landed (`replay_order.py`), and within a queue in the order in which `LandingLog.read_queue`
yields them.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lbg_runtime.model.errors import LbgError
from lbg_runtime.pipeline.landing import message_headers
from lbg_runtime.pipeline.landing.layout import queue_of
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.replay_order import find_moved, merged
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.pace import Pace

REPLAY_PROPERTY = "lbg_replay_of"
"""User property with the id of the row that a message is a replay of."""

TICK_S = 0.005

PIECE_MESSAGES, PIECE_BYTES, PIECE_S = 100, 1 << 20, 0.05
"""A piece of the log is read before it is published: as many messages or bytes, or as long, whichever comes first."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows to replay. Times are those at which they landed, microseconds since the epoch."""

    from_us: int | None = None
    until_us: int | None = None
    """Exclusive end."""
    key: str | None = None
    shard: int | None = None

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The selected rows of a batch, in order."""
        wanted = []
        moments = batch.column("t_land").cast(pa.int64())
        if self.from_us is not None:
            wanted.append(pc.greater_equal(moments, self.from_us))
        if self.until_us is not None:
            wanted.append(pc.less(moments, self.until_us))
        if self.key is not None:
            wanted.append(pc.fill_null(pc.equal(batch.column("key"), self.key), fill_value=False))
        if self.shard is not None:
            wanted.append(pc.fill_null(pc.equal(batch.column("shard"), self.shard), fill_value=False))
        for mask in wanted[1:]:
            wanted[0] = pc.and_(wanted[0], mask)
        return batch.filter(wanted[0]) if wanted else batch


@dataclass(frozen=True, slots=True)
class LandedMessage:
    """What is published again from a row."""

    row_id: str
    key: str | None
    payload: bytes
    headers: Mapping[str, str]
    t_land_us: int


@dataclass(slots=True)
class Replayed:
    selected: int = 0
    """Messages selected so far."""
    without_key: int = 0
    """Those of them that no publisher can give a shard; they are not published."""
    sent: int = 0
    confirmed: int = 0
    ledger_dropped: int = 0
    """Lines of the ledger that the disk refused."""
    first_us: int | None = None
    last_us: int | None = None
    """When the last of them landed."""
    failure: BaseException | None = None
    """The error of the first message that was refused, may be lost or could not be read; nothing was sent after it was
    known."""


def selected(
    log: LandingLog, selection: Selection, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[LandedMessage]:
    """The messages up to the current end of the log, each once, those of each key in order.

    Of each key a beginning without gaps, also if it moves to another queue at this moment. Across a move, the order of
    what different publishers sent is that of `t_land`. Unless it has one queue, all of the log is read before the
    first message comes. When `is_stopped`, which may be asked on any thread, it soon ends, and skips nothing before
    that. Raises as `read_queue` and `merged`: `LandingRowsPruned` only for rows that may be selected.
    """
    # The ends of the queues cannot be seen at once. A key may go on in a second queue after the end of its first was
    # taken, and before that of the second is. So they are taken twice: what lies before a row within the first ends
    # lies within the second ones. Of what is between the two, only that is given which such a row of its key follows.
    first, second = log.lanes(), log.lanes()
    queues = dict.fromkeys(queue for name in second if (queue := queue_of(name)) is not None)
    start = {name: extent.first_row for name, extent in second.items()}
    middle = {name: max(row, first[name].rows if name in first else 0) for name, row in start.items()}
    end = {name: extent.rows for name, extent in second.items()}
    reader = _Reader(log, selection, queues, is_stopped)
    held: dict[str | None, list[LandedMessage]] = {}
    try:
        moved = find_moved(lambda queue: reader.read(queue, start, end), queues)
        streams = {queue: _of_queue(reader, queue, start, middle, end) for queue in queues}
        for row in merged(streams, moved, str(log.path)):
            message = row.message
            if row.is_late:
                held.setdefault(message.key, []).append(message)
            else:
                yield from held.pop(message.key, ())
                yield message
    except _ReplayStopped:
        return


def count(messages: Iterator[LandedMessage]) -> Replayed:
    """Count what a replay would publish."""
    replayed = Replayed()
    for message in messages:
        _note(replayed, message)
    return replayed


async def replay(
    messages: Iterator[LandedMessage],
    publisher: HashedPublisher,
    topic: str,
    rate_per_s: float | None,
    replayed: Replayed,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Publish the messages under a topic of the publisher's group; return when all are confirmed or one has failed.

    Waits while too much is unconfirmed. `replayed` grows meanwhile, also if this is cancelled. Raises as `selected`,
    and as `HashedPublisher.submit`.
    """
    loop = asyncio.get_running_loop()
    pace = None if rate_per_s is None else Pace(rate_per_s, loop.time())
    unanswered: set[asyncio.Future[Confirmation]] = set()

    def conclude(answer: "asyncio.Future[Confirmation]") -> None:
        unanswered.discard(answer)
        error = answer.exception()
        if error is None:
            replayed.confirmed += 1
        else:
            replayed.failure = replayed.failure or error

    due = 1
    is_read, error = False, None
    while not (is_read or error or replayed.failure):
        # On a thread: all of the log may be read before the first one, and much of it before the next.
        piece, is_read, error = await asyncio.to_thread(_read_piece, messages)
        for message in piece:
            _note(replayed, message)
            if message.key is None:
                continue
            while pace is not None and due == 0:
                await asyncio.sleep(TICK_S)
                due = pace.due(loop.time())
            if replayed.failure is not None:
                break
            properties, headers = message_headers.read(message.headers)
            properties[REPLAY_PROPERTY] = message.row_id
            answer = await publisher.submit(
                topic, message.payload, key=message.key, properties=properties, headers=headers
            )
            unanswered.add(answer)
            answer.add_done_callback(conclude)
            replayed.sent += 1
            due -= pace is not None
        on_progress()
    if error is not None and replayed.failure is None:
        raise error
    if unanswered:
        # No bound: the transport answers each, or its owner closes the publisher.
        await asyncio.wait(unanswered)
    on_progress()


def _read_piece(messages: Iterator[LandedMessage]) -> tuple[list[LandedMessage], bool, LbgError | None]:
    """The next messages, whether they are the last, and the error behind them. Runs on a thread."""
    found: list[LandedMessage] = []
    size, until_s = 0, time.monotonic() + PIECE_S
    try:
        for message in messages:
            found.append(message)
            size += len(message.payload)
            if len(found) >= PIECE_MESSAGES or size >= PIECE_BYTES or time.monotonic() >= until_s:
                return found, False, None
    except LbgError as error:
        return found, False, error
    return found, True, None


def _note(replayed: Replayed, message: LandedMessage) -> None:
    replayed.selected += 1
    replayed.without_key += message.key is None
    replayed.first_us = min(message.t_land_us, replayed.first_us or message.t_land_us)
    replayed.last_us = max(message.t_land_us, replayed.last_us or message.t_land_us)


class _Row(NamedTuple):
    """See `Placed`."""

    latest_us: int
    queue: int
    is_late: bool
    """Whether it lies behind the first ends."""
    message: LandedMessage

    @property
    def row_id(self) -> str:
        return self.message.row_id


class _ReplayStopped(Exception):
    """Nothing more is wanted."""


class _Reader:
    """Reads what is selected of a log, until it is stopped."""

    def __init__(
        self, log: LandingLog, selection: Selection, queues: Iterable[int], is_stopped: Callable[[], bool]
    ) -> None:
        self._log = log
        self._selection = selection
        self._is_stopped = is_stopped
        self._wanted: dict[str, int] = {}
        """Of each lane the first row that may be selected; of none if any row may."""
        if selection.from_us is not None:
            for queue in queues:
                self._wanted |= log.before(queue, selection.from_us)

    def read(self, queue: int, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
        """The selected rows of a queue between two offsets. Raises as `read_queue`."""
        start, end = ({name: row for name, row in each.items() if queue_of(name) == queue} for each in (start, end))
        # To read a log may take longer than its oldest rows have to live.
        for batch in self._log.read_queue(queue, start, end, unwanted=self._wanted):
            if self._is_stopped():
                # Not as at its end: rows of other queues may wait for what is left of this one.
                raise _ReplayStopped
            chosen = self._selection.of(batch)
            if chosen.num_rows:
                yield chosen


def _of_queue(
    reader: _Reader, queue: int, start: Mapping[str, int], middle: Mapping[str, int], end: Mapping[str, int]
) -> Iterator[_Row]:
    """The messages of a queue; those from the middle on lie behind the first ends."""
    latest = 0
    for is_late, chosen in chain(
        ((False, batch) for batch in reader.read(queue, start, middle)),
        ((True, batch) for batch in reader.read(queue, middle, end)),
    ):
        columns = [chosen.column(name) for name in ("broker_id", "key", "payload", "headers", "t_land")]
        moments = columns.pop().cast(pa.int64()).to_pylist()
        for moment, (row_id, key, payload, headers) in zip(
            moments, zip(*(column.to_pylist() for column in columns), strict=True), strict=True
        ):
            latest = max(latest, moment)
            message = LandedMessage(row_id, key, payload, dict(headers or ()), moment)
            yield _Row(latest, queue, is_late, message)
