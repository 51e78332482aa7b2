"""Every history of two or three members in which one thing goes wrong, or is done to them, at every moment of a move.

A history goes on until the group is as it was some time ago: what is at rest then stays so. Histories that meet are
followed once from there. The simulation has larger groups to which far more happens, and sees a sample of that. With
three members, the other disturbances take 3 to 12 s each.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import pytest

from lbg_runtime.core.flow.commands import Command, StartIntake
from lbg_runtime.core.flow.events import HandBackRequested
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.release import Release
from lbg_runtime.core.group import rebalance
from lbg_runtime.core.group.control_messages import ControlMessage, Offer
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.placement import Candidate, Placement, place
from lbg_runtime.core.group.rebalance import RebalanceMachine
from lbg_runtime.core.group.rebalance_events import AskFlow, GroupSeen, RebalanceCommand, Say
from lbg_runtime.model.ids import MemberId, QueueName
from tests.core.group import small_group
from tests.core.group.small_group import MOVES, SILENCE_MS, TIMING, Letter, SmallGroup
from tests.core.group.small_group_likeness import likeness

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")
QUEUES = [QueueName("q0"), QueueName("q1"), QueueName("q2")]
LONGEST_MS = 240
"""Until a history repeats itself, or meets one that is known: a member that is gone is not forgotten before."""

Disturbance = tuple[str, tuple[object, ...]]
"""A method of the group, and what it is called with."""
Disturbances = Callable[[SmallGroup], list[Disturbance]]


def said(group: SmallGroup) -> list[Letter]:
    """What is on its way to another member."""
    return [each for each in group.letters if isinstance(each.what, ControlMessage) and each.sender != each.to]


def losses(group: SmallGroup) -> list[Disturbance]:
    """A control message does not arrive."""
    return [("lose", (letter,)) for letter in said(group)]


def delays(group: SmallGroup) -> list[Disturbance]:
    """A control message comes after the next heartbeat, or what the broker says of a flow after other news."""
    late = [("delay", (letter, TIMING.heartbeat_ms + 2)) for letter in said(group)]
    return [*late, *(("delay", (letter, 2)) for letter in group.letters if letter.sender is None)]


def lives(group: SmallGroup) -> list[Disturbance]:
    """A member comes, dies, or leaves in order."""
    comings = [("start", (name,)) for name in group.starts if name not in group.members]
    return [*comings, *((how, (name,)) for name in group.members for how in ("kill", "leave"))]


def weights(group: SmallGroup) -> list[Disturbance]:
    """A member is to have nothing."""
    return [("weigh", (name, 0)) for name in group.members]


def flows(group: SmallGroup) -> list[Disturbance]:
    """A handler takes longer than a drain may, a handle is lost, or the broker feeds another."""
    long = [("delay", (letter, ticks)) for letter in group.letters if letter.sender == "handler" for ticks in (8, 15)]
    queue = QUEUES[0]
    bound = [name for name in group.lines[queue] if group.is_bound(name, queue)]
    lost = [("lose_handle", (name, queue)) for name in bound]
    return [*long, *lost, *([("feed_next", (queue,))] if bound[:1] == group.lines[queue][:1] != [] else [])]


def pauses(group: SmallGroup) -> list[Disturbance]:
    """A process stands still until it is dead to the other, or is not heard until the rebind cycle begins."""
    cuts = [(name, other) for name in group.members for other in group.members if name != other]
    frozen = [("freeze", (name, TIMING.dead_ms + 3)) for name in group.members]
    return [*frozen, *(("cut", (*cut, SILENCE_MS + 10)) for cut in cuts)]


class Histories:
    """Follows all of them."""

    def __init__(self, disturbances: Disturbances) -> None:
        self.count = 0
        self._disturbances = disturbances
        self._next: dict[int, int] = {}
        """What a group is like after one more step, by what it was like; from all of these it comes to rest."""
        self._disturbed: dict[int, int] = {}
        """How many more disturbances have been tried there."""

    def follow(self, group: SmallGroup, more: int, story: tuple[Disturbance, ...] = ()) -> None:
        """Until it rests; and then with up to so many `more` disturbances, at every moment at which it did not."""
        self.count += 1
        path: dict[int, object] = {}
        branches: list[SmallGroup] = []
        began_ms, key = group.now_ms, likeness(group)
        while key not in path:
            was_here = key in self._next
            if is_new := group.unrest() != [] and self._disturbed.get(key, 0) < more:
                self._disturbed[key] = more
                branches.append(deepcopy(group))
            path[key] = group.owners()
            group.step()
            before, key = key, likeness(group)
            assert self._next.setdefault(before, key) == key, f"{story}: alike, and with another future"
            if was_here and not is_new:
                break
            assert group.now_ms - began_ms < LONGEST_MS, f"{story}: still no rest: {group.unrest()}"
        else:
            assert not group.unrest(), f"{story}: {group.unrest()}"
            repeated = list(path)[list(path).index(key) :]
            assert {path[each] for each in repeated} == {group.owners()}, f"{story}: queues go to and fro"
        for branch in branches:
            for name, arguments in self._disturbances(branch):
                other = deepcopy(branch)
                getattr(other, name)(*arguments)
                self.follow(other, more - 1, (*story, (name, arguments)))


def group_that_b_joins() -> SmallGroup:
    """Member a has had both queues for some time."""
    group = SmallGroup(QUEUES[:2])
    group.start(A)
    while group.now_ms < 1_060:
        group.step()
    assert group.owners() == (A, A)
    group.start(B)
    return group


@pytest.mark.parametrize(
    ("disturbances", "more", "least_count"),
    [(losses, 2, 50), (delays, 1, 15), (lives, 1, 50), (pauses, 1, 30), (weights, 1, 20), (flows, 1, 20)],
    ids=[
        "two_messages_are_lost",
        "something_is_late",
        "somebody_comes_or_goes",
        "somebody_is_away",
        "somebody_is_to_have_nothing",
        "a_flow_is_disturbed",
    ],
)
def test_whatever_happens_the_group_comes_to_rest(disturbances: Disturbances, more: int, least_count: int) -> None:
    histories = Histories(disturbances)
    histories.follow(group_that_b_joins(), more)
    assert histories.count >= least_count


def group_of_three(of_old: Sequence[MemberId]) -> SmallGroup:
    """These have had the queues for some time."""
    group = SmallGroup(QUEUES)
    for name in of_old:
        group.start(name)
    while group.now_ms < 1_080:
        group.step()
    assert not group.unrest()
    return group


@pytest.fixture
def two_standbys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three members, all stand in each line: the one that is not to have a queue must step aside."""
    monkeypatch.setattr(small_group, "MOVES", replace(MOVES, standbys=2))


