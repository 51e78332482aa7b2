"""Members that land under load and are killed, moved, torn or denied the disk, and a reader that follows them."""

import random
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import anyio

from lbg_runtime.cli.live.group import PUBLISHER, LiveGroup, StepStuck
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName
from lbg_runtime.pipeline.landing.index import ENTRY_BYTES
from lbg_runtime.pipeline.landing.layout import find_lane_note, parts_of
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.segment import INDEX_SUFFIX, Segment

QUEUES = 4
MEMBERS = 3
KEYS = 300
FILE_LIMIT_BYTES = 50_000
"""How long a member's files may be while its disk is full, beyond its log, which must have room to report that."""
SETTLE_S = 30.0
"""What is still missing after this time without anything new to read is lost."""

_FAILED = b"flush_failed"


class Blow(Enum):
    """What is done to a member while messages come."""

    KILL = "SIGKILL"
    MOVE = "leaves, and comes again"
    TEAR = "SIGKILL, and torn tails"
    FULL = "no room on the disk"


@dataclass(slots=True)
class Follower:
    """A reader that goes on from offset to offset and checks what it gets. Call `look` as often as there is time."""

    root: Path
    rows: int = 0
    copies: int = 0
    """Rows that landed again, as read so far."""
    wrong: list[str] = field(default_factory=list)
    _log: LandingLog | None = None
    _at: dict[str, int] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=set)

    def look(self, max_rows: int | None = None) -> int:
        """Read what is new, in parts of `max_rows` if given; return the number of rows that landed, copies included."""
        if not (self.root / "landing.json").exists():
            return 0
        self._log = log = self._log or LandingLog(self.root)
        landed = 0
        for queue in log.queues():
            end = {name: extent.rows for name, extent in log.lanes(queue).items()}
            landed += sum(end.values())
            start = {name: self._at.get(name, 0) for name in end}
            while any(end[name] > start[name] for name in end):
                until = end if max_rows is None else dict(log.cut(queue, start, end, max_rows))
                self._read(log, queue, start, until)
                start = until
            self._at.update(end)
        self.copies = landed - self.rows
        return landed

    def _read(self, log: LandingLog, queue: int, start: dict[str, int], end: dict[str, int]) -> None:
        for batch in log.read_queue(queue, start, end):
            columns = [batch.column(name).to_pylist() for name in ("broker_id", "key", "seq")]
            for row_id, key, number in zip(*columns, strict=True):
                self.rows += 1
                if row_id in self._ids:
                    self.wrong.append(f"{row_id} came twice")
                self._ids.add(row_id)
                expected = self._numbers.get(key, 0) + 1
                if number != expected:
                    self.wrong.append(f"key {key}: number {number}, not {expected}")
                self._numbers[key] = number


@dataclass(slots=True)
class Trial:
    published: int = 0
    rows: int = 0
    copies: int = 0
    blows: Counter[Blow] = field(default_factory=Counter)
    """How many of each were dealt, each to a member that was landing."""
    wrong: list[str] = field(default_factory=list)


async def landing_trial(
    folder: Path,
    blows: Sequence[Blow],
    *,
    rate: int,
    seed: int,
    members: int = MEMBERS,
    on_blow: Callable[[int], None] = lambda _: None,
) -> Trial:
    """Deal these blows one after another; every published message must be read once, in the order of its key.

    `on_blow` is told how many were dealt. Raises `StepStuck` and `ProcessEnded`.
    """
    root = folder / "log"
    follower = Follower(root)
    trial = Trial()
    sections: dict[str, dict[str, object]] = {
        "membership": {"heartbeat": "100ms"},
        "rebind": {"standbys": 1},
        "dispatch": {"max_in_flight": 400},
    }
    shape = GroupShape(GroupName("orders"), "orders-hash", 8 * QUEUES, QUEUES)
    # As the queues exist already, a member need not ask for them each time it starts.
    group = LiveGroup(folder, shape, sections, is_administered=True)
    chance = random.Random(seed)
    landers = _Landers(group, root, chance)
    async with group:
        await group.start_broker()
        for number in range(members):
            await landers.start(f"lander-{number}")
        await group.start_publisher(rate, KEYS)
        await group.until("something has landed", lambda: follower.look() > 0)
        for count, blow in enumerate(blows, 1):
            await anyio.sleep(chance.uniform(0.2, 0.8))
            follower.look(chance.choice([None, 50, 1_000]))
            await landers.deal(blow)
            trial.blows[blow] += 1
            on_blow(count)
        await group.stop(PUBLISHER)
        trial.published = group.published()
        await _read_to_the_end(group, follower, trial.published)
        await landers.stop()
    follower.look()
    trial.rows, trial.copies, trial.wrong = follower.rows, follower.copies, follower.wrong[:10]
    if trial.rows != trial.published:
        trial.wrong.append(f"{trial.published} messages were published, and {trial.rows} read")
    return trial


