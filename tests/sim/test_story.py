"""The story behind the figures of docs/rebalance.md, and how they are read from a history.

That of cooperative members is in test_campaign.py, whose campaign tells it as well.
"""

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.sim.figures import Duplicates, Serving, owner_changes, servings, time_to_own_ms
from lbg_runtime.sim.history import FlowClosed, FlowFed, Handle, IntakeStarted, IntakeStopped, Life
from lbg_runtime.sim.story import tell_story

QUEUE = QueueName("orders/0")
A, B = Handle(Life("a#1"), QUEUE, Epoch(1)), Handle(Life("b#2"), QUEUE, Epoch(1))


def test_members_that_only_count_keep_the_queues_of_an_absent_one_moving() -> None:
    story = tell_story(1, RebindMode.CYCLE, members=4, queues=8)
    assert story.violations == ()
    assert story.steady_changes > 2
    assert story.time_to_own_ms is not None
    assert story.time_to_own_ms > 5_000


def test_a_pause_runs_from_the_end_of_intake_to_the_next_intake() -> None:
    history = [
        FlowFed(100, QUEUE, FlowId(1), A),
        IntakeStarted(101, A),
        IntakeStopped(200, A),
        IntakeStarted(210, A),
        IntakeStopped(300, A),
        FlowClosed(350, QUEUE, FlowId(1), cut_ms=None),
        FlowFed(351, QUEUE, FlowId(2), B),
        IntakeStarted(353, B),
    ]
    found = servings(history)
    assert found == [
        Serving(101, QUEUE, A.life, pause_ms=None, after_loss=False),
        Serving(353, QUEUE, B.life, pause_ms=53, after_loss=False),
    ]
    assert owner_changes(found, 0, 1_000) == 1
    assert owner_changes(found, 354, 1_000) == 0
    assert time_to_own_ms(found, "b", 50, 1_000) == 303
    assert time_to_own_ms(found, "a", 50, 1_000) is None


def test_a_pause_after_a_loss_begins_when_the_connection_broke() -> None:
    history = [
        FlowFed(100, QUEUE, FlowId(1), A),
        IntakeStarted(100, A),
        FlowClosed(350, QUEUE, FlowId(1), cut_ms=300),
        FlowFed(350, QUEUE, FlowId(2), B),
        IntakeStarted(352, B),
    ]
    assert servings(history)[1] == Serving(352, QUEUE, B.life, pause_ms=52, after_loss=True)


def test_duplicates_add_up() -> None:
    assert Duplicates(1, 2, 3) + Duplicates(10, 20, 30) == Duplicates(11, 22, 33)
