"""When a member has started, and when it is ready, from its picture."""

from dataclasses import replace

import pytest

from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import ParkingWait
from lbg_runtime.core.group.membership import OwnState
from lbg_runtime.core.group.placement import Placement
from lbg_runtime.core.group.rebalance import AWAY
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.status.health import has_started, lacks
from lbg_runtime.status.picture import WAIT_IS_LONG_MS
from tests.status.asking import HOME, STANDBY, counted, flow, member

ACTIVE = flow(0, FlowState.ACTIVE)
UNBOUND = flow(1, FlowState.UNBOUND, epoch=0)
NOT_ACTIVE = [state for state in FlowState if state is not FlowState.ACTIVE]


def test_a_member_has_started_when_it_began_to_bind() -> None:
    assert not has_started(member(UNBOUND))
    assert not has_started(member(flow(0, FlowState.UNBOUND, AWAY, epoch=0), is_placed=False))
    assert has_started(member(flow(0, FlowState.BINDING)))
    assert has_started(counted(member(flow(0, FlowState.BINDING))))
    assert not has_started(counted(member(UNBOUND)))
    assert has_started(member(flow(0, FlowState.UNBOUND))), "once started, always started"


def test_a_member_without_a_place_has_started_once_it_knows_so() -> None:
    nowhere = flow(0, FlowState.UNBOUND, AWAY, epoch=0)
    assert has_started(member(nowhere))
    assert has_started(member(flow(0, FlowState.UNBOUND, STANDBY, epoch=0))), "also when it gets one, before it binds"
    assert lacks(member(nowhere)) == ()
    assert [lack.reason for lack in lacks(member(nowhere, is_placed=False))] == ["it has no place in the group yet"]


def test_a_member_whose_flows_have_not_learned_their_places_yet_has_not_started() -> None:
    """With 1,000 queues that takes some of its time, in which it was ready, and a rolling update went on."""
    placed = member(flow(0, FlowState.UNBOUND, AWAY, epoch=0))
    assert placed.view is not None
    at_home = Placement({QueueName("orders/0"): (placed.member,)})
    learning = replace(placed, view=replace(placed.view, placement=at_home))
    assert not has_started(learning)
    assert [lack.reason for lack in lacks(learning)] == ["it has no place in the group yet"]
    also_elsewhere = Placement({**at_home.ranks, QueueName("orders/1"): (MemberId("another"),)})
    assert not has_started(replace(placed, view=replace(placed.view, placement=also_elsewhere)))
    elsewhere = Placement({QueueName("orders/0"): (MemberId("another"), placed.member)})
    assert has_started(replace(placed, view=replace(placed.view, placement=elsewhere)))
    nobodys = Placement({QueueName("orders/0"): ()})
    assert has_started(replace(placed, view=replace(placed.view, placement=nobodys))), "all other members weigh nothing"


@pytest.mark.parametrize("state", NOT_ACTIVE)
def test_a_queue_at_home_must_be_fed_to_the_member_or_have_another_owner(state: FlowState) -> None:
    at_home = flow(1, state)
    for owners in ({}, {1: "a"}):
        (lack,) = lacks(member(ACTIVE, at_home, owners={0: "a", **owners}))
        assert (lack.queue, lack.state) == ("orders/1", state)
        assert lack.reason == "neither fed to this member nor known to have another owner"
    assert lacks(member(ACTIVE, at_home, owners={0: "a", 1: "b"})) == ()
    assert lacks(member(ACTIVE, flow(1, FlowState.ACTIVE), owners={})) == ()


@pytest.mark.parametrize("why", ["bind refused: Queue Shutdown", "flow lost: a message cannot be read"])
def test_a_queue_at_home_without_a_handle_has_its_reason(why: str) -> None:
    """A queue that was shut, or of which the first message cannot be read, was only said to be fed to nobody."""
    (lack,) = lacks(member(ACTIVE, replace(flow(1, FlowState.UNBOUND), why_unbound=why), owners={0: "a"}))
    assert lack.reason == f"neither fed to this member nor known to have another owner; {why}"


