"""The real shell of a member in a small story, of which each step of the event loop is a moment for a mishap.

A step is one callback of the loop, whose time is virtual: the same story has the same steps every time, and what is put
before a step stands between two callbacks, as anything from outside does. The broker is some milliseconds away, and
acceptances wait for the acknowledgement timer, as with the official client. When the member has ended, however it did,
another one gets what is left.

`World.found` says what should not be: messages lost or out of order, two handlings of a key at a time, a
settlement without a handling or a second one, deliveries that never end or end twice, flows, tasks and timers left
behind, exceptions that nobody retrieved, a way out that takes too long, a member that stands still, figures that are
not true.

More than 400 lines, as the other stories derive from this one and replace its parts.
"""

import asyncio
import itertools
import random
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import patch

from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message
from lbg_runtime.runtime import app as app_module
from lbg_runtime.runtime import flight_recorder, journal
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.dispatch import dispatcher, key_book
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING
from lbg_runtime.runtime.supervisor import Supervisor
from lbg_runtime.testing.group_broker import GroupBroker
from lbg_runtime.testing.moments import Moments
from lbg_runtime.testing.virtual_time import VirtualTimeLoop
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.garbage import own_garbage
from tests.interruptions import CountedCallbacks
from tests.runtime.conftest import make_settings
from tests.runtime.distant_session import LATENCY_S
from tests.runtime.figures import LOOKS_EVERY
from tests.runtime.stepped_threads import SteppedThread
from tests.runtime.watched_member import DRAIN_TIMEOUT_S, PATIENCE_S, WatchedMember


class SteppedLoop(VirtualTimeLoop):
    """Counts its steps, and lets things happen between them."""

    def __init__(self):
        super().__init__()
        self._ready = CountedCallbacks(self)
        self.step = 0
        self.counts = False
        """Steps are counted from when member a starts."""
        self.mishaps = {}
        """By step: what happens right before it."""
        self.stood_still_s = 0
        self._readings = itertools.count(1)
        self._slept_ns = 0
        self._went_on_ns = 0
        self.passed = 0
        """All steps, counted or not."""
        self.look = lambda: None
        """Called between two steps, now and then."""
        self.told = []
        """What came to the exception handler."""
        self.set_exception_handler(lambda _, context: self.told.append(context))

    def begin_step(self):
        self.passed += 1
        if self.passed % LOOKS_EVERY == 0:
            self.look()
        if self.counts:
            self.step += 1
            mishap = self.mishaps.pop(self.step, None)
            if mishap is not None:
                mishap()

    def run_in_executor(self, executor, func, *args):
        thread = SteppedThread(self, partial(func, *args))
        # At once: what begins is seen by nobody before it has begun, and others do not come in between.
        thread.go_on()
        return thread.answer

    def stand_still(self, seconds):
        """The process gets no processor time for so long."""
        self._jumping.now_s += seconds
        self.stood_still_s += seconds
        self._went_on_ns = self.since_boot_ns()

    def sleep_with_host(self, seconds):
        """The host sleeps for so long, and the clock of the loop stands still."""
        self._slept_ns += seconds * 10**9
        self._went_on_ns = self.since_boot_ns()

    def was_since(self, since_ns, now_ns):
        """As in a `Suspension`."""
        return since_ns < self._went_on_ns <= now_ns

    def since_boot_ns(self):
        return self.monotonic_ns() + self._slept_ns

    def monotonic_ns(self):
        # Two moments are never the same, as on a real clock.
        return int(self.time() * 1e9) + next(self._readings)


