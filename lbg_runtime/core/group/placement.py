"""Which member is at home on which queue, and in which order the others stand by: the same answer on every member.

Placement is a pure function of the queues, the candidates, the current owners and the pins; the order of the sequences
and the process do not matter. It only decides convenience: a wrong answer costs time, never order, because it is the
broker's exclusivity that keeps two members apart.

Guaranteed, with `share` = queues * weight / sum of weights:

- Balanced: a member is at home on floor(share) or ceil(share) queues, so with equal weights any two differ by at most
  one. The larger number goes first to members that own more than floor(share), then by largest remainder, then by id.
- Pins win: a pinned queue is at home on its member if that is a candidate. A member with more pins than its share has
  exactly its pins, and the rest is shared by the same rule among the others.
- Sticky: a candidate keeps queues that it owns up to its number, except those pinned elsewhere. No other placement that
  keeps balance and pins takes fewer queues from owners that are candidates. Repeating a placement with its result as
  the owners changes nothing.
- Returning: which queues an owner gives away is up to preference, so a member that leaves and comes back under its name
  gets most of the queues that it had; all of them, after some such rounds, if members have equally many.
- With equal weights and without pins, from a balanced state: adding a member moves at most ceil(queues / members)
  queues, all to it; removing a member moves only that member's queues. With weights or pins, other queues move too if
  balance demands it.
- A member of weight 0 takes nothing but its pins, and stands by last, unless every candidate has weight 0: then all
  count as 1.

Preference among members is rendezvous hashing (highest random weight): D. Thaler, C. Ravishankar, "Using name-based
mappings to increase hit rates", IEEE/ACM Transactions on Networking 6(1), 1998. Standbys are in that order, so the
queues of a member that dies fall to many successors, and a queue's order does not depend on who else comes and goes.
Weights decide how many homes a member has; they do not change the order of standbys.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lbg_runtime.model.errors import InvariantViolated, UserError
from lbg_runtime.model.ids import MemberId, QueueName


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that may be at home on queues. Raises `UserError` for a negative weight."""

    member: MemberId
    weight: int = 1
    """Its share of the queues, relative to the others'."""

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise UserError("membership.weight", str(self.weight), "0 or more")


@dataclass(frozen=True, slots=True)
class Placement:
    """All candidates for each queue, best first: home, then standbys. Raises `KeyError` for an unknown queue."""

    ranks: Mapping[QueueName, tuple[MemberId, ...]]
    """In order of queue names; empty tuples if there were no candidates."""

    def home(self, queue: QueueName) -> MemberId | None:
        """The member that should own the queue; None without candidates."""
        ranked = self.ranks[queue]
        return ranked[0] if ranked else None

    def rank(self, queue: QueueName, member: MemberId) -> int | None:
        """0 for the home, 1 for the first standby, and so on; None for a member that is not a candidate."""
        ranked = self.ranks[queue]
        return ranked.index(member) if member in ranked else None


def place(
    queues: Sequence[QueueName],
    candidates: Sequence[Candidate],
    owners: Mapping[QueueName, MemberId],
    pins: Mapping[QueueName, MemberId],
) -> Placement:
    """Rank the candidates on every queue, as guaranteed by the module docstring.

    Owners and pins that name no candidate or no queue are ignored. Costs queues x candidates hashes, and sorting them.
    Raises `InvariantViolated` if a queue or a member is listed twice.
    """
    ordered = sorted(queues)
    weights = _weights(candidates)
    if len(set(ordered)) < len(ordered) or len(weights) < len(candidates):
        raise InvariantViolated("a queue or a candidate is listed twice")
    if not weights:
        return Placement(dict.fromkeys(ordered, ()))
    scores = _scores(tuple(ordered), tuple(weights))

    homes = {queue: pins[queue] for queue in ordered if pins.get(queue) in weights}
    pinned = Counter(homes.values())
    owned: defaultdict[MemberId, list[QueueName]] = defaultdict(list)
    for queue in ordered:
        owner = owners.get(queue)
        if owner is not None and owner in weights and queue not in homes:
            owned[owner].append(queue)
    wanted = {member: pinned[member] + len(owned[member]) for member in weights}
    counts = _home_counts(len(ordered), weights, pinned, wanted)
    room = {member: counts[member] - pinned[member] for member in weights}

    short = [member for member in weights if room[member] > len(owned[member])]
    for member, held in owned.items():
        # An owner gives away what most prefers the others to it, so that a member that comes back gets its queues back.
        held.sort(
            key=lambda queue: (max((scores[queue][other] for other in short), default=0) - scores[queue][member], queue)
        )
        for queue in held[: room[member]]:
            homes[queue] = member
        room[member] -= min(room[member], len(held))
    pairs = [
        (-scores[queue][member], queue, member)
        for queue in ordered
        if queue not in homes
        for member in weights
        if room[member]
    ]
    for _, queue, member in sorted(pairs):
        if queue not in homes and room[member]:
            homes[queue] = member
            room[member] -= 1
    return Placement({queue: _ranked(homes[queue], weights, scores[queue]) for queue in ordered})


def _weights(candidates: Sequence[Candidate]) -> dict[MemberId, int]:
    """Weights by member id; 1 for everybody if all are 0."""
    weights = {candidate.member: candidate.weight for candidate in sorted(candidates, key=lambda one: one.member)}
    return weights if any(weights.values()) else dict.fromkeys(weights, 1)


# Members rarely come and go; owners, whose changes repeat the placement, change with every bind of a queue.
@lru_cache(maxsize=8)
def _scores(queues: tuple[QueueName, ...], members: tuple[MemberId, ...]) -> Mapping[QueueName, Mapping[MemberId, int]]:
    return {queue: {member: _score(queue, member) for member in members} for queue in queues}


def _score(queue: QueueName, member: MemberId) -> int:
    """How much a queue prefers a member, 64 bits; equal in every process and version."""
    name = queue.encode()
    # The length prefix makes sure that no other pair of names gives the same bytes.
    text = len(name).to_bytes(4, "big") + name + member.encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _home_counts(
    queue_count: int,
    weights: Mapping[MemberId, int],
    pinned: Mapping[MemberId, int],
    wanted: Mapping[MemberId, int],
) -> dict[MemberId, int]:
    """How many homes each member has; `wanted` counts those it is pinned to or could keep. The sum is `queue_count`."""
    counts: dict[MemberId, int] = {}
    sharing = dict(weights)
    rest = queue_count
    while over := [member for member in sharing if pinned[member] * sum(sharing.values()) > rest * sharing[member]]:
        # Taking these out lowers the share of the others, so more of them may now have too many pins. The loop ends
        # before the weights are used up: all sharing members together never have more pins than queues to share.
        for member in over:
            counts[member] = pinned[member]
            rest -= counts[member]
            del sharing[member]
    total = sum(sharing.values())
    remainders = {member: rest * weight % total for member, weight in sharing.items()}
    counts |= {member: rest * weight // total for member, weight in sharing.items()}
    larger = [member for member in sharing if remainders[member]]
    larger.sort(key=lambda member: (wanted[member] <= counts[member], -remainders[member], member))
    for member in larger[: queue_count - sum(counts.values())]:
        counts[member] += 1
    return counts


def _ranked(home: MemberId, weights: Mapping[MemberId, int], scores: Mapping[MemberId, int]) -> tuple[MemberId, ...]:
    return tuple(sorted(weights, key=lambda member: (member != home, not weights[member], -scores[member], member)))
