"""What the gate of a flow machine keeps counts for the outermost cap, and closes the intake there only."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.core.flow.commands import Dispatch, StartIntake, StopIntake
from lbg_runtime.core.flow.events import DeliveriesHeldUp
from lbg_runtime.model.ids import DeliveryId, Epoch
from tests.core.flow.test_machine_restripe import Flow, dispatch, probe, settle
from tests.core.restripe.gate_shell import COMING, FINISH, LEAVING, STAYING, marker


class TestTheOutermostCap:
    """With `max_held`, kept messages count for nothing else."""

    @pytest.mark.parametrize("moving", [COMING, LEAVING])
    def test_other_shards_come_past_what_is_kept(self, moving: int) -> None:
        """A message of a shard that always fails stopped both its old queue and its new one."""
        flow = Flow(max_in_flight=4, max_held=10)
        flow.get(2, moving)
        flow.get(3, marker(moving))
        for number in range(4, 11):
            assert flow.get(number, moving) == []
        assert flow.get(11, STAYING) == [dispatch(11, STAYING)]
        assert flow.done(11) == [settle(11)]

    def test_where_it_is_reached_the_queue_stops_until_the_shard_has_left(self) -> None:
        flow = Flow(max_in_flight=2, max_held=4)
        flow.get(2, LEAVING)
        flow.get(3, marker(LEAVING))
        assert [flow.get(number, LEAVING) for number in (4, 5)] == [[], []]
        assert flow.get(6, LEAVING) == [StopIntake(Epoch(1))]
        assert flow.done(2) == [settle(2), settle(4), settle(5), settle(6), probe(1), StartIntake(Epoch(1))]

    def test_what_is_let_go_counts_for_the_other_cap_as_what_arrives(self) -> None:
        flow = Flow(max_in_flight=2, max_held=9)
        flow.get(2, marker(COMING))
        for number in (3, 4, 5):
            assert flow.get(number, COMING) == []
        assert flow.learn(COMING) == [dispatch(number, COMING) for number in (3, 4, 5)]
        assert flow.get(6, STAYING) == [dispatch(6, STAYING), StopIntake(Epoch(1))]

    def test_what_is_let_go_by_an_arrival_closes_nothing_before_it_is_known_to_be_of_a_hot_key(self) -> None:
        """Nothing but the hot key would be in flight, and nothing would open the intake again."""
        flow = Flow(max_in_flight=3, max_held=9)
        flow.get(2, marker(COMING))
        for number in (3, 4, 5):
            flow.get(number, COMING)
        assert flow.get(6, FINISH) == [dispatch(number, COMING) for number in (3, 4, 5)]
        for number in (4, 5):
            assert flow.machine.excuse(Epoch(1), DeliveryId(number))
        assert flow.get(7, STAYING) == [dispatch(7, STAYING)]

    @given(
        st.lists(st.sampled_from(["leaving", "coming", "hot", "staying", "end", "left"]), max_size=60),
        st.integers(1, 4),
        st.integers(0, 8),
    )
    @settings(max_examples=150, deadline=None)
    def test_it_always_holds_and_short_of_it_what_is_kept_never_closes_the_intake(
        self, course: list[str], cap: int, more: int
    ) -> None:
        flow, most = Flow(cap, max_held=cap + more), cap + more
        flow.get(2, LEAVING)
        flow.get(3, marker(LEAVING))
        flow.get(4, marker(COMING))
        shards = {"leaving": LEAVING, "coming": COMING, "hot": COMING, "staying": STAYING}
        hot: set[int] = set()
        in_flight, excused = {2}, set[int]()
        is_open = cap > 1
        for number, step in enumerate(course, 5):
            if step in shards:
                if not is_open:
                    continue
                hot |= {number} if step == "hot" else set()
                commands = flow.get(number, shards[step])
            elif step == "left":
                commands = flow.learn(COMING)
            elif in_flight:
                ended = min(in_flight)
                in_flight.remove(ended)
                excused.discard(ended)
                commands = flow.done(ended)
            else:
                continue
            # As they are carried out: more come at the end.
            for command in commands:
                match command:
                    case Dispatch(dispatched):
                        in_flight.add(dispatched.delivery_id)
                        if dispatched.delivery_id in hot - {number}:
                            excused.add(dispatched.delivery_id)
                            if not flow.machine.excuse(Epoch(1), dispatched.delivery_id):
                                commands += flow.tell(DeliveriesHeldUp(Epoch(1), (dispatched.delivery_id,)), number)
                    case StartIntake() | StopIntake():
                        is_open = isinstance(command, StartIntake)
                    case _:
                        pass
            kept_count = flow.gate.kept_count
            held_count = len(in_flight) + kept_count
            assert held_count <= most
            room = min(cap + len(excused) + kept_count, most)
            assert is_open or held_count > room - (cap - cap // 2)


class TestTheCap:
    """Without `max_held`, which is then the same."""

    def test_kept_messages_count_for_it_and_records_do_not(self) -> None:
        flow = Flow(max_in_flight=3)
        assert flow.get(2, marker(COMING)) == []
        assert flow.get(3, STAYING) == [dispatch(3, STAYING)]
        assert flow.get(4, COMING) == []
        assert flow.get(5, COMING) == [StopIntake(Epoch(1))]
        assert flow.machine.in_flight == 1

    def test_it_stays_reached_when_kept_messages_are_passed_on(self) -> None:
        flow = Flow(max_in_flight=2)
        flow.get(2, marker(COMING))
        flow.get(3, COMING)
        assert flow.get(4, COMING) == [StopIntake(Epoch(1))]
        assert flow.learn(COMING) == [dispatch(3, COMING), dispatch(4, COMING)]
        assert flow.done(3) == [settle(3), StartIntake(Epoch(1))]

    def test_there_is_room_again_when_kept_messages_are_dropped(self) -> None:
        flow = Flow(max_in_flight=3)
        flow.get(2, LEAVING)
        flow.get(3, marker(LEAVING))
        flow.get(4, LEAVING)
        assert flow.get(5, LEAVING) == [StopIntake(Epoch(1))]
        assert flow.done(2) == [settle(2), settle(4), settle(5), probe(1), StartIntake(Epoch(1))]

    def test_kept_messages_keep_the_intake_closed(self) -> None:
        flow = Flow(max_in_flight=2)
        flow.get(2, marker(COMING))
        flow.get(3, STAYING)
        flow.get(4, COMING)
        assert flow.done(3) == [settle(3), StartIntake(Epoch(1))]
        assert flow.get(5, COMING) == [StopIntake(Epoch(1))]
        assert flow.learn() == []
        assert flow.machine.deadline_ms is None
