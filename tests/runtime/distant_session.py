"""A memory transport that is some way from its broker, fails as planned, and says when it is misused."""

import asyncio
from collections import Counter
from functools import partial

from lbg_runtime.core.flow.events import FlowActive, MessageReceived
from lbg_runtime.core.parking.records import PARKING_PREFIX, ParkedMessage, decode_entry
from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.transport.memory.flow import HandleState
from lbg_runtime.transport.memory.transport import MemoryTransport

LATENCY_S = 0.003
"""One way to the broker, for whatever is answered."""

ACK_DELAY_S = 0.1


class DistantFlow:
    """A flow of a memory transport, some way off; says when it is misused."""

    def __init__(self, session, member, queue, epoch, received):
        self.flow = None
        self.name = queue, epoch
        self._session = session
        self._member = member
        self._is_of_group = queue.startswith("orders/")
        self._received = received
        self._settled = set()

    def settle(self, delivery_id, outcome):
        self._member.figures.settle(*self.name, delivery_id)
        self._session.begin_call("settle")
        world, identity = self._member.world, self._received[delivery_id]
        if delivery_id in self._settled:
            world.fault(f"{identity} was settled twice")
        self._settled.add(delivery_id)
        if self._is_of_group and identity not in world.done and not world.may_be_moved(identity):
            world.fault(f"{identity} was settled before it was handled")
        self.flow.settle(delivery_id, outcome)

    def stop_intake(self):
        self.flow.stop_intake()

    def start_intake(self):
        self.flow.start_intake()

    def flush(self):
        self.flow.flush()

    @property
    def parked_count(self):
        """Of a parking queue. Its fences and orders have no key."""
        return sum(key is not None for each, (key, _) in self._received.items() if each not in self._settled)

    async def unbind(self):
        try:
            await self._session.travel("unbind")
        finally:
            # Also if the caller is cancelled; it has no suspension point.
            is_confirmed = await self.flow.unbind()
        await asyncio.sleep(LATENCY_S)
        return is_confirmed


class DistantTransport(MemoryTransport):
    """`trouble`: by name and number of a call, the exception that it raises, or the seconds that it takes longer."""

    def __init__(self, member, trouble):
        super().__init__(member.world.broker, member.name, ack_delay_s=ACK_DELAY_S)
        self.client_name = member.name
        self.flows = []
        self._delayed = {}
        """Answers to what was sent that are under way."""
        self.calls = Counter()
        self._member = member
        self._trouble = trouble

    async def open(self):
        await self.travel("open")
        await super().open()

    async def close(self):
        try:
            await self.travel("close")
        finally:
            # Also if the caller is cancelled.
            self._member.closed_with = sum(flow.flow.state is not HandleState.DEAD for flow in self.flows)
            await super().close()
            for answer in self._delayed:
                if not answer.done():
                    answer.set_exception(PublishFailed("", "the transport was closed"))

    async def provision(self, queue, subscriptions):
        await self.travel("provision")
        await super().provision(queue, subscriptions)

    async def has_queue(self, queue):
        await self.travel("has_queue")
        return await super().has_queue(queue)

    async def subscribe(self, subscription, sink):
        await self.travel("subscribe")
        await super().subscribe(subscription, sink)

    async def bind(self, queue, epoch, sink):
        received = {}

        def take(event):
            if isinstance(event, MessageReceived):
                message = event.delivery.message
                received[event.delivery.delivery_id] = (message.key, message.key_sequence)
            elif not isinstance(event, FlowActive):
                self._member.lost_s[queue, epoch] = asyncio.get_running_loop().time()
            sink(event)

        await self.travel("bind")
        distant = DistantFlow(self, self._member, queue, epoch, received)
        distant.flow = await super().bind(queue, epoch, take)
        self.flows.append(distant)
        try:
            await asyncio.sleep(LATENCY_S)
        except asyncio.CancelledError:
            await distant.unbind()
            raise
        return distant

    def send(self, message):
        """A `PublishFailed` of the plan is told of a message that the broker has, a `PublishRefused` of one that it has
        not."""
        entry = decode_entry(message) if message.topic.startswith(PARKING_PREFIX) else None
        if isinstance(entry, ParkedMessage):
            self._member.figures.copy(entry.original)
        return self._answered_later(partial(super().send, message))

    def send_together(self, messages):
        return self._answered_later(partial(super().send_together, messages))

    def _answered_later(self, send):
        loop, error, delay_s = asyncio.get_running_loop(), None, LATENCY_S
        try:
            delay_s += self.begin_call("send") or 0
        except PublishFailed as trouble:
            error = trouble
        answer, sent = loop.create_future(), loop.create_future()
        if isinstance(error, PublishRefused):
            sent.set_result(None)
        else:
            sent = send()

        def pass_on(failure):
            if not answer.done():
                answer.set_result(None) if failure is None else answer.set_exception(failure)

        def confirm(_):
            timer = loop.call_later(delay_s, pass_on, error or sent.exception())
            answer.add_done_callback(lambda _: timer.cancel())

        self._delayed[answer] = None
        answer.add_done_callback(self._delayed.pop)
        sent.add_done_callback(confirm)
        return answer

    def parked_on(self, parking, epoch):
        """How many parked messages were received on a handle and not settled there."""
        return sum(flow.parked_count for flow in self.flows if flow.name == (parking, epoch))

    async def travel(self, call):
        """To the broker."""
        await asyncio.sleep(LATENCY_S + (self.begin_call(call) or 0))

    def begin_call(self, call):
        """Raise what is planned for this call, or return how long it takes."""
        self.calls[call] += 1
        trouble = self._trouble.get((call, self.calls[call]))
        if isinstance(trouble, Exception):
            raise trouble
        return trouble
