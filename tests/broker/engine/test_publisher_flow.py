import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.broker.engine.publisher_flow import ABANDONED_NAMES_KEPT, WINDOW, PublisherFlows, PublisherState
from lbg_runtime.model.errors import BrokerRefusal

REFUSAL = BrokerRefusal(503, "Spool Over Quota")


def test_a_name_is_resumed_after_its_connection_has_gone():
    flows = PublisherFlows()
    state = flows.open(FlowId(1), "", "one")
    assert state.judge(7)
    flows.close(FlowId(1), state)

    assert flows.open(FlowId(2), "one", "two").last_answered_id == 7


def test_an_unknown_name_starts_anew_under_a_new_name():
    state = PublisherFlows().open(FlowId(1), "of another life", "new")

    assert (state.name, state.last_answered_id) == ("new", 0)


def test_the_late_end_of_the_old_connection_does_not_close_a_resumed_flow():
    flows = PublisherFlows()
    state = flows.open(FlowId(1), "", "one")
    assert flows.open(FlowId(2), "one", "two") is state
    assert flows.close(FlowId(1), state) is None

    assert flows.close(FlowId(2), state) is None
    assert flows.open(FlowId(3), "one", "three") is state


def test_only_so_many_abandoned_names_are_kept():
    flows = PublisherFlows()
    for number in range(ABANDONED_NAMES_KEPT + 1):
        forgotten = flows.close(FlowId(number), flows.open(FlowId(number), "", f"name {number}"))

    assert forgotten is not None
    assert forgotten.name == "name 0"
    assert flows.open(FlowId(0), "name 0", "new").name == "new"
    assert flows.open(FlowId(0), "name 1", "new").name == "name 1"
    flows.forget("name 2")
    assert flows.open(FlowId(0), "name 2", "newer").name == "newer"


def test_what_is_sent_again_is_judged_as_it_was():
    state = PublisherState("one", FlowId(1))
    for number in (1, 2, 3):
        assert state.judge(number)
        if number == 2:
            state.refuse(number, REFUSAL)

    assert state.last_answered_id == 1
    assert not state.judge(1)
    with pytest.raises(BrokerRefusal, match="503 Spool Over Quota"):
        state.judge(2)
    assert not state.judge(3)


def test_a_refusal_is_forgotten_once_the_publisher_must_know_of_it():
    state = PublisherState("one", FlowId(1))
    for number in range(1, WINDOW + 1):
        state.judge(number)
        state.refuse(number, REFUSAL)
    assert state.last_answered_id == 0
    state.judge(WINDOW + 1)
    assert state.last_answered_id == 1
    state.heard_up_to(WINDOW)
    assert state.last_answered_id == WINDOW + 1


MESSAGES = 40
COUNTS = st.integers(0, MESSAGES)


@given(st.lists(st.booleans(), max_size=MESSAGES), st.lists(st.tuples(COUNTS, COUNTS), max_size=12))
def test_whatever_is_lost_on_the_way_every_publisher_hears_how_its_message_was_judged(is_refused, connections):
    state = PublisherState("one", FlowId(1))
    judged: dict[int, bool] = {}
    heard: dict[int, bool] = {}
    # The last one is whole.
    for most_sent, most_answers in (*connections, (MESSAGES, MESSAGES)):
        # A connection: what is confirmed by its opening, then what is sent on it; the last answers are lost.
        state.heard_up_to(len(heard))
        for number in range(len(heard) + 1, state.last_answered_id + 1):
            heard[number] = True
        answers = {}
        sent_to = min(len(heard) + most_sent, len(is_refused))
        for number in range(len(heard) + 1, sent_to + 1):
            try:
                if state.judge(number):
                    assert number not in judged
                    judged[number] = not is_refused[number - 1]
                    if is_refused[number - 1]:
                        state.refuse(number, REFUSAL)
                        raise REFUSAL
                answers[number] = True
            except BrokerRefusal:
                answers[number] = False
        heard |= dict(list(answers.items())[:most_answers])
    assert heard == judged
