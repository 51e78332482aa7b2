"""Queues of a memory broker that an administrator changes, and a re-striping of them."""

import asyncio

from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import ConnectFailed, QueueInUse, QueueMissing, QueueUnfit
from lbg_runtime.runtime.restripe.restriper import Restriper
from lbg_runtime.transport.memory.transport import MemoryTransport

GROUP = {"provision": "none"}


class EngineQueues:
    """`QueueAdmin` straight on the engine; can be told to fail, and what it is asked takes a moment."""

    def __init__(self, broker):
        self._broker = broker
        self._engine = broker.engine
        self._topics = {}
        self.unfit = None
        self.to_show = {}
        """How many unsettled messages each queue was to show a member."""
        self.of_others = None
        """A queue with rights of its own."""
        self.refusing = {}
        """Why queues take no message, as they show it."""
        self.stored_count = None
        self.measured = []
        """Queues whose depth was asked for, one after another."""
        self.calls_left = None
        """Changes until the next one is done and its answer lost."""

    def adopt(self, queue, topics):
        self._topics[queue] = set(topics)

    def forget(self, queue):
        del self._topics[queue]

    async def subscriptions(self, queue):
        await asyncio.sleep(0.001)
        return frozenset(self._topics[queue]) if queue in self._topics else None

    async def ensure_fit(self, queue, unsettled=1):
        self.to_show[queue] = unsettled
        if queue == self.unfit:
            raise QueueUnfit(queue, "maxRedeliveryCount 3", "maxRedeliveryCount 0")

    async def ensure_like_new(self, queue):
        if queue == self.of_others:
            raise QueueUnfit(queue, "owner somebody", "owner members")
        if messages := self._engine.queue_depth("default", queue):
            raise QueueUnfit(queue, counted(messages, "message"), "none")

    async def refusal(self, queue, size_bytes):
        return self.refusing.get(queue)

    async def create_queue(self, queue):
        if queue not in self._topics:
            self._broker.create_queue(queue)
            self._topics[queue] = set()
        await self._answer()

    async def subscribe(self, queue, topic):
        if topic not in self._topics[queue]:
            self._engine.add_queue_subscription("default", queue, topic)
            self._topics[queue].add(topic)
        await self._answer()

    async def unsubscribe(self, queue, topic):
        if topic in self._topics.get(queue, ()):
            self._engine.remove_queue_subscription("default", queue, topic)
            self._topics[queue].discard(topic)
        await self._answer()

    async def depth(self, queue):
        if queue not in self._topics:
            raise QueueMissing(queue)
        self.measured.append(queue)
        return self._engine.queue_depth("default", queue)

    async def delete_queue(self, queue):
        depth, flows = self._engine.queue_depth("default", queue), len(self._engine.queue_flows("default", queue))
        if depth or flows:
            raise QueueInUse(queue, depth, flows)
        self._broker.delete_queue(queue)
        del self._topics[queue]
        await self._answer()

    async def store_count(self, count):
        self.stored_count = count

    async def read_count(self):
        return self.stored_count

    async def insist_on_broker(self):
        """They have no other."""

    def names(self):
        return sorted(self._topics)

    async def _answer(self):
        await asyncio.sleep(0.002)
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left == 0:
                raise ConnectFailed("semp", "gone")


def made_queues(trial, settings):
    """The group's, on the trial's broker."""
    admin = EngineQueues(trial.broker)
    shape = settings().group.shape()
    for index, queue in enumerate(shape.queue_names()):
        trial.broker.create_queue(queue, shape.subscriptions(index))
        admin.adopt(queue, shape.subscriptions(index))
    return admin


def cooperative(settings):
    return settings(membership={"mode": "discovered", "index": None, "count": None}, rebind={"mode": "cooperative"})


async def restripe(trial, settings, queues, count, on_progress=lambda _: None):
    session = MemoryTransport(trial.broker, f"restriper-{count}")
    await session.open()
    try:
        asked = queues.store_count, queues.read_count, queues.insist_on_broker
        return await Restriper(cooperative(settings), count, queues, session, on_progress, *asked).run()
    finally:
        await session.close()


async def topics_of(queues):
    return {name: await queues.subscriptions(name) for name in queues.names()}


def in_order_and_once(trial):
    return all(numbers == list(range(1, len(numbers) + 1)) for numbers in trial.sequences().values())


def handled(trial):
    return sum(map(len, trial.sequences().values()))


async def publish_for(trial, seconds, per_s=10):
    """A message of each key, so many times a second."""
    for _ in range(seconds * per_s):
        await trial.publish(8, 8)
        await asyncio.sleep(1 / per_s)


def published_in(seconds, per_s=10):
    """How many messages those are."""
    return seconds * per_s * 8
