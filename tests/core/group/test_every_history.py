"""Every history of two or three members in which one thing goes wrong, or is done to them, at every moment of a move.

The simulation has larger groups to which far more happens, and sees a sample of that. A few disturbances, alone, are
part of the tests; run as a script, it tries all of them, and pairs, which takes an hour.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from lbg_runtime.core.flow.commands import Command, StartIntake
from lbg_runtime.core.flow.events import HandBackRequested
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.release import Release
from lbg_runtime.core.group import rebalance
from lbg_runtime.core.group.control_messages import ControlMessage, Offer
from lbg_runtime.core.group.control_plane import ControlOutput, ControlPlaneMachine
from lbg_runtime.core.group.membership import MembershipMachine, OwnState
from lbg_runtime.core.group.membership_events import ControlConnected, MembershipEvent
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.placement import Candidate, Placement, place
from lbg_runtime.core.group.rebalance import RebalanceMachine
from lbg_runtime.core.group.rebalance_events import AskFlow, GroupSeen, RebalanceCommand, Say
from lbg_runtime.model.ids import MemberId, QueueName
from tests.core.group import small_group
from tests.core.group.group_histories import Disturbance, Disturbances, GroupHistories, tell_of
from tests.core.group.small_group import MOVES, SILENCE_MS, TIMING, Letter, SmallGroup

A, B, C, SECOND_A = MemberId("a"), MemberId("b"), MemberId("c"), MemberId("a'")
QUEUES = [QueueName("q0"), QueueName("q1"), QueueName("q2")]


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
    comings = [("start", (name,)) for name in group.incarnations if name not in group.members]
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


def repeats(group: SmallGroup) -> list[Disturbance]:
    """A control message comes a second time, behind the next one or behind the next heartbeat."""
    return [("repeat", (letter, ticks)) for letter in said(group) for ticks in (1, TIMING.heartbeat_ms + 2)]


def breaks(group: SmallGroup) -> list[Disturbance]:
    """A connection breaks, for a moment or until after the next heartbeat."""
    connected = [name for name, member in group.members.items() if not member.away_until_ms]
    return [("disconnect", (name, ticks)) for name in connected for ticks in (2, 13)]


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
    [
        *((losses, 2, 50), (delays, 1, 15), (lives, 1, 50), (pauses, 1, 30), (weights, 1, 20), (flows, 1, 20)),
        *((breaks, 1, 60), (repeats, 1, 25)),
    ],
    ids=[
        "two_messages_are_lost",
        "something_is_late",
        "somebody_comes_or_goes",
        "somebody_is_away",
        "somebody_is_to_have_nothing",
        "a_flow_is_disturbed",
        "a_connection_breaks",
        "a_message_comes_twice",
    ],
)
def test_whatever_happens_the_group_comes_to_rest(disturbances: Disturbances, more: int, least_count: int) -> None:
    histories = GroupHistories(disturbances)
    histories.follow(group_that_b_joins(), more)
    assert histories.count >= least_count


def group_with_a_twin(incarnation: int) -> SmallGroup:
    """Another process with the id of a member is started beside it; its life is the later or the earlier one."""
    group = SmallGroup(QUEUES[:2])
    group.start(A)
    group.start(B)
    while group.now_ms < 1_080:
        group.step()
    assert not group.unrest()
    group.start(SECOND_A, incarnation)
    return group


@pytest.mark.parametrize(
    ("incarnation", "disturbances", "least_count"),
    [(9, losses, 30), (9, lives, 80), (0, losses, 10), (0, pauses, 30)],
    ids=["the_later_and_a_loss", "the_later_and_an_end", "the_earlier_and_a_loss", "the_earlier_and_an_absence"],
)
def test_one_of_two_processes_of_a_member_is_left(
    incarnation: int, disturbances: Disturbances, least_count: int
) -> None:
    histories = GroupHistories(disturbances)
    histories.follow(group_with_a_twin(incarnation), 1)
    assert histories.count >= least_count


def test_counted_members_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the queues of its number, whoever comes or goes."""
    monkeypatch.setattr(small_group, "COUNTED", (B, A))
    histories = GroupHistories(lives)
    histories.follow(group_that_b_joins(), 1)
    assert histories.count >= 50


def test_members_that_look_at_their_flows_seldom_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those with a thousand queues do."""
    monkeypatch.setattr(small_group, "LOOKS_MS_PER_THOUSAND", 1_500)
    histories = GroupHistories(flows)
    histories.follow(group_that_b_joins(), 1)
    assert histories.count >= 20


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
    histories = GroupHistories(disturbances)
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


def hear_no_connection(control: ControlPlaneMachine, event: MembershipEvent, now_ms: int) -> list[ControlOutput]:
    is_back = isinstance(event, ControlConnected) and control.membership.state is OwnState.ACTIVE
    return [] if is_back else TAKE_EVENT(control, event, now_ms)


TAKE_EVENT = ControlPlaneMachine._take_event
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
    "nothing_is_said_when_a_connection_is_back": (ControlPlaneMachine, "_take_event", hear_no_connection),
    "who_stands_aside_keeps_queues": (ControlPlaneMachine, "_give_everything", lambda *_: []),
    "who_stands_aside_waits_for_ever": (MembershipMachine, "_note_gone", lambda *_: []),
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
        ("nothing_is_said_when_a_connection_is_back", breaks, "'disconnect'.*sees"),
    ],
)
def test_a_mistake_is_noticed(
    mistake: str, disturbances: Disturbances, is_noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises(AssertionError, match=is_noticed):
        GroupHistories(disturbances).follow(group_that_b_joins(), 1)


@pytest.mark.parametrize(
    ("mistake", "disturbances", "is_noticed"),
    [
        ("who_stands_aside_keeps_queues", losses, "stands aside, and is bound to"),
        ("who_stands_aside_waits_for_ever", lives, "take part"),
    ],
)
def test_a_mistake_with_twins_is_noticed(
    mistake: str, disturbances: Disturbances, is_noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises(AssertionError, match=is_noticed):
        GroupHistories(disturbances).follow(group_with_a_twin(9), 1)


@pytest.mark.usefixtures("two_standbys")
def test_a_mistake_that_two_members_cannot_make_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKES["everybody_takes_it"])
    with pytest.raises(AssertionError, match="a second time"):
        GroupHistories(losses).follow(group_that_two_join(), 0)


def _try_everything() -> None:
    """Pairs of those that may follow each other, and each alone, with everything else that a group may begin with."""

    def any_of(some: Sequence[Disturbances], group: SmallGroup) -> list[Disturbance]:
        return [each for one in some for each in one(group)]

    twins = {"a later twin": partial(group_with_a_twin, 9), "an earlier twin": partial(group_with_a_twin, 0)}
    starts: dict[str, Callable[[], SmallGroup]] = {"b joins": group_that_b_joins, **twins}
    anything = partial(any_of, (losses, delays, repeats, lives, weights, flows, pauses, breaks))
    tell_of("anything", starts, anything, 1)
    pairs = {"losses": (losses, delays), "lives": (lives, losses), "breaks": (breaks, lives), "flows": (flows, losses)}
    for name, some in pairs.items():
        tell_of(f"{name}, twice", starts, partial(any_of, some), 2)
    small_group.LOOKS_MS_PER_THOUSAND = 1_500
    tell_of("anything, looked at seldom", starts, anything, 1)
    small_group.LOOKS_MS_PER_THOUSAND = 0
    small_group.MOVES = replace(MOVES, standbys=2)
    tell_of("anything", {"two join": group_that_two_join, "one leaves": group_that_one_leaves}, anything, 1)


if __name__ == "__main__":
    _try_everything()
