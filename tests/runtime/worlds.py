"""The worlds of `every_step` in which a member is not alone, or does more than to handle what comes."""

import asyncio
import errno
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.core.parking.records import UnparkAsked, encode_entry, parking_queue
from lbg_runtime.journal import writer
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import QueueName
from lbg_runtime.publisher.ledger import open_ledger
from lbg_runtime.runtime import journal
from lbg_runtime.runtime.parking.parked_queue import name_of_key
from lbg_runtime.runtime.restripe.restriper import Restriper
from lbg_runtime.testing.parked import parked_by_queue
from lbg_runtime.transport.memory.transport import MemoryTransport
from lbg_runtime.validator.judge import validate
from tests.runtime.every_step import World
from tests.runtime.figures import differing_from_journals
from tests.runtime.mishaps import Mishap
from tests.runtime.restripe.restripe_world import EngineQueues


def _ask_for_all(world):
    for key in ("a", "b"):
        parking = parking_queue("orders", ord(key) % world.QUEUES)
        world._publisher.send(encode_entry(UnparkAsked(name_of_key(key)), parking))


class ParkingWorld(World):
    """The first message of key b fails for good while a is there, and is parked; then it is asked for."""

    MISHAPS: ClassVar = {"what is parked is asked for, perhaps too early": Mishap(_ask_for_all, repeats=False)}

    def __init__(self, loop, trouble):
        super().__init__(loop, trouble)
        self._is_mended = False
        self._asks_at_s = 0.0

    async def act(self, identity, *, is_first):
        if identity == ("b", 1) and not self._is_mended:
            self.failed.append(identity)
            raise ValueError("as long as a is there")
        await super().act(identity, is_first=is_first)

    def may_be_moved(self, identity):
        return identity[0] == "b"

    def sections(self, name):
        return super().sections(name) | {"failure": {"attempts": 2, "then": "park"}}

    async def life(self):
        a = self.members["a"]
        await self.publish("a", "b")
        self.loop.counts = True
        a.start()
        await asyncio.sleep(0.3)
        await self.publish("b", "a", "a")
        await self.until_handled(a)
        self._is_mended = True
        await self.publish("b")
        await self.until_handled(a)
        if a.is_there:
            a.leave("stop")

    def mend(self):
        self._is_mended = True

    async def end_of_life(self):
        self.mend()
        await super().end_of_life()

    def is_work_left(self):
        parked = parked_by_queue(self.broker, self.settings("a").group.shape(), None) if self._is_mended else {}
        if parked and self.loop.time() >= self._asks_at_s:
            self._asks_at_s = self.loop.time() + 2
            _ask_for_all(self)
        return bool(parked) or super().is_work_left()


def _kill_the_other(world):
    world.members["c"].kill()


class SharedWorld(World):
    """Member c is there from the beginning; a joins, gets a queue, and leaves."""

    QUEUES = 2
    MISHAPS: ClassVar = {"the other member is killed": Mishap(_kill_the_other)}

    def sections(self, name):
        return {
            "membership": {"mode": "discovered", "id": name, "index": None, "count": None},
            "rebind": {"mode": "cooperative", "min_tenure": "1s"},
        }

    async def life(self):
        a, c = self.members["a"], self.member("c")
        c.start()
        await asyncio.sleep(6)
        self.loop.counts = True
        a.start()
        await self.share(8)

    async def share(self, seconds):
        """Members a and c handle what comes in this time; then a leaves."""
        a, c = self.members["a"], self.members["c"]
        for _ in range(seconds):
            await self.publish("a", "b")
            await asyncio.sleep(1)
        await self.until_handled(a)
        if a.is_there:
            a.leave("stop")
            await a.until_ended()
        await self.publish("a", "b")
        await self.until_handled(c)


class SharedParkingWorld(ParkingWorld, SharedWorld):
    """The same, and the first message of key b fails for good, and is parked, until a has been there for a while."""

    MISHAPS: ClassVar = ParkingWorld.MISHAPS | SharedWorld.MISHAPS

    async def life(self):
        a, c = self.members["a"], self.member("c")
        c.start()
        await asyncio.sleep(6)
        self.loop.counts = True
        await self.publish("b")
        a.start()
        mends = self.loop.call_later(5, self.mend)
        await self.share(8)
        mends.cancel()


