"""Which queue holds which shard, as one member knows it, and how that knowledge spreads in the group.

The queues themselves say what is true (core/restripe/records.py); whoever reads it there tells the others with every
heartbeat. What is known of a generation only grows, so reports may come late, twice or in any order.

That a shard has left its old queue lets the new one's owner handle it, and so does that a queue is done with all that
the old layout had in it. Such words are believed only with a proof by the secret that the plan in the queues carries:
a client that can only talk on the control topic cannot make them up. All else here places queues, and decides no order.
"""

import hmac
from dataclasses import dataclass, replace

from lbg_runtime.core.restripe.records import StripePlan

NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Striping:
    """What is known at one moment."""

    generation: int
    """Of the re-striping that is under way, or was the last; 0 where the settings are all that is known."""
    queue_count: int
    """Queues of the layout that is left, or of the one that holds."""
    target: int | None = None
    """Queues of the layout that is gone to; None where nothing is under way."""
    left: frozenset[int] = NOTHING
    """Shards of which the old queue has nothing left to handle."""
    finished: frozenset[int] = NOTHING
    """Indexes of queues of which all is handled by the new layout, and nothing remembers the old one."""

    @property
    def queue_total(self) -> int:
        """Queues that exist now."""
        return max(self.queue_count, self.target or 0)

    def index_of(self, shard: int) -> int:
        """Index of the queue that holds the shard's newest messages to be handled."""
        old = shard % self.queue_count
        # Of a queue that has finished, who was not there hears nothing of single shards any more.
        if self.target is not None and (shard in self.left or old in self.finished):
            return shard % self.target
        return old


@dataclass(frozen=True, slots=True)
class StripingReport:
    """A member's word of it, in its heartbeats."""

    striping: Striping
    proof: str
    """For `left` and `finished`; empty where both are."""


class StripingBook:
    """One per member, owned by its membership machine. Every `see_` and `hear` says whether something was news."""

    def __init__(self, queue_count: int, hash_count: int | None = None) -> None:
        """`queue_count` is that of the settings. `hash_count`: a report of more queues than shards is not believed."""
        self._hash_count = hash_count
        self.now = Striping(0, queue_count)
        self._plan: StripePlan | None = None
        """The newest that we know the secret of."""

    def trust(self, plan: StripePlan) -> None:
        """Believe who proves to know this plan; says nothing of whether it is under way."""
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

    def see_plan(self, plan: StripePlan) -> bool:
        """A plan lies in one of our queues."""
        if plan.generation < self.now.generation:
            return False
        is_news = plan.generation > self.now.generation
        if is_news:
            self.now = Striping(plan.generation, plan.from_count, plan.to_count)
        self.trust(plan)
        return is_news

    def see_left(self, generation: int, shard: int) -> bool:
        """Everything of the shard before its marker is handled, and the broker knows."""
        if generation != self.now.generation or self.now.target is None or shard in self.now.left:
            return False
        self.now = replace(self.now, left=self.now.left | {shard})
        return True

    def see_finished(self, generation: int, from_count: int, to_count: int, queue_index: int) -> bool:
        """One of our queues has nothing left of the re-striping, and the broker knows."""
        if generation > self.now.generation:
            self.now = Striping(generation, from_count, to_count)
        elif generation < self.now.generation or self.now.target is None or queue_index in self.now.finished:
            return False
        self.now = replace(self.now, finished=self.now.finished | {queue_index})
        return True

    def see_ended(self, generation: int, to_count: int) -> bool:
        """The re-striping is over."""
        if generation < self.now.generation or (generation == self.now.generation and self.now.target is None):
            return False
        self.now = Striping(generation, to_count)
        return True

    # -- what others say

    def hear(self, report: StripingReport) -> bool:
        """Another member's heartbeat."""
        theirs, before = report.striping, self.now
        if self._hash_count is not None and theirs.queue_total > self._hash_count:
            return False
        if theirs.generation > before.generation:
            self.now = replace(theirs, left=NOTHING, finished=NOTHING)
        if theirs.generation == self.now.generation and self.now.target is not None:
            if theirs.target is None:
                self.now = theirs
            elif self._proves(report):
                left, finished = self.now.left | theirs.left, self.now.finished | theirs.finished
                self.now = replace(self.now, left=left, finished=finished)
        return self.now != before

    def _proves(self, report: StripingReport) -> bool:
        secret = self._secret()
        if secret is None:
            return False
        # Bytes, because anybody may say anything as a proof, and texts are compared only where they are ASCII.
        return hmac.compare_digest(proof_of(secret, report.striping).encode(), report.proof.encode())

    def _secret(self) -> str | None:
        return self._plan.secret if self._plan is not None and self._plan.generation == self.now.generation else None


def proof_of(secret: str, striping: Striping) -> str:
    """What only those can say who have read the plan: a keyed digest (HMAC, RFC 2104) of the shards that have left and
    the queues that have finished."""
    left, finished = (" ".join(map(str, sorted(numbers))) for numbers in (striping.left, striping.finished))
    said = f"{striping.generation} left {left} finished {finished}"
    return hmac.new(secret.encode(), said.encode(), "sha256").hexdigest()
