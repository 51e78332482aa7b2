"""Computes the figures of one pattern from what its members did. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Handled:
    """One handling that was completed; times are of the loop's clock, in seconds."""

    member: str
    key: str
    number: int
    """The message's number within its key, from 1."""
    start_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class Story:
    """What was published, and when members came and went."""

    published: Mapping[str, int]
    """How many messages of each key were confirmed."""
    join_s: float
    crash_s: float
    interval_s: float
    """Between two bursts of one key, as published: a longer wait is a pause."""


@dataclass(frozen=True, slots=True)
class Figures:
    published: int
    handled: int
    """Messages that were handled at least once."""
    lost: int
    duplicates: int
    """Handlings of a message after its first."""
    order_errors: int
    """Messages whose first handling began after that of a later one of their key."""
    overlaps: int
    """Handlings that began while another member handled the same key."""
    owner_changes: int
    """How often a message of a key was handled by a different member than the one before, in the whole run."""
    steady_owner_changes: int
    """The same, before anybody came or went."""
    spread: float
    """What the busiest member handled before anybody came or went, as a multiple of an even share."""
    keys_per_member: float
    """Keys that a member handled on average, before anybody came or went."""
    join_pause_ms: int
    """Longest wait of any key for its next message after a member came, beyond the interval as published."""
    crash_pause_ms: int
    """The same after a member was gone without notice."""


def figures_of(handlings: Sequence[Handled], story: Story, member_count: int) -> Figures:
    """Judge a run; `member_count` members were there from the start."""
    by_key: dict[str, list[Handled]] = {key: [] for key in story.published}
    handlings = [each for each in handlings if each.key in by_key]
    for handled in sorted(handlings, key=lambda each: (each.start_s, each.done_s)):
        by_key[handled.key].append(handled)
    firsts = {key: _first_handlings(every) for key, every in by_key.items()}
    distinct = sum(map(len, firsts.values()))
    steady = [each for each in handlings if each.start_s < story.join_s]
    shares = [sum(each.member == member for each in steady) for member in {each.member for each in steady}]
    pairs = {(each.member, each.key) for each in steady}
    published = sum(story.published.values())
    return Figures(
        published=published,
        handled=distinct,
        lost=published - distinct,
        duplicates=len(handlings) - distinct,
        order_errors=sum(_late(every) for every in firsts.values()),
        overlaps=sum(_overlaps(every) for every in by_key.values()),
        owner_changes=sum(_owner_changes(every) for every in by_key.values()),
        steady_owner_changes=sum(
            _owner_changes([each for each in every if each.start_s < story.join_s]) for every in by_key.values()
        ),
        spread=max(shares, default=0) * member_count / max(len(steady), 1),
        keys_per_member=len(pairs) / max(len(shares), 1),
        join_pause_ms=_pause_ms(by_key, story.join_s, story.crash_s, story.interval_s),
        crash_pause_ms=_pause_ms(by_key, story.crash_s, float("inf"), story.interval_s),
    )


def _first_handlings(every: Sequence[Handled]) -> list[Handled]:
    seen: dict[int, Handled] = {}
    for handled in every:
        seen.setdefault(handled.number, handled)
    return list(seen.values())


def _late(firsts: Sequence[Handled]) -> int:
    newest = late = 0
    for handled in firsts:
        late += handled.number < newest
        newest = max(newest, handled.number)
    return late


def _overlaps(every: Sequence[Handled]) -> int:
    busy_until_s: dict[str, float] = {}
    overlaps = 0
    for handled in every:
        overlaps += any(done_s > handled.start_s for member, done_s in busy_until_s.items() if member != handled.member)
        busy_until_s[handled.member] = max(handled.done_s, busy_until_s.get(handled.member, 0.0))
    return overlaps


def _owner_changes(every: Sequence[Handled]) -> int:
    return sum(one.member != other.member for one, other in pairwise(every))


def _pause_ms(by_key: Mapping[str, Sequence[Handled]], from_s: float, to_s: float, interval_s: float) -> int:
    """The longest wait of a key, within this time, for a handling to start, beyond the interval; at least 0."""
    waits = [
        other.start_s - max(one.start_s, from_s)
        for every in by_key.values()
        for one, other in pairwise(every)
        if from_s <= other.start_s < to_s
    ]
    return max(0, round((max(waits, default=0.0) - interval_s) * 1_000))