def group_that_two_join() -> SmallGroup:
    group = group_of_three([A])
    group.start(B)
    group.start(C)
    return group


def group_that_one_leaves() -> SmallGroup:
    group = group_of_three([A, B, C])
    group.leave(C)
    return group


@pytest.mark.parametrize(
    ("start", "disturbances", "least_count"),
    [
        (group_that_two_join, losses, 50),
        (group_that_one_leaves, losses, 40),
        (group_that_one_leaves, delays, 45),
    ],
    ids=["two_join_and_a_message_is_lost", "one_leaves_and_a_message_is_lost", "one_leaves_and_something_is_late"],
)
@pytest.mark.usefixtures("two_standbys")
def test_three_members_come_to_rest(
    start: Callable[[], SmallGroup], disturbances: Disturbances, least_count: int
) -> None:
    histories = Histories(disturbances)
    histories.follow(start(), 1)
    assert histories.count >= least_count


def offer_and_give(machine: RebalanceMachine, now_ms: int) -> list[RebalanceCommand]:
    said = OFFER(machine, now_ms)
    offers = [one.message for one in said if isinstance(one, Say) and isinstance(one.message, Offer)]
    return [*said, *(AskFlow(offer.queue, HandBackRequested(offer.move_id)) for offer in offers)]


def place_with_the_other(
    queues: Sequence[QueueName],
    candidates: Sequence[Candidate],
    owners: Mapping[QueueName, MemberId],
    pins: Mapping[QueueName, MemberId],
) -> Placement:
    return place(queues, candidates, {queue: A if owner == B else B for queue, owner in owners.items()}, pins)


