"""Correct runs in which the queue count changes while everything goes on: the toy group of `history.py`, re-striped."""

from collections.abc import Sequence
from functools import cache

from hypothesis import strategies as st

from lbg_runtime.model.record import StripesRecord
from tests.validator.history import HASH_COUNT, Copy, Step, World
from tests.validator.run_files import MS, Run, wall_us


class StripedWorld(World):
    """Each RESTRIPE step brings a re-striping on: its plan, the markers of some shards, its finish; then the next."""

    def __init__(self, seed: int, counts: Sequence[int]) -> None:
        """`counts` are the queue counts, one after the other."""
        self._ahead = list(counts[1:])
        self._before = self._count = counts[0]
        self._generation = 0
        self._is_planned = False
        self._unmoved: list[int] = []
        self._closing: dict[int, int] = {}
        """Shards whose marker is laid and not reached, and the queues they leave."""
        self._gone: set[int] = set()
        super().__init__(seed, counts[0])
        self._keys = [(f"k{n}", (7 * n + 5) % HASH_COUNT) for n in range(8)]
        self._shards = dict(self._keys)

    def _restripe(self) -> None:
        if not self._is_planned:
            self._plan()
        elif self._unmoved:
            for _ in range(min(len(self._unmoved), self._dice.randrange(2, 6))):
                self._lay_marker(self._unmoved.pop())
        elif not self._closing:
            self._finish()

    def _plan(self) -> None:
        if not self._ahead:
            return
        self._before, self._count = self._count, self._ahead.pop(0)
        self._is_planned = True
        self._generation += 1
        self._gone.clear()
        self._unmoved = [shard for shard in range(HASH_COUNT) if shard % self._before != shard % self._count]
        self._dice.shuffle(self._unmoved)
        for queue in sorted(self._owner):
            self._say(queue, "planned")
        for queue in range(self._before, self._count):
            self._queues[queue], self._recent[queue] = [], []
            self._activate(queue, self._dice.choice(self._members))

    def _lay_marker(self, shard: int) -> None:
        """Messages before the marker are in the old queue, those behind it in the new one."""
        key = next((key for key, each in self._keys if each == shard), None)
        twice = None
        if key is not None and self._dice.random() < 0.5:
            publisher = self._dice.randrange(2)
            seq = self._seqs[publisher, key] = self._seqs.get((publisher, key), 0) + 1
            twice = (publisher, key, seq)
            self._unconfirmed(*twice, "unknown")
            self._spool(*twice)
        self._closing[shard] = shard % self._before
        self._queue_of_shard[shard] = shard % self._count
        if twice is not None:
            # Its publisher did not know whether the first one had arrived.
            self._spool(*twice)
            self._confirm(*twice)

    def _finish(self) -> None:
        self._is_planned = False
        for queue in sorted(self._owner):
            self._say(queue, "finished")
        for queue in range(self._count, self._before):
            assert not self._queues.pop(queue)
            if queue in self._owner:
                self._release(queue, self._owner[queue], "unwanted")
            del self._recent[queue]
        self.queue_count = self._dice.choice([self.queue_count, self._count])

    def _ready(self, queue: int) -> list[Copy]:
        return [copy for copy in self._queues[queue] if self._closing.get(self._shards[copy.key], queue) == queue]

    def _have_handled(self) -> None:
        for shard, queue in sorted(self._closing.items()):
            if not any(self._shards[copy.key] == shard for copy in self._queues[queue]):
                del self._closing[shard]
                self._gone.add(shard)
                # The broker has taken the settlements.
                self._recent[queue] = [each for each in self._recent[queue] if self._shards[each.copy.key] != shard]
                self._say(queue, "left", shard)
        self._pass(MS)

    def _have_activated(self, queue: int) -> None:
        """A new owner reads again what lies in the queue."""
        if self._is_planned:
            self._say(queue, "planned")
            for shard in sorted(self._gone):
                if shard % self._before == queue:
                    self._say(queue, "left", shard)

    def _say(self, queue: int, event: str, shard: int | None = None) -> None:
        self._pass(10_000)
        member = self._owner[queue]
        member.journal.records.append(
            StripesRecord(
                queue=queue,
                bind_epoch=member.epochs[queue],
                event=event,  # type: ignore[arg-type]
                generation=self._generation,
                from_count=self._before,
                to_count=self._count,
                shard=shard,
                t=wall_us(self._now),
                mono_ns=self._now,
            )
        )


STORY = (
    *(Step.PUBLISH, Step.RESTRIPE, Step.PUBLISH, Step.RESTRIPE, Step.PUBLISH, Step.HANDLE, Step.PUBLISH, Step.HANDLE),
    *(Step.RESTRIPE, Step.CRASH, Step.PUBLISH, Step.HANDLE, Step.RESTRIPE, Step.MOVE, Step.HANDLE, Step.PUBLISH),
    *(Step.RESTRIPE, Step.DISCONNECT, Step.HANDLE, Step.SEND_TWICE, Step.RESTRIPE, Step.HANDLE, Step.JOIN),
    *(Step.RESTRIPE, Step.CANCEL, Step.PUBLISH, Step.HANDLE, Step.RESTRIPE, Step.PUBLISH, Step.HANDLE),
)
"""Long enough for one re-striping, in which everything happens that may happen."""


def striped_story(*counts: int, seed: int = 7) -> Run:
    """A run that goes through all of these queue counts."""
    return _told(counts, seed).copy()


@cache
def _told(counts: tuple[int, ...], seed: int) -> Run:
    return StripedWorld(seed, counts).play(STORY * len(counts))


@st.composite
def striped_runs(draw: st.DrawFn) -> Run:
    """Random correct runs; the last re-striping may not have come to its end, and one may lead to the same number."""
    counts = draw(st.lists(st.integers(1, 8), min_size=2, max_size=4))
    steps = draw(st.lists(st.sampled_from(Step), max_size=40))
    busy = [step for each in steps for step in (Step.PUBLISH, each, Step.RESTRIPE, Step.HANDLE)]
    return StripedWorld(draw(st.integers(0, 1 << 32)), counts).play([*busy, Step.PUBLISH])
