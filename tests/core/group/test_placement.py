import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.core.group.placement import Candidate, Placement, place
from lbg_runtime.model.errors import InvariantViolated, UserError
from lbg_runtime.model.ids import MemberId, QueueName

Homes = dict[QueueName, MemberId]


def queue_names(count: int) -> list[QueueName]:
    return [QueueName(f"orders/{number}") for number in range(count)]


def member_names(count: int) -> list[MemberId]:
    return [MemberId(f"member-{number}") for number in range(count)]


def equal(members: Sequence[MemberId]) -> list[Candidate]:
    return [Candidate(member) for member in members]


def homes(placement: Placement) -> Homes:
    return {queue: ranked[0] for queue, ranked in placement.ranks.items()}


def homes_of(placement: Placement, member: MemberId) -> tuple[QueueName, ...]:
    return tuple(queue for queue in placement.ranks if placement.home(queue) == member)


def moves(before: Mapping[QueueName, MemberId], after: Mapping[QueueName, MemberId]) -> set[QueueName]:
    return {queue for queue in after if before[queue] != after[queue]}


@st.composite
def balanced_homes(draw: st.DrawFn, queues: Sequence[QueueName], members: Sequence[MemberId]) -> Homes:
    """Any assignment whose counts differ by at most one, not only those that place() finds."""
    shuffled_members = draw(st.permutations(members))
    shuffled_queues = draw(st.permutations(queues))
    return dict(zip(shuffled_queues, itertools.cycle(shuffled_members), strict=False))


@st.composite
def cases(
    draw: st.DrawFn,
    max_queues: int = 24,
    max_members: int = 6,
) -> tuple[list[QueueName], list[Candidate], Homes, Homes]:
    queues = queue_names(draw(st.integers(0, max_queues)))
    members = member_names(draw(st.integers(1, max_members)))
    candidates = [Candidate(member, draw(st.integers(0, 5))) for member in members]
    anyone = st.sampled_from([*members, MemberId("elsewhere")])
    some_queue = st.sampled_from([*queues, QueueName("unknown")])
    owners = draw(st.dictionaries(some_queue, anyone))
    pins = draw(st.dictionaries(some_queue, anyone))
    return queues, candidates, owners, pins


def effective_weights(candidates: Sequence[Candidate]) -> dict[MemberId, int]:
    weights = {candidate.member: candidate.weight for candidate in candidates}
    return weights if any(weights.values()) else dict.fromkeys(weights, 1)


# -- shape


@given(cases())
def test_every_queue_ranks_every_candidate_once(case: tuple[list[QueueName], list[Candidate], Homes, Homes]) -> None:
    queues, candidates, owners, pins = case
    placement = place(queues, candidates, owners, pins)
    assert list(placement.ranks) == sorted(queues)
    for queue, ranked in placement.ranks.items():
        assert sorted(ranked) == sorted(candidate.member for candidate in candidates)
        assert [placement.rank(queue, member) for member in ranked] == list(range(len(ranked)))
        assert placement.home(queue) == ranked[0]


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(
    case: tuple[list[QueueName], list[Candidate], Homes, Homes], chance: random.Random
) -> None:
    queues, candidates, owners, pins = case
    placement = place(queues, candidates, owners, pins)
    reversed_owners = dict(reversed(owners.items()))
    assert placement == place(queues[::-1], candidates[::-1], reversed_owners, dict(reversed(pins.items())))
    chance.shuffle(queues)
    chance.shuffle(candidates)
    assert placement == place(queues, candidates, owners, pins)


def test_another_process_with_another_hash_seed_places_alike() -> None:
    program = (
        "from lbg_runtime.core.group.placement import Candidate, place\n"
        "queues = [f'orders/{number}' for number in range(16)]\n"
        "members = [Candidate(f'member-{number}') for number in range(4)]\n"
        "print(sorted(place(queues, members, {}, {}).ranks.items()))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    here = place(queue_names(16), equal(member_names(4)), {}, {})
    assert outputs == {f"{sorted(here.ranks.items())}\n"}


def test_the_order_of_standbys_is_fixed_for_all_versions() -> None:
    """Members of two versions must agree: a change here is a change of the protocol."""
    placement = place(queue_names(3), equal(member_names(3)), {}, {})
    assert {queue: "".join(member[-1] for member in ranked) for queue, ranked in placement.ranks.items()} == {
        "orders/0": "012",
        "orders/1": "102",
        "orders/2": "201",
    }


def test_without_candidates_the_ranks_are_empty() -> None:
    placement = place(queue_names(2), [], {QueueName("orders/0"): MemberId("gone")}, {})
    assert placement.ranks == {QueueName("orders/0"): (), QueueName("orders/1"): ()}
    assert placement.home(QueueName("orders/0")) is None
    assert placement.rank(QueueName("orders/0"), MemberId("gone")) is None
    assert homes_of(placement, MemberId("gone")) == ()


def test_a_negative_weight_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match=r"membership\.weight"):
        Candidate(MemberId("one"), -1)


