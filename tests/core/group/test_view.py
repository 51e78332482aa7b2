from dataclasses import replace

from lbg_runtime.core.group.control_messages import FlowReport, Life, MemberState, ReportedFlow
from lbg_runtime.core.group.placement import place
from lbg_runtime.core.group.view import GroupView, MemberView, owners_by_claims, tell_something_else, updated_claims
from lbg_runtime.model.ids import Epoch, MemberId, QueueName

ONE, TWO, THREE = MemberId("one"), MemberId("two"), MemberId("three")
QUEUES = [QueueName(f"orders/{number}") for number in range(8)]


def member(name: MemberId, state: MemberState = MemberState.ACTIVE, *, is_suspect: bool = False) -> MemberView:
    return MemberView(name, Life(1, 1), state, 1, is_suspect, {})


def test_only_active_members_are_candidates_and_only_those_not_suspect_are_targets() -> None:
    members = (member(ONE), member(THREE, MemberState.DRAINING), member(TWO, is_suspect=True))
    view = GroupView((*members, member(MemberId("zero"), MemberState.JOINING)), {})
    assert [(one.member, one.weight) for one in view.candidates()] == [(ONE, 1), (TWO, 0)]
    assert [one.member for one in view.members if one.is_target] == [ONE]
    assert view.find(TWO) == members[2]
    assert view.find(MemberId("nobody")) is None


def test_a_suspect_member_keeps_its_queues_and_gets_no_new_ones() -> None:
    owners = {QUEUES[0]: ONE, QUEUES[1]: TWO, QUEUES[2]: TWO}
    view = GroupView((member(ONE), member(THREE), member(TWO, is_suspect=True)), owners)
    configured = {QUEUES[5]: TWO, QUEUES[6]: THREE, QUEUES[1]: ONE}
    placement = place(QUEUES, view.candidates(), view.owners, view.pins(configured))
    homes = [placement.home(queue) for queue in QUEUES]
    assert [queue for queue, home in zip(QUEUES, homes, strict=True) if home == TWO] == [QUEUES[1], QUEUES[2]]
    assert homes.count(ONE) == homes.count(THREE) == 3
    assert placement.home(QUEUES[6]) == THREE
    assert all(placement.rank(queue, TWO) in (0, 2) for queue in QUEUES)


def test_a_queue_goes_to_where_it_is_pinned_when_its_owner_leaves_and_is_silent() -> None:
    leaving = member(TWO, MemberState.DRAINING, is_suspect=True)
    view = GroupView((member(ONE), member(THREE), leaving), {QUEUES[0]: TWO})
    assert view.pins({QUEUES[0]: THREE}) == {QUEUES[0]: THREE}


def test_nothing_moves_while_a_member_is_suspect_and_when_it_is_back() -> None:
    before = place(QUEUES, GroupView((member(ONE), member(THREE), member(TWO)), {}).candidates(), {}, {})
    owners = {queue: ranked[0] for queue, ranked in before.ranks.items()}
    for is_suspect in (True, False):
        view = GroupView((member(ONE), member(THREE), member(TWO, is_suspect=is_suspect)), owners)
        after = place(QUEUES, view.candidates(), view.owners, view.pins({}))
        assert {queue: after.home(queue) for queue in QUEUES} == owners


def test_views_of_the_same_members_have_the_same_digest() -> None:
    view = GroupView((member(ONE), member(TWO)), {})
    assert view.digest() == GroupView((member(ONE), member(TWO)), {QUEUES[0]: ONE}).digest()
    assert view.digest() != GroupView((member(ONE), member(TWO, is_suspect=True)), {}).digest()
    assert view.digest() != GroupView((member(ONE),), {}).digest()


def test_reports_tell_something_else_if_a_queue_a_state_or_an_epoch_is_another() -> None:
    queue, other = QUEUES[:2]
    active = FlowReport(ReportedFlow.ACTIVE, Epoch(1), 0)
    before = {queue: active}
    assert not tell_something_else({queue: replace(active, in_flight=5)}, before)
    others = [replace(active, epoch=Epoch(2)), replace(active, state=ReportedFlow.STANDBY)]
    for now in ({}, {other: active}, {queue: active, other: active}, *({queue: each} for each in others)):
        assert tell_something_else(now, before), now


def test_the_newest_claim_is_the_owners() -> None:
    queue, other = QUEUES[:2]
    claims = [(TWO, {queue: 5, other: 7}), (ONE, {queue: 3, other: 7})]
    assert owners_by_claims(claims) == {queue: TWO, other: ONE}


def test_a_claim_keeps_its_time_while_it_is_repeated() -> None:
    active = FlowReport(ReportedFlow.ACTIVE, Epoch(1), 0)
    draining = FlowReport(ReportedFlow.DRAINING, Epoch(1), 0)
    standby = FlowReport(ReportedFlow.STANDBY, Epoch(1), 0)
    claims = updated_claims({}, {QUEUES[0]: active, QUEUES[1]: standby}, 10)
    assert claims == {QUEUES[0]: 10}
    claims = updated_claims(claims, {QUEUES[0]: draining, QUEUES[1]: active}, 20)
    assert claims == {QUEUES[0]: 10, QUEUES[1]: 20}
    assert updated_claims(claims, {QUEUES[0]: standby}, 30) == {}