class PartitionedWorld(SharedWorld):
    """Member c has both partitions of a queue; a joins, gets one, and leaves."""

    QUEUES = 1

    def sections(self, name):
        return super().sections(name) | {
            "group": {"backend": "partitioned", "provision": "none", "queue_count": 2},
            "dispatch": {"missing_key": "error"},
        }

    def create_queues(self):
        made = QueueSettings(
            AccessType.NON_EXCLUSIVE,
            partition_count=2,
            partition_rebalance_delay_ms=300,
            # Above what a handler takes: a hand-off then repeats nothing.
            partition_max_handoff_ms=600_000,
        )
        self.broker.create_queue(self.queues[0], ["h/0/>", "h/1/>"], settings=made)

    async def rest(self):
        # The broker moves partitions once more.
        await asyncio.sleep(1)


class StoppedWorld(World):
    """Member c, which was there first, has a queue with two keys; the second message of one fails there, so that the
    queue stops; member a, which is at home on that queue, comes, and gets it by the rebind cycle."""

    QUEUES = 2
    OTHERS_LEAVE_NOTHING = False

    def __init__(self, loop, trouble):
        super().__init__(loop, trouble)
        self._handles = {}
        """By key, the member that has begun a message of it last."""

    def sections(self, name):
        index, count = {"a": (1, 2), "b": (0, 1), "c": (0, 2)}[name]
        return {
            "membership": {"mode": "static", "index": index, "count": count},
            "rebind": {"mode": "cycle", "interval": "3s", "jitter": 0.1},
            "failure": {"attempts": 1, "then": "stop"},
        }

    def at_work(self, member, identity):
        self._handles[identity[0]] = member.name
        return super().at_work(member, identity)

    async def act(self, identity, *, is_first):
        if identity == ("a", 2) and self._handles["a"] == "c":
            self.failed.append(identity)
            raise ValueError("as long as it is with c")
        await asyncio.sleep(0.05)

    async def life(self):
        a, c, is_undisturbed = self.members["a"], self.member("c"), not self.loop.mishaps
        c.start()
        await asyncio.sleep(1)
        await self.publish("a", "e", "a", "e", "a", "b", "e")
        await asyncio.sleep(1)
        self.loop.counts = True
        a.start()
        await asyncio.sleep(4)
        if is_undisturbed and self._handles["a"] == "c":
            self.fault("c keeps a queue of which it starts nothing")
        for _ in range(3):
            await self.publish("a", "b")
            await asyncio.sleep(1)
        await self.until_handled(a)
        if a.is_there:
            a.leave("stop")


def _run_again(world):
    if world.conducting is not None and not world.conducting.done():
        world.conducting.cancel()
        world.conducting = world.loop.create_task(world.conduct())


