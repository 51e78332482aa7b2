"""The engine's machine with clients that commit what they consumed and publish, or roll it back."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.transactions import Consumed
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome
from tests.broker.engine.engine_model import QUOTA_BYTES, TOPICS, Handle, Spooled
from tests.broker.engine.test_engine_machine import EngineMachine
from tests.broker.engine.test_restoration import KeepingMachine

SOME_TOPICS = st.lists(st.sampled_from(sorted(TOPICS)), max_size=3)


class TransactedMachine(EngineMachine):
    @rule(data=st.data(), topics=SOME_TOPICS)
    def commit(self, data: st.DataObject, topics: list[str]) -> None:
        parts = [(handle, data.draw(st.sampled_from(handle.held))) for handle in self.one_of_each_queue(data)]
        consumed = [
            Consumed(handle.flow, SettledRange(DeliveryId(0), DeliveryId(top), Outcome.ACCEPTED), count)
            for handle, top in parts
            if (count := sum(id_ <= top for id_ in handle.held)) and handle.flow is not None
        ]
        held = [
            [m for m in self.spools[handle.queue].values() if m.holder is handle and m.last_id <= top]
            for handle, top in parts
        ]
        is_held = [len(messages) for messages in held] == [part.count for part in consumed]
        # What is consumed makes no room for what is published.
        fits = all(self.fits(queue, topics) for queue in self.spools)
        messages = [Published(topic, self.last_number + i, 1) for i, topic in enumerate(topics, 1)]
        client = self.engine.connect("default", "user", "", "committer")[0]
        if not is_held or not fits:
            with pytest.raises(BrokerRefusal, match=r"Transaction Failure|Spool Over Quota"):
                self.engine.transactions.commit(client, messages, consumed)
            return
        effects = self.engine.transactions.commit(client, messages, consumed)
        for (handle, top), gone in zip(parts, held, strict=True):
            handle.held = [id_ for id_ in handle.held if id_ > top]
            for message in gone:
                del self.spools[handle.queue][message.number]
                self.settled.add((handle.queue, message.number))
        for message in messages:
            self.last_number += 1
            for queue in map(QueueName, TOPICS[message.topic]):
                self.spools[queue][self.last_number] = Spooled(self.last_number, 1)
        if messages:
            # The publisher flow goes on behind these, as its ids are the model's numbers of messages.
            nobodys = Published("wanted/by/nobody", self.last_number, 1)
            assert self.engine.publish(self.publisher, self.last_number, nobodys) == []
        self.carry_out(effects)

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """The clients forget all that they were sent, and what was on its way too."""
        handles = self.one_of_each_queue(data)
        for handle in handles:
            handle.held.clear()
            handle.under_way.clear()
            handle.unacknowledged_ids.clear()
            handle.last_sent = 0
            for message in self.spools[handle.queue].values():
                if handle in (message.holder, message.claimed_by):
                    message.holder = message.claimed_by = None
        self.carry_out(self.engine.transactions.roll_back([h.flow for h in handles if h.flow is not None]))

    def one_of_each_queue(self, data: st.DataObject) -> list[Handle]:
        chosen: dict[QueueName, Handle] = {}
        for handle in self.holders():
            if handle.queue not in chosen and data.draw(st.booleans()):
                chosen[handle.queue] = handle
        return list(chosen.values())

    def fits(self, queue: QueueName, topics: list[str]) -> bool:
        wanted = sum(queue in TOPICS[topic] for topic in topics)
        return sum(message.size for message in self.spools[queue].values()) + wanted <= QUOTA_BYTES


TestTransactedMachine = TransactedMachine.TestCase
TestTransactedMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


class KeptTransactedMachine(TransactedMachine, KeepingMachine):
    """The same with deaths of the broker in between."""


TestKeptTransactedMachine = KeptTransactedMachine.TestCase
TestKeptTransactedMachine.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
