"""The lanes against a plain model: whatever is offered comes out once, per key in order, one at a time."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbg_runtime.core.lanes import KeyLanes, LaneKey
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message

QUEUE = QueueName("orders/0")
MESSAGE = Message("lbg/0/orders", b"")
KEYS = st.sampled_from([LaneKey(name) for name in "abc"])
EPOCHS = st.sampled_from([Epoch(1), Epoch(2)])


class LanesAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lanes: KeyLanes[Delivery] = KeyLanes(max_waiting=2)
        self.now_ms = 0
        self.offered = 0
        self.model: dict[LaneKey, list[Delivery]] = defaultdict(list)
        """What each lane holds, the head first."""
        self.running: dict[LaneKey, int] = {}
        """The attempt that runs in each running lane."""
        self.attempts: dict[LaneKey, int] = defaultdict(int)
        self.delayed: dict[LaneKey, int] = {}
        self.recalled: set[LaneKey] = set()
        self.held_up: set[LaneKey] = set()

    @rule(key=KEYS, epoch=EPOCHS)
    def offer(self, key: LaneKey, epoch: Epoch) -> None:
        self.offered += 1
        delivery = Delivery(QUEUE, epoch, DeliveryId(self.offered), MESSAGE, redelivered=False, received_at_ns=0)
        is_beyond = self.lanes.offer(key, delivery)
        self.model[key].append(delivery)
        assert is_beyond == (len(self.model[key]) > 3 or key in self.held_up)

    @rule()
    def start(self) -> None:
        ready = [key for key in self.model if key not in self.running and key not in self.delayed]
        turn = self.lanes.next_ready()
        assert (turn is None) == (not ready)
        if turn is not None:
            assert turn.key in ready
            assert turn.head == self.model[turn.key][0]
            self.attempts[turn.key] += 1
            assert turn.attempt == self.attempts[turn.key]
            self.running[turn.key] = turn.attempt

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.lanes.finish(self.lanes._lanes[key])
        del self.running[key]
        self._drop_head(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), wait_ms=st.integers(0, 20))
    def delay(self, data: st.DataObject, wait_ms: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        assert self.lanes.delay(self.lanes._lanes[key], self.now_ms + wait_ms) == (key not in self.recalled)
        if key not in self.recalled:
            del self.running[key]
            self.delayed[key] = self.now_ms + wait_ms

    @precondition(lambda self: self.running or self.delayed)
    @rule(data=st.data())
    def hold_up(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted({*self.running, *self.delayed})))
        behind = [] if key in self.held_up else self.model[key][1:]
        assert self.lanes.hold_up(self.lanes._lanes[key]) == behind
        self.held_up.add(key)

    @rule(wait_ms=st.integers(0, 20))
    def pass_time(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        self.lanes.release_due(self.now_ms)
        self.delayed = {key: until for key, until in self.delayed.items() if until > self.now_ms}

    @rule(epoch=EPOCHS)
    def return_unstarted(self, epoch: Epoch) -> None:
        expected: list[Delivery] = []
        for key in list(self.model):
            deliveries = self.model[key]
            first = 1 if key in self.running else 0
            if key in self.running and deliveries[0].epoch == epoch:
                self.recalled.add(key)
            expected += [delivery for delivery in deliveries[first:] if delivery.epoch == epoch]
            kept = deliveries[:first] + [delivery for delivery in deliveries[first:] if delivery.epoch != epoch]
            if not first and deliveries[0].epoch == epoch:
                self.delayed.pop(key, None)
                self.attempts.pop(key, None)
                self.held_up.discard(key)
            self.model[key] = kept
            if not kept:
                del self.model[key]
        returned = self.lanes.return_unstarted(QUEUE, epoch)
        assert sorted(delivery.delivery_id for delivery in returned) == sorted(d.delivery_id for d in expected)

    @rule(epoch=EPOCHS)
    def look_for_stall(self, epoch: Epoch) -> None:
        holding = [key for key, held in self.model.items() if any(each.epoch == epoch for each in held)]
        expected = all(key in self.delayed and self.model[key][0].epoch == epoch for key in holding)
        assert self.lanes.is_stalled(QUEUE, epoch) == expected

    def _drop_head(self, key: LaneKey) -> None:
        self.attempts.pop(key, None)
        self.recalled.discard(key)
        self.held_up.discard(key)
        self.model[key].pop(0)
        if not self.model[key]:
            del self.model[key]

    @invariant()
    def counts_agree(self) -> None:
        held = sum(len(deliveries) for deliveries in self.model.values())
        assert self.lanes.running == len(self.running)
        assert self.lanes.waiting == held - len(self.running)
        assert bool(self.lanes.ready) == any(key not in self.running and key not in self.delayed for key in self.model)
        assert self.lanes.next_delayed_ms() == min(self.delayed.values(), default=None)

    def teardown(self) -> None:
        """Whatever happened, everything left comes out, per key in order, and no memory is held after it."""
        for key in list(self.running):
            self.finish_key(key)
        self.pass_all_time()
        while (turn := self.lanes.next_ready()) is not None:
            assert turn.head == self.model[turn.key][0]
            self.lanes.finish(turn)
            self._drop_head(turn.key)
        assert not self.model
        # The serial number of delays is the only thing that stays.
        assert self.lanes == KeyLanes(_delay_count=self.lanes._delay_count, max_waiting=2)

    def finish_key(self, key: LaneKey) -> None:
        self.lanes.finish(self.lanes._lanes[key])
        del self.running[key]
        self._drop_head(key)

    def pass_all_time(self) -> None:
        self.lanes.release_due(self.now_ms + 1_000)
        self.delayed.clear()


TestLanesAgainstModel = LanesAgainstModel.TestCase
TestLanesAgainstModel.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 30), EPOCHS), max_size=20))
def test_whatever_goes_back_the_other_keys_are_tried_again_when_their_time_has_come(
    failed: list[tuple[int, Epoch]],
) -> None:
    lanes: KeyLanes[Delivery] = KeyLanes()
    for number, (until_ms, epoch) in enumerate(failed):
        delivery = Delivery(QUEUE, epoch, DeliveryId(number), MESSAGE, redelivered=False, received_at_ns=0)
        lanes.offer(LaneKey(str(number)), delivery)
        lane = lanes.next_ready()
        assert lane is not None
        lanes.delay(lane, until_ms)
    lanes.return_unstarted(QUEUE, Epoch(1))
    for now_ms in range(31):
        lanes.release_due(now_ms)
        due = [number for number, each in enumerate(failed) if each == (now_ms, Epoch(2))]
        assert [lane.head.delivery_id for lane in iter(lanes.next_ready, None)] == due