@pytest.mark.parametrize("state", FlowState)
def test_what_becomes_of_the_queues_of_others_does_not_matter(state: FlowState) -> None:
    assert lacks(member(ACTIVE, flow(1, state, STANDBY), flow(2, state, AWAY))) == ()


@pytest.mark.parametrize("state", NOT_ACTIVE)
def test_where_nobody_talks_a_standby_at_home_has_somebody_before_it(state: FlowState) -> None:
    found = lacks(counted(member(ACTIVE, flow(1, state))))
    assert [lack.queue for lack in found] == ([] if state is FlowState.STANDBY else ["orders/1"])


@pytest.mark.parametrize("state", NOT_ACTIVE)
def test_a_standby_at_home_has_somebody_before_it_that_may_speak_another_version(state: FlowState) -> None:
    """Else two new members beside old ones wait for each other's queues, and no rolling update goes on."""
    found = lacks(member(ACTIVE, flow(1, state), owners={0: "a"}, hears_other_versions=True))
    if state is FlowState.STANDBY:
        assert found == ()
    else:
        (lack,) = found
        assert lack.queue == "orders/1"
        assert lack.reason.endswith("members of another version are not understood")


@pytest.mark.parametrize("state", [state for state in OwnState if state is not OwnState.ACTIVE])
def test_a_member_that_joins_or_leaves_is_not_ready(state: OwnState) -> None:
    assert [lack.reason for lack in lacks(member(ACTIVE, state=state))] == [f"the member is {state.value}"]


@pytest.mark.parametrize("state", [OwnState.JOINING, OwnState.ACTIVE])
def test_a_member_whose_lifespan_has_not_begun_is_not_ready_and_names_it(state: OwnState) -> None:
    waits = replace(member(UNBOUND, state=state), awaited_lifespan="shop:pool (shop.py:7)")
    assert [lack.reason for lack in lacks(waits)] == ["the lifespan shop:pool (shop.py:7) has not reached its yield"]


def test_what_is_known_of_other_owners_is_worth_nothing_while_the_control_topic_is_out_of_reach() -> None:
    cut_off = member(UNBOUND, ACTIVE, owners={1: "b"}, can_hear=False)
    assert [lack.reason for lack in lacks(cut_off)] == ["the control topic is out of reach"]


@pytest.mark.parametrize("talks", [True, False])
def test_a_member_out_of_reach_of_the_broker_is_not_ready_and_says_why_if_that_is_known(*, talks: bool) -> None:
    connected = member(ACTIVE, owners={1: "b"}, can_hear=False) if talks else counted(member(ACTIVE))
    cut_off = replace(connected, is_connected=False)
    assert [lack.reason for lack in lacks(cut_off)] == ["the broker is out of reach"]
    refused = replace(cut_off, why_away="Unauthorized")
    assert [lack.reason for lack in lacks(refused)] == ["the broker is out of reach: Unauthorized"]


def test_a_queue_that_has_stopped_is_what_its_failure_policy_asks_for() -> None:
    assert lacks(member(replace(ACTIVE, is_stopped=True))) == ()


def test_a_queue_that_waits_for_its_parking_queue_is_not_looked_after_wherever_its_home_is() -> None:
    for place in (HOME, STANDBY):
        began, stuck = (
            replace(flow(1, FlowState.ACTIVE, place), parking_wait=ParkingWait(waited_ms, "Queue Shutdown"))
            for waited_ms in (WAIT_IS_LONG_MS - 1, WAIT_IS_LONG_MS)
        )
        assert lacks(member(ACTIVE, began)) == ()
        (lack,) = lacks(member(ACTIVE, stuck))
        assert (lack.queue, lack.reason) == ("orders/1", "waits for its parking queue: Queue Shutdown")
