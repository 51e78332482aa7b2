from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.engine.deliveries import Deliveries, DeliveryIds
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.waiting import MessageState, SpooledMessage


def noted(*ids: int) -> Deliveries:
    deliveries = Deliveries()
    for id_ in ids:
        deliveries.add([id_], [SpooledMessage(id_, Published("t", id_, 1))])
    return deliveries


def test_ids_increase_and_pass_those_that_a_client_knows():
    ids = DeliveryIds()
    assert [ids.take(1), ids.take(3)] == [[1], [2, 3, 4]]
    ids.skip_to(7)
    ids.skip_to(3)
    assert ids.take(1) == [8]


def test_a_huge_range_takes_what_is_there_in_order():
    deliveries = noted(3, 5, 9)

    assert [message.sequence for message in deliveries.take(0, (1 << 64) - 1)] == [3, 5, 9]
    assert len(deliveries) == 0


def test_a_range_over_nothing_takes_nothing():
    deliveries = noted(3, 9)

    assert deliveries.take(4, 8) == deliveries.take(10, 2) == []
    assert (len(deliveries), deliveries.count(4, 8), deliveries.count(10, 2)) == (2, 0, 0)


def test_deliveries_of_removed_messages_can_be_dropped():
    deliveries = noted(1, 2, 3)
    next(message for _, message in deliveries).state = MessageState.GONE
    deliveries.drop_gone()

    assert [(id_, message.sequence) for id_, message in deliveries] == [(2, 2), (3, 3)]


@given(
    ids=st.lists(st.integers(1, 300), unique=True, max_size=100).map(sorted),
    calls=st.lists(st.tuples(st.sampled_from(["take", "discard"]), st.integers(0, 310), st.integers(-5, 60))),
)
def test_taking_and_discarding_agree_with_a_plain_list(ids, calls):
    deliveries = noted(*ids)
    left = list(ids)
    for call, first, width in calls:
        if call == "take":
            taken = [message.sequence for message in deliveries.take(first, first + width)]
            assert taken == [id_ for id_ in left if first <= id_ <= first + width]
            left = [id_ for id_ in left if id_ not in taken]
        else:
            deliveries.discard(first)
            left = [id_ for id_ in left if id_ != first]
        assert [id_ for id_, _ in deliveries] == left
        assert len(deliveries) == len(left)
        assert deliveries.count(first, first + width) == sum(first <= id_ <= first + width for id_ in left)
