"""Correct runs, made up: a toy group of members, queues and publishers that keeps every law, and writes the records.

It is a simulation of its own on purpose: the validator's tests must not rest on the code that the validator judges.

More than 400 lines, as the toy group is one model.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from hypothesis import strategies as st

from lbg_runtime.model.record import (
    CloseRecord,
    ConfirmedRecord,
    DispatchRecord,
    FlowRecord,
    JournalHeader,
    LedgerHeader,
    PauseRecord,
    StatusRecord,
    UnconfirmedRecord,
)
from tests.validator.run_files import MS, SECOND, Journal, Ledger, Run, wall_us

QUEUE_COUNT = 3
LONGEST_SILENCE_NS = 11 * SECOND
HASH_COUNT = 12

# -- the toy group


class Step(Enum):
    """What can happen in a run."""

    PUBLISH = "publish"
    REFUSE = "refuse"
    SEND_TWICE = "send_twice"
    HANDLE = "handle"
    MOVE = "move"
    CRASH = "crash"
    DISCONNECT = "disconnect"
    CANCEL = "cancel"
    JOIN = "join"
    STAND_STILL = "stand_still"
    RESTRIPE = "restripe"
    """Only in a `StripedWorld`."""


STEPS = tuple(step for step in Step if step is not Step.RESTRIPE)


@dataclass
class Copy:
    """A message on a queue."""

    publisher: int
    key: str
    seq: int
    position: int
    redelivered: bool = False


@dataclass
class _Settled:
    copy: Copy
    settle_ns: int


class _Member:
    def __init__(self, name: str, incarnation: int, journal: Journal) -> None:
        self.name = name
        self.incarnation = incarnation
        self.journal = journal
        self.epochs: defaultdict[int, int] = defaultdict(int)
        self.local_seq = 0


class World:
    """Plays steps; every step ends with nothing running, so that steps never interfere."""

    def __init__(self, seed: int, queue_count: int = QUEUE_COUNT) -> None:
        self.run = Run()
        self.queue_count = queue_count
        """What a new member's settings say."""
        self._dice = random.Random(seed)
        self._silences = random.Random(seed)
        self._now = 1000 * SECOND
        self._position = 0
        self._lives = 0
        self._keys = [(f"k{n}", n % HASH_COUNT) for n in range(6)]
        self._shards = dict(self._keys)
        self._queue_of_shard = {shard: shard % queue_count for shard in range(HASH_COUNT)}
        """Where the next message of a shard goes."""
        self._seqs: dict[tuple[int, str], int] = {}
        self._queues: dict[int, list[Copy]] = {queue: [] for queue in range(queue_count)}
        self._recent: dict[int, list[_Settled]] = {queue: [] for queue in range(queue_count)}
        self._owner: dict[int, _Member] = {}
        self._members: list[_Member] = []
        for publisher in range(2):
            header = LedgerHeader("run", "g", "h", HASH_COUNT, "crc32", f"p{publisher}", "host", 1, wall_us(self._now))
            self.run.ledgers.append(Ledger(header))
        for name in ("a", "b"):
            self._start(name)
        for queue in range(queue_count):
            self._activate(queue, self._members[queue % 2])
        self._pass(100 * MS)

    def play(self, steps: Sequence[Step]) -> Run:
        """Play the steps, handle what is left, close every file."""
        for step in steps:
            self._pass(self._dice.randrange(1 * MS, 400 * MS))
            getattr(self, f"_{step.value}")()
        self._pass(SECOND)
        while any(self._queues.values()):
            self._handle()
        for queue, member in sorted(self._owner.items()):
            self._release(queue, member, "stop")
        self._pass(MS)
        for member in self._members:
            member.journal.close = CloseRecord(0, 0, True, wall_us(self._now))
        for ledger in self.run.ledgers:
            ledger.close = CloseRecord(0, 0, True, wall_us(self._now))
        return self.run

    # -- steps

    def _publish(self) -> None:
        for _ in range(self._dice.randrange(1, 6)):
            publisher, key, seq = self._next_number()
            self._spool(publisher, key, seq)
            self._confirm(publisher, key, seq)

    def _refuse(self) -> None:
        publisher, key, seq = self._next_number()
        fate = self._dice.choice(["refused", "unknown"])
        if fate == "unknown" and self._dice.random() < 0.5:
            self._spool(publisher, key, seq)
        self._unconfirmed(publisher, key, seq, fate)

    def _send_twice(self) -> None:
        publisher, key, seq = self._next_number()
        self._unconfirmed(publisher, key, seq, "unknown")
        self._spool(publisher, key, seq)
        self._spool(publisher, key, seq)
        self._confirm(publisher, key, seq)

    def _handle(self) -> None:
        """Every owner handles some of each of its queues: keys at once, a key's messages one after another."""
        begin, longest = self._now, 0
        for queue in sorted(self._queues):
            member = self._owner.get(queue) or self._activate(queue, self._dice.choice(self._members))
            free = {key: max(begin, self._now) for key, _ in self._keys}
            for copy in self._ready(queue)[: self._dice.randrange(1, 8)]:
                start = free[copy.key] + self._dice.randrange(1000, 2 * MS)
                done = start + self._dice.randrange(1000, 20 * MS)
                settle = done + self._dice.randrange(1000, 100_000)
                free[copy.key] = settle
                longest = max(longest, settle)
                self._queues[queue].remove(copy)
                self._dispatch(
                    member, queue, copy, start, done, settle, self._dice.choice(["accepted"] * 9 + ["rejected"])
                )
                self._recent[queue].append(_Settled(copy, settle))
        self._now = max(self._now, longest)
        self._pass(MS)
        self._have_handled()

    def _move(self) -> None:
        queue = self._dice.randrange(len(self._queues))
        if queue in self._owner:
            old = self._owner[queue]
            self._release(queue, old, "rebind")
            others = [member for member in self._members if member is not old]
            self._activate(queue, self._dice.choice(others or [old]))

    def _crash(self) -> None:
        """SIGKILL: what was in flight or settled within the last second may come back; the journal is torn."""
        member = self._dice.choice(self._members)
        before_ns = self._dice.randrange(0, 900 * MS)
        cut = self._now - self._dice.randrange(0, SECOND)
        self._be_silent()
        status = self._now - before_ns
        member.journal.records.append(StatusRecord(0, 1, "primary", "active", 0, 0, wall_us(status)))
        orphans = [queue for queue, owner in self._owner.items() if owner is member]
        self._members.remove(member)
        self._pass(self._dice.randrange(MS, 50 * MS))
        self._start(member.name)
        for queue in orphans:
            self._give_back(queue, cut)
            self._activate(queue, self._dice.choice(self._members))

    def _disconnect(self) -> None:
        """The flow is lost; a handler that still runs ends without a settlement, before the queue is fed again."""
        if not self._owner:
            return
        queue = self._dice.choice(sorted(self._owner))
        member = self._owner.pop(queue)
        cut = self._now - self._dice.randrange(0, SECOND)
        event = self._dice.choice(["inactive", "down"])
        running = self._ready(queue)[:1]
        start = self._now
        self._be_silent()
        self._pass(2 * MS)
        self._flow(member, queue, event, "" if event == "inactive" else "connection lost")
        self._pass(5 * MS)
        for copy in running:
            self._dispatch(member, queue, copy, start, self._now, None, "accepted")
            copy.redelivered = True
        self._give_back(queue, cut)
        if event == "inactive":
            self._flow(member, queue, "draining", "inactive")
            self._flow(member, queue, "released", "inactive")
        self._activate(queue, self._dice.choice(self._members))

    def _stand_still(self) -> None:
        """SIGSTOP, and SIGCONT when the broker has long given the queues to others, who are at work.

        One of the queues came to it, a standby, right before the broker noticed.
        """
        member = self._dice.choice(self._members)
        others = [other for other in self._members if other is not member]
        if not others:
            return
        cut, begin = self._now - self._dice.randrange(0, SECOND), self._now - self._dice.randrange(0, SECOND)
        # It begins with the last record, at the earliest.
        begin = max(begin, member.journal.last_mono_ns or begin)
        lost = sorted(queue for queue, owner in self._owner.items() if owner is member)
        came = sorted(queue for queue in self._owner if queue not in lost)[:1]
        self._pass(LONGEST_SILENCE_NS)
        for queue in came:
            self._release(queue, self._owner[queue], "rebind")
            member.epochs[queue] += 1
            self._pass(MS)
            self._activate(queue, self._dice.choice(others))
        for queue in lost:
            self._owner.pop(queue)
            self._give_back(queue, cut)
            self._activate(queue, self._dice.choice(others))
        self._handle()
        self._pass(self._dice.randrange(60 * SECOND))
        member.journal.records.append(PauseRecord(begin, self._now, wall_us(self._now)))
        self._pass(self._dice.randrange(1900 * MS))
        for queue in came:
            self._flow(member, queue, "active", "")
        for queue in [*lost, *came]:
            self._flow(member, queue, "down", "connection lost")

    def _cancel(self) -> None:
        """A drain's bound cancels a handler; the message goes back, and the next owner handles it."""
        if not self._owner:
            return
        queue = self._dice.choice(sorted(self._owner))
        member = self._owner.pop(queue)
        start = self._now
        self._pass(2 * MS)
        self._flow(member, queue, "draining", "stop")
        self._pass(5 * MS)
        for copy in self._ready(queue)[:1]:
            self._dispatch(member, queue, copy, start, self._now, None, "cancelled")
            copy.redelivered = True
        self._pass(MS)
        self._flow(member, queue, "released", "stop")
        self._recent[queue].clear()
        self._activate(queue, self._dice.choice(self._members))

    def _join(self) -> None:
        if len(self._members) < 4:
            self._start("c")

    # -- what a re-striping adds

    def _ready(self, queue: int) -> list[Copy]:
        """What the owner of a queue may handle."""
        return list(self._queues[queue])

    def _have_handled(self) -> None: ...

    def _have_activated(self, queue: int) -> None: ...

    # -- parts of steps

    def _be_silent(self) -> None:
        """Now and then a fault begins with a network that goes silent, which nobody notices for some time."""
        if self._silences.random() < 0.3:
            self._pass(self._silences.randrange(LONGEST_SILENCE_NS))

    def _pass(self, span_ns: int) -> None:
        self._now += span_ns

    def _start(self, name: str) -> None:
        self._lives += 1
        header = JournalHeader(
            "run", "g", "h", HASH_COUNT, self.queue_count, name, self._lives, "host", 1, wall_us(self._now)
        )
        journal = Journal(header)
        self.run.journals.append(journal)
        self._members.append(_Member(name, self._lives, journal))

    def _activate(self, queue: int, member: _Member) -> _Member:
        member.epochs[queue] += 1
        self._flow(member, queue, "bound", "")
        self._pass(MS)
        self._flow(member, queue, "active", "")
        self._pass(MS)
        self._owner[queue] = member
        self._have_activated(queue)
        return member

    def _release(self, queue: int, member: _Member, cause: str) -> None:
        self._flow(member, queue, "draining", cause)
        self._pass(MS)
        self._flow(member, queue, "released", cause)
        self._owner.pop(queue, None)
        self._recent[queue].clear()

    def _give_back(self, queue: int, cut_ns: int) -> None:
        """Settlements from `cut_ns` on never arrived; what comes back is flagged, in its old order."""
        back = [settled.copy for settled in self._recent[queue] if settled.settle_ns >= cut_ns]
        self._recent[queue].clear()
        for copy in back:
            copy.redelivered = True
        self._queues[queue] = sorted([*back, *self._queues[queue]], key=lambda copy: copy.position)

    def _flow(self, member: _Member, queue: int, event: str, cause: str) -> None:
        self._pass(10_000)
        role = "primary" if queue % 2 else "secondary"
        member.journal.records.append(
            FlowRecord(queue, member.epochs[queue], event, role, cause, wall_us(self._now), self._now)  # type: ignore[arg-type]
        )

    def _dispatch(
        self, member: _Member, queue: int, copy: Copy, start: int, done: int, settle: int | None, outcome: str
    ) -> None:
        member.local_seq += 1
        member.journal.records.append(
            DispatchRecord(
                queue=queue,
                bind_epoch=member.epochs[queue],
                shard=self._shards[copy.key],
                key=copy.key,
                topic="t",
                publisher=f"p{copy.publisher}",
                seq=copy.seq,
                message_id=None,
                delivery_id=copy.position,
                redelivered=copy.redelivered,
                attempts=1,
                local_seq=member.local_seq,
                receive_mono_ns=start - 500,
                start_mono_ns=start,
                done_mono_ns=done,
                t_done=wall_us(done),
                t_settle=None if settle is None else wall_us(settle),
                outcome=outcome,  # type: ignore[arg-type]
                size_bytes=1,
            )
        )

    def _next_number(self) -> tuple[int, str, int]:
        publisher, (key, _) = self._dice.randrange(2), self._dice.choice(self._keys)
        self._seqs[publisher, key] = self._seqs.get((publisher, key), 0) + 1
        return publisher, key, self._seqs[publisher, key]

    def _spool(self, publisher: int, key: str, seq: int) -> None:
        self._position += 1
        self._queues[self._queue_of_shard[self._shards[key]]].append(Copy(publisher, key, seq, self._position))

    def _confirm(self, publisher: int, key: str, seq: int) -> None:
        confirmed, now = self.run.ledgers[publisher].confirmed, wall_us(self._now)
        last = confirmed[-1] if confirmed else None
        if last and last.key == key and last.last_seq == seq - 1 and self._dice.random() < 0.7:
            confirmed[-1] = ConfirmedRecord(key, last.shard, last.first_seq, seq, last.t_first, now)
        else:
            confirmed.append(ConfirmedRecord(key, self._shards[key], seq, seq, now, now))

    def _unconfirmed(self, publisher: int, key: str, seq: int, fate: str) -> None:
        self.run.ledgers[publisher].unconfirmed.append(
            UnconfirmedRecord(key, self._shards[key], seq, fate, "", wall_us(self._now))  # type: ignore[arg-type]
        )


STORY = (
    *(Step.PUBLISH, Step.PUBLISH, Step.PUBLISH, Step.HANDLE, Step.MOVE, Step.PUBLISH, Step.PUBLISH, Step.HANDLE),
    *(Step.REFUSE, Step.SEND_TWICE, Step.CRASH, Step.PUBLISH, Step.HANDLE, Step.DISCONNECT, Step.PUBLISH, Step.HANDLE),
    *(Step.CANCEL, Step.JOIN, Step.MOVE, Step.PUBLISH, Step.HANDLE),
)
"""A run in which everything happens that may happen."""


def story(seed: int = 7) -> Run:
    """The run of `STORY`, four times over."""
    return _told(seed).copy()


@cache
def _told(seed: int) -> Run:
    return World(seed).play(STORY * 4)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Random correct runs."""
    steps = draw(st.lists(st.sampled_from(STEPS), max_size=40))
    # Without these two nothing would be published or handled in most examples.
    busy = [step for each in steps for step in (Step.PUBLISH, each, Step.HANDLE)]
    return World(draw(st.integers(0, 1 << 32))).play([*busy, Step.PUBLISH])
