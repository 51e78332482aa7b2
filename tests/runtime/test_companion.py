"""Which flow handles of a member are given up, for a companion with which messages wait."""

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.companion import KeptHandles

QUEUE = QueueName("orders/0")


def test_a_handle_is_given_up_when_it_is_not_kept_or_another_one_has_come() -> None:
    handles = KeptHandles()
    assert not handles.is_given_up((QUEUE, Epoch(1))), "nothing was said of it"
    handles.flow_changed(QUEUE, Epoch(1), is_kept=True)
    assert not handles.is_given_up((QUEUE, Epoch(1)))
    handles.flow_changed(QUEUE, Epoch(1), is_kept=False)
    assert [handles.is_given_up((QUEUE, Epoch(epoch))) for epoch in (1, 2)] == [True, False]
    handles.flow_changed(QUEUE, Epoch(2), is_kept=True)
    assert [handles.is_given_up((QUEUE, Epoch(epoch))) for epoch in (1, 2)] == [True, False]
    assert not handles.is_given_up((QueueName("orders/1"), Epoch(1))), "another queue"