def test_a_queue_or_a_member_listed_twice_is_a_bug() -> None:
    with pytest.raises(InvariantViolated):
        place([*queue_names(2), *queue_names(1)], equal(member_names(1)), {}, {})
    with pytest.raises(InvariantViolated):
        place(queue_names(2), [Candidate(MemberId("one")), Candidate(MemberId("one"), 2)], {}, {})


# -- balance


@given(st.integers(0, 64), st.integers(1, 12), st.data())
def test_with_equal_weights_homes_differ_by_at_most_one(
    queue_count: int, member_count: int, data: st.DataObject
) -> None:
    queues, members = queue_names(queue_count), member_names(member_count)
    owners = data.draw(st.dictionaries(st.sampled_from([*queues, QueueName("x")]), st.sampled_from(members)))
    placement = place(queues, equal(members), owners, {})
    counts = [len(homes_of(placement, member)) for member in members]
    assert max(counts) - min(counts) <= 1


@given(cases())
def test_with_weights_every_count_is_the_share_rounded_down_or_up(
    case: tuple[list[QueueName], list[Candidate], Homes, Homes],
) -> None:
    queues, candidates, owners, _ = case
    placement = place(queues, candidates, owners, {})
    weights = effective_weights(candidates)
    for member, weight in weights.items():
        share = Fraction(len(queues) * weight, sum(weights.values()))
        assert floor(share) <= len(homes_of(placement, member)) <= ceil(share)


def test_without_owners_the_largest_remainders_are_rounded_up() -> None:
    one, two, three = member_names(3)
    placement = place(queue_names(10), [Candidate(one, 1), Candidate(two, 2), Candidate(three, 4)], {}, {})
    # Shares 1.43, 2.86 and 5.71.
    assert [len(homes_of(placement, member)) for member in (one, two, three)] == [1, 3, 6]


def test_weight_0_takes_nothing_and_stands_by_last() -> None:
    one, two, three = member_names(3)
    placement = place(queue_names(8), [Candidate(one, 0), Candidate(two), Candidate(three)], {}, {})
    assert homes_of(placement, one) == ()
    assert all(ranked[-1] == one for ranked in placement.ranks.values())


def test_where_all_have_weight_0_all_share_alike() -> None:
    members = member_names(3)
    placement = place(queue_names(9), [Candidate(member, 0) for member in members], {}, {})
    assert [len(homes_of(placement, member)) for member in members] == [3, 3, 3]


# -- pins


@given(cases())
def test_a_pin_on_a_candidate_wins(case: tuple[list[QueueName], list[Candidate], Homes, Homes]) -> None:
    queues, candidates, owners, pins = case
    placement = place(queues, candidates, owners, pins)
    members = {candidate.member for candidate in candidates}
    for queue, member in pins.items():
        if queue in placement.ranks and member in members:
            assert placement.home(queue) == member


@pytest.mark.parametrize("free", queue_names(10))
def test_whose_pins_exceed_its_share_of_what_others_pins_leave_takes_nothing_else(free: QueueName) -> None:
    """Three pins are less than a third of ten queues, and more than half of the four that six pins leave."""
    many, some, none = member_names(3)
    rest = [queue for queue in queue_names(10) if queue != free]
    pins = dict.fromkeys(rest[:6], many) | dict.fromkeys(rest[6:], some)
    assert place(queue_names(10), equal([many, some, none]), {}, pins).home(free) == none
    owned = place(queue_names(10), equal([many, some, none]), {free: some}, pins)
    assert owned.home(free) == none, "whoever owns it"


@given(st.integers(0, 24), st.integers(1, 6), st.data())
def test_around_pins_equal_members_are_as_even_as_they_can_be(
    queue_count: int, member_count: int, data: st.DataObject
) -> None:
    queues, members = queue_names(queue_count), member_names(member_count)
    some_queue = st.sampled_from([*queues, QueueName("x")])
    pins = data.draw(st.dictionaries(some_queue, st.sampled_from(members)))
    owners = data.draw(st.dictionaries(some_queue, st.sampled_from(members)))
    placement = place(queues, equal(members), owners, pins)
    counts = {member: len(homes_of(placement, member)) for member in members}
    pinned = Counter(member for queue, member in pins.items() if queue in placement.ranks)
    # Giving each free queue to whoever has least is optimal for equal weights; compare the sorted loads.
    best = {member: pinned[member] for member in members}
    for _ in range(queue_count - sum(best.values())):
        best[min(members, key=lambda member: best[member])] += 1
    assert sorted(counts.values()) == sorted(best.values())