class World:
    """A broker, a publisher, and member a, which is alone. `life` is the story; then `afterwards`, where b comes."""

    QUEUES = 1
    MISHAPS: ClassVar = {}
    """By name: those that only this world has, beside those of all."""
    OTHERS_LEAVE_NOTHING = True
    """Whether members beside a leave nothing behind."""
    LEAVES_NOTHING = True
    """Whether a leaves nothing behind if it is only asked to leave."""

    def __init__(self, loop, trouble):
        self.loop = loop
        self.broker = GroupBroker(Moments(), lambda: None)
        self.queues = [QueueName(f"orders/{number}") for number in range(self.QUEUES)]
        self.members = {}
        self.steps = 0
        """That member a was there for."""
        self.story = None
        """The task of `life`."""
        self.found = []
        self.begun = []
        self.done = Counter()
        """How often each message was handled to the end, in the order of the first."""
        self.failed = []
        """What failed because its handler was to fail."""
        self.most_at_once = 0
        self.outcomes = {}
        """By message: what its handler does first when it is called for the first time."""
        self._published = Counter()
        self._running = Counter()
        self._publisher = MemoryTransport(self.broker, "publisher")
        self._trouble = trouble

    def fault(self, text):
        self.found.append(text)

    def changes(self):
        """What is replaced as long as it lasts: objects, names and values."""
        return []

    def member(self, name, trouble=None):
        made = self.members[name] = WatchedMember(self, name, self.settings(name), trouble)
        return made

    def sections(self, name):
        """What a member's settings have beyond those of all."""
        return {}

    def settings(self, name):
        group = {"provision": "create_missing", "queue_count": self.QUEUES, "hash_count": 2}
        common = {
            "group": group,
            "rebind": {"mode": "cycle", "drain_timeout": f"{DRAIN_TIMEOUT_S}s"},
            "failure": {"timeout": "2s", "backoff": {"initial": "50ms", "maximum": "1s"}},
            "dispatch": {"max_in_flight": 4, "runners": 2},
        }
        return make_settings(
            **common | {each: common.get(each, {}) | more for each, more in self.sections(name).items()}
        )

    def app_of(self, member, settings):
        return App(self.handlers_of(member), settings, session=member.session)

    def handlers_of(self, member):
        handlers = Handlers()
        self.add_handler(handlers, member)
        self.add_hooks(handlers, member)

        @handlers.lifespan
        async def life():
            await asyncio.sleep(LATENCY_S)
            yield
            await asyncio.sleep(LATENCY_S)

        return handlers

    def add_handler(self, handlers, member):
        @handlers.handler("orders/>")
        async def handle(message):
            identity, delivery = (message.key, message.key_sequence), CURRENT_HANDLING.get().delivery
            self.check_may_begin(member, identity, delivery.queue, delivery.epoch)
            await self.work(member, identity)

    def add_hooks(self, handlers, member):
        @handlers.on_assigned
        async def come(queue, epoch):
            await asyncio.sleep(LATENCY_S)

    def look_at_end(self, member, handling):
        """Called when a delivery has ended in a member."""

    def look_at_rest(self, member):
        """Called when a member to which nothing has happened has handled all there is."""

    def check_may_begin(self, member, identity, queue, epoch):
        if not member.may_begin or self.loop.time() > member.lost_s.get((queue, epoch), inf):
            self.fault(f"{identity} was begun although it was to be left to others")

    async def work(self, member, identity):
        is_first = identity not in self.begun
        with self.at_work(member, identity):
            if (outcome := self.outcomes.pop(identity, None)) is not None:
                await outcome()
            await self.act(identity, is_first=is_first)

    @contextmanager
    def at_work(self, member, identity):
        """A handling of the message, which is done if it ends without an error."""
        key, number = identity
        self._running[member.name, key] += 1
        self.most_at_once = max(self.most_at_once, self._running.total())
        if self._running[member.name, key] > 1:
            self.fault(f"{member.name} handles two of {key} at a time")
        before = [(key, n) for n in range(1, number) if (key, n) not in self.done]
        if missing := before and [each for each in before if each not in self.aside()]:
            self.fault(f"{identity} was begun before {missing[0]} was done")
        self.begun.append(identity)
        try:
            yield
            self.done[identity] += 1
        finally:
            self._running[member.name, key] -= 1

    def aside(self):
        """What was moved away, and need not be handled any more."""
        return set()

    async def act(self, identity, *, is_first):
        """One waits, one yields, one returns at once; and the second of key a fails at first."""
        if identity == ("a", 2) and is_first:
            self.failed.append(identity)
            raise ValueError("at first")
        if identity[1] % 3 == 1:
            await asyncio.sleep(0.05)
        elif identity[1] % 3 == 2:
            await asyncio.sleep(0)

    def may_be_moved(self, identity):
        """Whether it may be settled without having been handled."""
        return False

    # -- the broker

    async def publish(self, *keys):
        for key in keys:
            await self.send(key)

    def send(self, key):
        self._published[key] += 1
        stamps = {PARTITION_KEY_PROPERTY: key, PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: self._published[key]}
        topic, sent_at_ms = f"h/{ord(key) % 2}/orders/new", int(self.loop.time() * 1_000)
        return self._publisher.send(Message(topic, b"x", stamps, sent_at_ms=sent_at_ms))

    def left(self):
        """Messages on the group's queues."""
        return sum(map(self.broker.depth, self.queues))

    def flows_of(self, name):
        engine = self.broker.engine
        flows = [flow for queue in engine.queue_names("default") for flow in engine.queue_flows("default", queue)]
        return [flow for flow in flows if flow.client_name == name]

    # -- the story

    async def begin(self):
        await self._publisher.open()
        self.create_queues()
        self.member("a", self._trouble)

    def create_queues(self):
        for number, queue in enumerate(self.queues):
            self.broker.create_queue(queue, [f"h/{shard}/>" for shard in range(number, 2, self.QUEUES)])

    async def life(self):
        a = self.members["a"]
        await self.publish("a", "b")
        self.loop.counts = True
        a.start()
        await asyncio.sleep(0.3)
        await self.publish("a", "a", "b", "a")
        await self.until_handled(a)
        if a.is_there:
            a.leave("stop")

    async def until_handled(self, member):
        """Wait until nothing is left, or the member is not there any more."""
        known, end_s = 0, 0.0
        while member.is_there and self.is_work_left():
            if len(self.done) > known or not end_s:
                known, end_s = len(self.done), self.loop.time() + PATIENCE_S
            if self.loop.time() > end_s:
                self.fault(f"{member.name} stands still with {self.left()} messages left")
                return
            await asyncio.sleep(0.1)

    def is_work_left(self):
        return self.left() > 0

    async def end_of_life(self):
        # Still there if an exit has broken it off.
        self.story.cancel()
        a = self.members["a"]
        if a.task is not None:
            await a.until_ended()
        self.steps = self.loop.step
        self.loop.mishaps.clear()
        a.check_end(is_clean=False)

    async def afterwards(self):
        for other in [each for each in self.members.values() if each.is_there]:
            other.leave("stop")
            await other.until_ended()
            other.check_end(is_clean=self.OTHERS_LEAVE_NOTHING)
        b = self.member("b")
        await self.publish("b", "a")
        b.start()
        await self.until_handled(b)
        self.look_at_rest(b)
        b.leave("stop")
        await b.until_ended()
        b.check_end(is_clean=True)
        await self._publisher.close()
        aside = self.aside()
        for key, count in self._published.items():
            expected = [(key, n) for n in range(1, count + 1) if (key, n) not in aside]
            if [each for each in self.done if each[0] == key and each not in aside] != expected:
                self.fault(f"of {key}, {count} were published, and handled first: {list(self.done)}")
        await self.rest()
        killed = [each.process for each in self.members.values() if each.is_killed]
        if left := asyncio.all_tasks() - {asyncio.current_task(), *(task for each in killed for task in each._tasks)}:
            self.fault(f"tasks are left: {left}")
        if timers := [timer for timer in self.loop._scheduled if not timer.cancelled() and not _is_of(timer, killed)]:
            self.fault(f"timers are left: {timers}")

    async def rest(self):
        """What is to end by itself before it is looked at what is left."""

    async def dispose(self):
        """End what is left of members that were killed; what their handlers do then does not count."""
        self.fault, self.loop.look = lambda _: None, lambda: None
        for each in self.members.values():
            await each.dispose()

    @property
    def repeated(self):
        """What was handled more than once."""
        return [identity for identity, times in self.done.items() if times > 1]