@dataclass(slots=True)
class _Landers:
    """The members of a trial. Used by one task."""

    group: LiveGroup
    root: Path
    """Of the log."""
    chance: random.Random
    starts: Counter[str] = field(default_factory=Counter)
    """How often each member was started, by name."""
    torn: set[Path] = field(default_factory=set)
    """Lanes that have had their ends torn."""

    async def start(self, name: str) -> None:
        """Have a member land, for the first time or again."""
        self.starts[name] += 1
        small = ("--flush-rows", "100", "--flush-ms", "10", "--member-id", name)
        # Not where the group looks: a journal that was denied the disk has lines that end in the middle.
        journal = str(self.group.folder / "landers")
        await self.group.begin(name, "land", "--dir", str(self.root), "--journal", journal, *small)

    async def deal(self, blow: Blow) -> None:
        """Deal this blow to a member that is just landing; afterwards it lands again."""
        name = await _one_that_lands(self.group, self.root, list(self.starts), self.chance)
        match blow:
            case Blow.KILL:
                await self.group.kill(name)
            case Blow.MOVE:
                await self.group.stop(name)
            case Blow.TEAR:
                await self.group.kill(name)
                _tear(self.root, name, self.torn, self.chance)
            case Blow.FULL:
                await self._fill_disk(name)
        if blow is not Blow.FULL:
            await self.start(name)

    async def stop(self) -> None:
        """Have all of them leave."""
        for name, count in self.starts.items():
            # A member that is still starting does not handle signals yet.
            await self.group.until(f"{name} has started", lambda: self._count(name, b'"member_started"') == count)  # noqa: B023
            await self.group.stop(name)

    async def _fill_disk(self, name: str) -> None:
        pid, failed = self.group.pid(name), self._count(name, _FAILED)
        _limit_files(pid, self._log(name).stat().st_size + FILE_LIMIT_BYTES)
        await self.group.until("a flush has failed", lambda: self._count(name, _FAILED) > failed)
        await anyio.sleep(self.chance.uniform(0.2, 1.0))
        _limit_files(pid, None)

    def _log(self, name: str) -> Path:
        return self.group.folder / f"{name}.log"

    def _count(self, name: str, event: bytes) -> int:
        return self._log(name).read_bytes().count(event)


async def _read_to_the_end(group: LiveGroup, follower: Follower, published: int) -> None:
    """Read for as long as something new comes: on a busy machine much may still be on the broker."""
    rows = -1
    while rows < follower.rows < published and not follower.wrong:
        rows = follower.rows
        with suppress(StepStuck):
            await group.until("something more is read", lambda: _has_read(follower, rows), SETTLE_S)  # noqa: B023


def _has_read(follower: Follower, rows: int) -> bool:
    follower.look()
    return follower.rows > rows


async def _one_that_lands(group: LiveGroup, root: Path, names: Sequence[str], chance: random.Random) -> str:
    """A member that has landed something within the last moments."""
    landing: list[str] = []
    before = {name: _landed_by(root, name) for name in names}

    def is_found() -> bool:
        now = {name: _landed_by(root, name) for name in names}
        landing[:] = [name for name in names if now[name] > before[name]]
        before.update(now)
        return bool(landing)

    await group.until("a member lands", is_found)
    await anyio.sleep(chance.uniform(0, 0.03))
    return chance.choice(landing)


def _lanes_of(root: Path, member: str) -> list[Path]:
    # A lane without a note has just been removed, as nothing landed in it.
    notes = [(note, path) for path in root.glob("queue=*/lane=*") if (note := find_lane_note(path)) is not None]
    return [path for note, path in sorted(notes, key=lambda each: each[0].began_us) if note.member == member]


def _landed_by(root: Path, member: str) -> int:
    """Bytes of the member's indices, which grow with each flush."""
    return sum(index.stat().st_size for lane in _lanes_of(root, member) for index in lane.glob(f"*{INDEX_SUFFIX}"))


def _tear(root: Path, member: str, torn: set[Path], chance: random.Random) -> None:
    """Leave what a power failure may leave, at the ends of a dead member's last lanes, once for each lane."""
    lanes = [lane for lane in _lanes_of(root, member)[-QUEUES:] if lane not in torn]
    torn.update(lanes)
    for lane in lanes:
        for first in parts_of(lane)[INDEX_SUFFIX][-1:]:
            segment = Segment(lane, first)
            last = segment.last_entry()
            if last is None:
                continue
            with segment.data_path.open("ab") as file:
                # In place of the flush that was under way: nothing was begun after it.
                file.truncate(last.data_bytes)
                file.write(chance.randbytes(chance.randint(1, 5_000)))
            with segment.index_path.open("ab") as file:
                # A part of an entry, or entries that never got their content.
                part = chance.randbytes(chance.randrange(ENTRY_BYTES))
                file.write(chance.choice([part, bytes(2 * ENTRY_BYTES)]))


def _limit_files(pid: int, size_bytes: int | None) -> None:
    """Limit the length of a process's files: beyond it, writing fails as it does when the disk is full."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size_bytes is None else size_bytes, hard))
