from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.broker.engine.publisher_flow import ABANDONED_NAMES_KEPT, PublisherFlows


def test_a_name_is_resumed_after_its_connection_has_gone():
    flows = PublisherFlows()
    state = flows.open(FlowId(1), "", "one")
    state.last_accepted_id = 7
    flows.close(FlowId(1), state)

    assert flows.open(FlowId(2), "one", "two").last_accepted_id == 7


def test_an_unknown_name_starts_anew_under_a_new_name():
    state = PublisherFlows().open(FlowId(1), "of another life", "new")

    assert (state.name, state.last_accepted_id) == ("new", 0)


def test_the_late_end_of_the_old_connection_does_not_close_a_resumed_flow():
    flows = PublisherFlows()
    state = flows.open(FlowId(1), "", "one")
    flows.open(FlowId(2), "one", "two")
    flows.close(FlowId(1), state)

    assert flows.open(FlowId(3), "one", "three") is state


def test_only_so_many_abandoned_names_are_kept():
    flows = PublisherFlows()
    for number in range(ABANDONED_NAMES_KEPT + 1):
        flows.close(FlowId(number), flows.open(FlowId(number), "", f"name {number}"))

    assert flows.open(FlowId(0), "name 0", "new").name == "new"
    assert flows.open(FlowId(0), "name 1", "new").name == "name 1"