class RestripedWorld(SharedWorld):
    """Members a and c are there, and their group is brought from one queue to two."""

    QUEUES = 1
    COUNTS = (1, 2)
    """Numbers of queues, from the first to the last."""
    MISHAPS: ClassVar = SharedWorld.MISHAPS | {
        "the conductor is killed, and run again": Mishap(_run_again, repeats=False)
    }

    def __init__(self, loop, trouble):
        super().__init__(loop, trouble)
        self.admin = EngineQueues(self.broker)
        self.admin._answer = self._then_publish(self.admin._answer)
        self.conducting = None
        self._stage = 0
        """As an index of `COUNTS`."""
        self._is_untold = False
        """Nobody is left who could tell a member that begins with the old number: the command, given again, does."""

    def sections(self, name):
        return super().sections(name) | {"group": {"provision": "none", "queue_count": self.COUNTS[self._stage]}}

    def may_be_moved(self, identity):
        """A record, or a copy that is dropped because the other one is still there."""
        copies = [(each.key, each.key_sequence) for queue in self.queues for each in self.broker.left_on(queue)]
        return identity == (None, None) or copies.count(identity) > 1

    def create_queues(self):
        super().create_queues()
        self.admin.adopt(self.queues[0], ["h/0/>", "h/1/>"])
        self.queues = [QueueName(f"orders/{number}") for number in range(max(self.COUNTS))]

    def _then_publish(self, take_step):
        """What comes right behind each step of the conductor matters."""

        def take(*given):
            taken = take_step(*given)
            for key in "ab":
                self.send(key)
            return taken

        return take

    async def conduct(self):
        for count in self.COUNTS[self._stage + 1 :]:
            await self._restripe(count)
            self._stage += 1
        if self._is_untold:
            await self._restripe(self.COUNTS[-1])

    async def _restripe(self, count):
        session = MemoryTransport(self.broker, "restriper")
        session.send = self._then_publish(session.send)
        await session.open()
        try:
            queues = self.admin
            asked = queues.store_count, queues.read_count, queues.insist_on_broker
            await Restriper(self.settings("a"), count, queues, session, lambda _: None, *asked).run()
        finally:
            await session.close()

    async def life(self):
        a, c = self.members["a"], self.member("c")
        a.start()
        c.start()
        await asyncio.sleep(6)
        await self.publish("a", "b")
        self.loop.counts = True
        self.conducting = self.loop.create_task(self.conduct())
        await self.share(4)

    def is_work_left(self):
        return not self.conducting.done() or super().is_work_left()

    async def afterwards(self):
        self._is_untold = not any(each.is_there for each in self.members.values())
        await super().afterwards()
        if not self.conducting.done():
            self.fault("the re-striping does not end")
            self.conducting.cancel()
        elif self.conducting.exception():
            self.fault(f"the re-striping ended with {self.conducting.exception()!r}")
        elif self.admin.names() != self.queues[: self.COUNTS[-1]] or self.left():
            self.fault(f"queues {self.admin.names()}, with {self.left()} messages")


class RestripedBackWorld(RestripedWorld):
    """The same, and back to one: a shard leaves its queue, and comes back to it."""

    COUNTS = (1, 2, 1)


def _fill_disk(seconds):
    def happen(world):
        world.is_full_until_s = world.loop.time() + seconds

    return happen


class JournaledWorld(World):
    """All is written down, and judged by the validator at the end."""

    MISHAPS: ClassVar = {
        "the disk is full for a moment": Mishap(_fill_disk(0.06), repeats=False),
        "the disk is full": Mishap(_fill_disk(1_000), repeats=False),
    }

    def __init__(self, loop, trouble):
        super().__init__(loop, trouble)
        self.is_full_until_s = 0
        self._lacks_records = False
        self._folder = TemporaryDirectory()
        self._path = Path(self._folder.name)
        shape = self.settings("b").group.shape()
        self._ledger = open_ledger(self._path, shape, HashFunction.CRC32, publisher_id="p")

    def sections(self, name):
        return super().sections(name) | {"ops": {"journal": {"path": str(self._path)}}}

    def changes(self):
        write_all = writer._write_all

        def write(file, data):
            if self.loop.time() >= self.is_full_until_s:
                return write_all(file, data)
            self._lacks_records = True
            done, _ = write_all(file, data[: len(data) // 2])
            return done, OSError(errno.ENOSPC, "no room")

        return [
            (writer, "_write_all", write),
            (journal, "wall_us", self._wall_us),
            (journal, "RecordWriter", partial(writer.RecordWriter, now_ns=self.loop.monotonic_ns)),
        ]

    def verdicts(self):
        """Those that are right."""
        return ("unknown",) if self._lacks_records else ("valid",)

    def _wall_us(self):
        return self.loop.monotonic_ns() // 1_000

    def send(self, key):
        sent_us, sent = self._wall_us(), super().send(key)
        number = self._published[key]
        sent.add_done_callback(lambda _: self._ledger.confirmed(key, ord(key) % 2, number, sent_us))
        return sent

    async def afterwards(self):
        await super().afterwards()
        self.is_full_until_s = 0
        self._ledger.close(clean=True)
        run = read_run(self._path)
        for wrong in differing_from_journals(self.members.values(), run):
            self.fault(wrong)
        verdict = validate(run)
        if verdict.kind.value not in self.verdicts():
            self.fault(f"{verdict.kind}: {verdict.reasons} {verdict.findings}")
        self._folder.cleanup()
