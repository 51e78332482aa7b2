"""The same machine while an administrator closes and opens queues, and deletes messages under everybody's hands."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from lbg_runtime.broker.engine.effects import FlowEnded
from lbg_runtime.model.ids import QueueName
from tests.broker.engine.engine_model import QUEUES
from tests.broker.engine.test_engine_machine import EngineMachine


class AdministeredMachine(EngineMachine):
    @rule(queue=st.sampled_from(sorted(QUEUES)))
    def close_and_open(self, queue: QueueName) -> None:
        was = self.engine.queue_status("default", queue).settings
        closed = replace(was, egress_enabled=False)
        effects = self.engine.administration.change_queue("default", queue, closed)
        line = list(self.lines[queue])
        assert effects == [
            FlowEnded(self.connections[handle.client_name], handle.flow, "Service Unavailable")
            for handle in line
            if handle.flow is not None
        ]
        for handle in line:
            self.leave(handle)
            self.give_up(handle)
        assert self.engine.administration.change_queue("default", queue, was) == []

    @rule(queue=st.sampled_from(sorted(QUEUES)), data=st.data())
    def delete_messages(self, queue: QueueName, data: st.DataObject) -> None:
        spool = self.spools[queue]
        if not spool:
            return
        seen = tuple(self.engine.administration.queue_messages("default", queue))
        assert [spooled.message.size_bytes for spooled in seen] == [message.size for message in spool.values()]
        chosen = data.draw(st.sets(st.sampled_from(range(len(seen))), min_size=1, max_size=3))
        numbers = list(spool)
        for place in chosen:
            del spool[numbers[place]]
            self.settled.add((queue, numbers[place]))
        sequences = {seen[place].sequence for place in chosen}
        self.carry_out(self.engine.administration.delete_messages("default", queue, sequences))


TestAdministeredMachine = AdministeredMachine.TestCase
TestAdministeredMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
