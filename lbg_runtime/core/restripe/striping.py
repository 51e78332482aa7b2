"""Which queue holds which shard, as one member knows it, and how that knowledge spreads in the group.

The truth is in the queues (core/restripe/records.py); a member that reads it there tells the others in every heartbeat.
Knowledge about a generation only grows, so reports may come late, twice or in any order.

The news that a shard has left its old queue lets the new queue's owner handle it, and so does the news that a queue has
nothing left from the old layout. Such news is believed only with a proof made with the secret in the plan in the
queues: a client that can only talk on the control topic cannot forge it. Everything else here places queues, and
decides no order.
"""

import hmac
from dataclasses import dataclass, replace
from typing import assert_never

from lbg_runtime.core.restripe.news import PlanReached, ShardLeft, StripesEnded, StripesFinished, StripesNews
from lbg_runtime.core.restripe.records import StripePlan

NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Striping:
    """What is known about the layout at one moment."""

    generation: int
    """Generation of the re-striping under way, or of the last one; 0 if only the settings are known."""
    queue_count: int
    """Queues of the old layout or, if nothing is under way, of the present one."""
    target: int | None = None
    """Queues of the new layout; None if nothing is under way."""
    left: frozenset[int] = NOTHING
    """Shards of which the old queue has nothing left to handle."""
    finished: frozenset[int] = NOTHING
    """Indexes of queues in which everything is handled by the new layout, and nothing is left of the old one."""

    @property
    def queue_total(self) -> int:
        """Number of queues that exist now."""
        return max(self.queue_count, self.target or 0)

    def index_of(self, shard: int) -> int:
        """Index of the queue that holds the shard's newest messages to be handled."""
        old = shard % self.queue_count
        # A member that was absent is no longer told about single shards of a queue that has finished.
        if self.target is not None and (shard in self.left or old in self.finished):
            return shard % self.target
        return old

    def moves(self, hash_count: int) -> tuple[int, int]:
        """How many shards change their queue, and how many of them have nothing left in the old one."""
        if self.target is None:
            return 0, 0
        moving = [shard for shard in range(hash_count) if shard % self.queue_count != shard % self.target]
        return len(moving), sum(self.index_of(shard) != shard % self.queue_count for shard in moving)


@dataclass(frozen=True, slots=True)
class StripingReport:
    """What a member reports about the striping, in its heartbeats."""

    striping: Striping
    proof: str
    """Proves `left` and `finished`; empty if both are."""


class StripingBook:
    """One per member, owned by its membership machine. `see` and `hear` return whether it was news."""

    def __init__(self, queue_count: int, hash_count: int) -> None:
        """`queue_count` comes from the settings. A report of more queues than `hash_count` is not believed."""
        self._hash_count = hash_count
        self.now = Striping(0, queue_count)
        self._plan: StripePlan | None = None
        """The newest plan whose secret we know."""

    def trust(self, plan: StripePlan) -> None:
        """Believe members that prove that they know this plan; this does not say whether it is under way."""
        self._plan = plan

    def report(self) -> StripingReport:
        """What to tell the group."""
        secret = self._secret()
        if secret is None or not (self.now.left or self.now.finished):
            return StripingReport(replace(self.now, left=NOTHING, finished=NOTHING), "")
        return StripingReport(self.now, proof_of(secret, self.now))

    def disagrees(self, report: StripingReport) -> bool:
        """Whether two members were started with different queue counts, and no re-striping explains it."""
        theirs = report.striping
        return theirs.generation == self.now.generation == 0 and theirs.queue_count != self.now.queue_count

    # -- what our own queues say

    def see(self, news: StripesNews, queue_index: int) -> bool:
        """Take in what one of our queues says."""
        match news:
            case PlanReached(plan):
                return self._see_plan(plan)
            case ShardLeft(plan, shard):
                return self._see_left(plan.generation, shard)
            case StripesFinished():
                return self._see_finished(news, queue_index)
            case StripesEnded(generation, to_count):
                return self._see_ended(generation, to_count)
            case _:
                assert_never(news)

    def _see_plan(self, plan: StripePlan) -> bool:
        if plan.generation < self.now.generation:
            return False
        is_news = plan.generation > self.now.generation
        if is_news:
            self.now = Striping(plan.generation, plan.from_count, plan.to_count)
        self.trust(plan)
        return is_news

    def _see_left(self, generation: int, shard: int) -> bool:
        if generation != self.now.generation or self.now.target is None or shard in self.now.left:
            return False
        self.now = replace(self.now, left=self.now.left | {shard})
        return True

    def _see_finished(self, news: StripesFinished, queue_index: int) -> bool:
        if news.generation > self.now.generation:
            self.now = Striping(news.generation, news.from_count, news.to_count)
        elif news.generation < self.now.generation or self.now.target is None or queue_index in self.now.finished:
            return False
        self.now = replace(self.now, finished=self.now.finished | {queue_index})
        return True

    def _see_ended(self, generation: int, to_count: int) -> bool:
        if generation < self.now.generation or (generation == self.now.generation and self.now.target is None):
            return False
        self.now = Striping(generation, to_count)
        return True

    # -- what others say

    def hear(self, report: StripingReport) -> bool:
        """Take in the report of another member's heartbeat."""
        theirs, before = report.striping, self.now
        if theirs.queue_total > self._hash_count:
            return False
        if theirs.generation > before.generation:
            self.now = replace(theirs, left=NOTHING, finished=NOTHING)
        if theirs.generation == self.now.generation and self.now.target is not None:
            if theirs.target is None:
                self.now = theirs
            # The proof last: with thousands of shards it takes milliseconds, and members say the same every second.
            elif not (theirs.left <= self.now.left and theirs.finished <= self.now.finished) and self._proves(report):
                left, finished = self.now.left | theirs.left, self.now.finished | theirs.finished
                self.now = replace(self.now, left=left, finished=finished)
        return self.now != before

    def _proves(self, report: StripingReport) -> bool:
        secret = self._secret()
        if secret is None:
            return False
        # Bytes, because anybody may send anything as a proof, and `compare_digest` takes only ASCII strings.
        return hmac.compare_digest(proof_of(secret, report.striping).encode(), report.proof.encode())

    def _secret(self) -> str | None:
        return self._plan.secret if self._plan is not None and self._plan.generation == self.now.generation else None


def proof_of(secret: str, striping: Striping) -> str:
    """A keyed digest (HMAC, RFC 2104) of the shards that have left and the queues that have finished, which only a
    reader of the plan can make."""
    left, finished = (" ".join(map(str, sorted(numbers))) for numbers in (striping.left, striping.finished))
    said = f"{striping.generation} left {left} finished {finished}"
    return hmac.new(secret.encode(), said.encode(), "sha256").hexdigest()