def place_by_number(
    queues: Sequence[QueueName],
    candidates: Sequence[Candidate],
    owners: Mapping[QueueName, MemberId],
    pins: Mapping[QueueName, MemberId],
) -> Placement:
    return place(queues, [Candidate(each.member) for each in candidates], owners, pins)


def take_what_others_are_offered(machine: RebalanceMachine, offer: Offer, now_ms: int) -> list[RebalanceCommand]:
    return HEAR_OFFER(machine, replace(offer, to=machine._member), now_ms)


def stay_silent(machine: RebalanceMachine, seen: GroupSeen) -> list[RebalanceCommand]:
    was_silent = any(each.gives_way for each in machine._places.values())
    return SEE(machine, replace(seen, is_silent=seen.is_silent or was_silent))


def begin_as_a_standby(flow: FlowMachine, now_ms: int) -> list[Command]:
    return [*ENTER_STANDBY(flow, now_ms), StartIntake(flow.epoch)]


OFFER, HEAR_OFFER, SEE = RebalanceMachine._offer_what_is_due, RebalanceMachine._hear_offer, RebalanceMachine._see
ENTER_STANDBY = FlowMachine._enter_standby
MISTAKES = {
    "an_offer_waits_for_ever": (small_group, "MOVES", replace(MOVES, answer_timeout_ms=9_999)),
    "nobody_is_forgotten": (MembershipTiming, "forget_ms", 9_999),
    "silence_is_never_over": (RebalanceMachine, "_see", stay_silent),
    "nobody_takes_anything": (RebalanceMachine, "_may_be_home", lambda *_: False),
    "each_owner_wants_the_other_to_have_it": (rebalance, "place", place_with_the_other),
    "queues_are_given_up_unasked": (RebalanceMachine, "_offer_what_is_due", offer_and_give),
    "a_standby_begins": (FlowMachine, "_enter_standby", begin_as_a_standby),
    "a_drain_waits_for_no_handler": (Release, "is_drained", lambda release, _, now_ms: now_ms >= release.quiet_at_ms),
    "weights_do_not_count": (rebalance, "place", place_by_number),
    "everybody_takes_it": (RebalanceMachine, "_hear_offer", take_what_others_are_offered),
}


@pytest.mark.parametrize(
    ("mistake", "disturbances", "is_noticed"),
    [
        ("an_offer_waits_for_ever", losses, "'lose'.*wants the queues at"),
        ("nobody_is_forgotten", lives, "'(kill|leave)'.*remembers"),
        ("silence_is_never_over", pauses, "'cut'.*wants the queues at"),
        ("nobody_takes_anything", losses, "wants the queues at"),
        ("each_owner_wants_the_other_to_have_it", losses, "wants the queues at"),
        ("queues_are_given_up_unasked", losses, "nobody has said that it takes"),
        ("a_standby_begins", losses, "which is not fed to it"),
        ("a_drain_waits_for_no_handler", flows, "gives up what it handles"),
        ("weights_do_not_count", weights, "'weigh'.*has queues"),
    ],
)
def test_a_mistake_is_noticed(
    mistake: str, disturbances: Disturbances, is_noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises(AssertionError, match=is_noticed):
        Histories(disturbances).follow(group_that_b_joins(), 1)


@pytest.mark.usefixtures("two_standbys")
def test_a_mistake_that_two_members_cannot_make_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKES["everybody_takes_it"])
    with pytest.raises(AssertionError, match="a second time"):
        Histories(losses).follow(group_that_two_join(), 0)