def _is_of(timer, processes):
    return getattr(timer._callback, "__self__", None) in processes


def play(world_class, arrange=lambda world: None, trouble=None):
    """One run. `arrange(world)` is called before member a starts: it puts mishaps at steps of the loop."""
    loop, chances = SteppedLoop(), itertools.count()
    world = world_class(loop, trouble or {})

    def supervised(*given):
        made = Supervisor(*given)
        world.members[given[3].client_name].watch(made)
        return made

    def look():
        for member in world.members.values():
            member.look_at_figures()

    async def life():
        world.story = asyncio.current_task()
        await world.begin()
        arrange(world)
        await world.life()

    loop.look = look
    # In the end it is told what was left with an exception that nobody retrieved.
    with own_garbage(), ExitStack() as changes:
        readers = (dispatcher, journal, key_book, flight_recorder)
        clocks = [(each, "monotonic_ns", loop.monotonic_ns) for each in readers]
        clocks.append((dispatcher, "since_boot_ns", loop.since_boot_ns))
        chance = SimpleNamespace(Random=lambda: random.Random(next(chances)))
        members = [(app_module, "Supervisor", supervised), (app_module, "random", chance)]
        for module, name, value in (*clocks, *members, *world.changes()):
            changes.enter_context(patch.object(module, name, value))
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            with suppress(SystemExit, KeyboardInterrupt):
                runner.run(life())
            is_over = False
            while not is_over:
                # An exit of a handler throws the loop out at each task that it goes through.
                with suppress(SystemExit, KeyboardInterrupt):
                    runner.run(world.end_of_life())
                    is_over = True
            runner.run(world.afterwards())
            runner.run(world.dispose())
    world.found += [f"told: {each.get('message')} {each.get('exception')!r}" for each in loop.told]
    return world
