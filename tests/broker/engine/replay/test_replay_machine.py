"""The engine's machine with a replay log: any calls in any order, binds that ask for replay among them."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from lbg_runtime.broker.engine.replay.log import FromBeginning
from lbg_runtime.broker.engine.settings import AccessType
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName
from tests.broker.engine.engine_model import CLIENT_NAMES, QUEUES, TOPICS, Handle, Spooled
from tests.broker.engine.test_engine_machine import WINDOWS, EngineMachine
from tests.broker.engine.test_restoration import KeepingMachine

LOG_BYTES = 20
"""Less than a queue takes, so no replay is refused for that."""


class ReplayMachine(EngineMachine):
    def set_up(self) -> None:
        super().set_up()
        self.engine.replays.keep_log_of_size("default", LOG_BYTES)
        self.logged: list[tuple[int, int, str]] = []
        """Number, size and topic of what was accepted."""

    def publish(self, topic: str, size: int) -> None:
        super().publish(topic, size)
        if self.last_number not in self.refused:
            self.logged.append((self.last_number, size, topic))
            while sum(size for _, size, _ in self.logged) > LOG_BYTES:
                del self.logged[0]

    @rule(name=st.sampled_from(CLIENT_NAMES), queue=st.sampled_from(sorted(QUEUES)), window=WINDOWS)
    def bind_to_replay(self, name: str, queue: QueueName, window: int) -> None:
        if name not in self.connections:
            self.connect(name)
        client = self.connections[name]
        if self.lines[queue] or QUEUES[queue] is not AccessType.EXCLUSIVE:
            with pytest.raises(BrokerRefusal, match=r"Max clients exceeded|Client Initiated Replay"):
                self.engine.bind(client, queue, replay=FromBeginning())
            return
        bound, effects = self.engine.bind(client, queue, replay=FromBeginning())
        assert effects == []
        assert bound.active
        # All in its order, as if it had just come; what clients hold from before counts for nothing any more.
        replayed = [(number, size) for number, size, topic in self.logged if queue in TOPICS[topic]]
        self.spools[queue] = {number: Spooled(number, size) for number, size in replayed}
        self.settled -= {(queue, number) for number, _ in replayed}
        for lost in [h for h in self.handles if h.flow is None and (h.client_name, h.queue) == (name, queue)]:
            self.give_up(lost)
        handle = Handle(name, queue, bound.flow)
        self.flows[bound.flow] = handle
        self.handles.append(handle)
        self.lines[queue].append(handle)
        self.move_window(handle, window, 0)


TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


class KeptReplayMachine(ReplayMachine, KeepingMachine):
    """The same with deaths of the broker in between, which the log outlives."""


TestKeptReplayMachine = KeptReplayMachine.TestCase
TestKeptReplayMachine.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