# -- stickiness


@given(cases())
def test_placing_again_what_was_placed_changes_nothing(
    case: tuple[list[QueueName], list[Candidate], Homes, Homes],
) -> None:
    queues, candidates, owners, pins = case
    first = place(queues, candidates, owners, pins)
    assert place(queues, candidates, homes(first), pins) == first


@given(cases())
def test_who_owns_no_more_than_its_share_keeps_it_all(
    case: tuple[list[QueueName], list[Candidate], Homes, Homes],
) -> None:
    queues, candidates, owners, _ = case
    placement = place(queues, candidates, owners, {})
    weights = effective_weights(candidates)
    for member, weight in weights.items():
        owned = {queue for queue in queues if owners.get(queue) == member}
        if len(owned) <= len(queues) * weight // sum(weights.values()):
            assert owned <= set(homes_of(placement, member))


@settings(max_examples=60)
@given(cases(max_queues=10, max_members=5))
def test_no_balanced_placement_takes_fewer_queues_from_their_owners(
    case: tuple[list[QueueName], list[Candidate], Homes, Homes],
) -> None:
    queues, candidates, owners, _ = case
    weights = effective_weights(candidates)
    placement = place(queues, candidates, owners, {})
    moved = sum(1 for queue in queues if owners.get(queue) in weights and owners[queue] != placement.home(queue))
    shares = {member: Fraction(len(queues) * weight, sum(weights.values())) for member, weight in weights.items()}
    owned = Counter(owner for queue, owner in owners.items() if queue in placement.ranks)
    choices = [sorted({floor(share), ceil(share)}) for share in shares.values()]
    best = min(
        sum(max(0, owned[member] - count) for member, count in zip(shares, counts, strict=True))
        for counts in itertools.product(*choices)
        if sum(counts) == len(queues)
    )
    assert moved == best


@given(st.integers(0, 64), st.integers(1, 10), st.data())
def test_one_member_more_moves_at_most_its_own_share_and_nothing_between_the_others(
    queue_count: int, member_count: int, data: st.DataObject
) -> None:
    queues, members = queue_names(queue_count), member_names(member_count)
    before = data.draw(balanced_homes(queues, members))
    after = homes(place(queues, equal([*members, MemberId("joiner")]), before, {}))
    moved = moves(before, after)
    assert len(moved) <= ceil(Fraction(queue_count, member_count + 1))
    assert {after[queue] for queue in moved} <= {MemberId("joiner")}


@given(st.integers(0, 64), st.integers(2, 10), st.data())
def test_one_member_fewer_moves_only_its_queues(queue_count: int, member_count: int, data: st.DataObject) -> None:
    queues, members = queue_names(queue_count), member_names(member_count)
    before = data.draw(balanced_homes(queues, members))
    leaver = data.draw(st.sampled_from(members))
    after = homes(place(queues, equal([member for member in members if member != leaver]), before, {}))
    assert moves(before, after) == {queue for queue, member in before.items() if member == leaver}


@given(st.integers(1, 24), st.integers(2, 8))
def test_standbys_keep_their_order_when_a_member_leaves(queue_count: int, member_count: int) -> None:
    queues, members = queue_names(queue_count), member_names(member_count)
    before = place(queues, equal(members), {}, {})
    after = place(queues, equal(members[1:]), homes(before), {})
    for queue in queues:
        if before.home(queue) != members[0]:
            assert after.ranks[queue] == tuple(member for member in before.ranks[queue] if member != members[0])


def test_the_queues_of_a_dead_member_fall_to_several_successors() -> None:
    members = member_names(8)
    placement = place(queue_names(64), equal(members), {}, {})
    successors = {placement.ranks[queue][1] for queue in homes_of(placement, members[0])}
    assert len(successors) >= 4


def test_rolling_restarts_come_to_move_each_queue_away_and_back_and_nothing_else() -> None:
    queues, members = queue_names(16), member_names(4)
    owners = dict(zip(queues, itertools.cycle(members), strict=False))

    def restart_all(owners: Homes) -> tuple[Homes, Counter[QueueName]]:
        moved = Counter[QueueName]()
        for member in members:
            for candidates in ([other for other in members if other != member], members):
                after = homes(place(queues, equal(candidates), owners, {}))
                moved.update(moves(owners, after))
                owners = after
        return owners, moved

    for _ in range(4):
        owners, _ = restart_all(owners)
    after, moved = restart_all(owners)
    assert after == owners
    assert moved == dict.fromkeys(queues, 2)
