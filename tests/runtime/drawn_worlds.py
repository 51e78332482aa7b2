"""Worlds of `every_step` that a number puts together from pieces.

Drawn are: what kind of handler takes the messages and how each of its attempts goes, what middleware is around it, how
hooks go, if there are any, what becomes of a message that never works, and the settings. The story, which says who is
there, is one of those of `worlds`. Handlers leave an effect behind a guard, and members write journals, on which the
validator has its say. What a handler's attempt does depends on its message and its number alone, so that a mishap
changes nothing else.

More than 400 lines, as each piece is a few of them, and what they owe each other is looked at in one place.
"""

import asyncio
import random
from collections import Counter
from contextlib import suppress

from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.guard.memory import MemoryGuard
from lbg_runtime.model.failure import ERROR_KEY_SEQUENCE_PROPERTY
from lbg_runtime.model.message import PARTITION_KEY_PROPERTY, Message
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.middleware import Proceed
from lbg_runtime.runtime.handlers.receipts import Receipt
from lbg_runtime.runtime.runners.attempts import attempt_put_off
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, GivenBack
from tests.runtime.distant_session import LATENCY_S
from tests.runtime.stepped_threads import done_on_loop
from tests.runtime.worlds import JournaledWorld, ParkingWorld, PartitionedWorld, StoppedWorld

OUT, ASIDE = "out", "lbg-errors/orders"
"""The queues that handlers publish to, and that messages are moved to."""

SHORTEST_WAIT_S = 0.02
"""Before another attempt: half of the first wait of all worlds, less what timers may be early by."""


HANG_S = 20
"""Longer than a member may take to leave; but who goes on when it is cancelled, and then hangs where no second
cancellation comes (a `TaskGroup` passes on the first alone), is not to be taken for a standstill."""


class NotThisTime(Exception):
    """What handlers fail with."""


# -- how an attempt goes


async def at_once():
    pass


async def yields():
    await asyncio.sleep(0)


async def waits():
    await asyncio.sleep(0.05)


async def takes_long():
    await asyncio.sleep(0.7)


async def fails():
    raise NotThisTime


async def fails_later():
    await asyncio.sleep(0.03)
    raise NotThisTime


async def fails_in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(fails_later())
        await asyncio.sleep(0.2)


async def fails_badly():
    raise BaseException("no Exception")  # noqa: TRY002 - some libraries' errors are none


async def is_cancelled():
    raise asyncio.CancelledError


async def cancels_itself():
    asyncio.current_task().cancel()


async def hangs():
    await asyncio.sleep(HANG_S)


async def ends_at_its_time_out():
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(HANG_S)


async def blocks():
    # For longer than it takes to have another runner in its place.
    await asyncio.sleep(5)


WELL = {at_once: 6, yields: 3, waits: 6, takes_long: 1}
BADLY = {fails: 2, fails_later: 2, fails_in_a_group: 1, fails_badly: 1, is_cancelled: 1, cancels_itself: 1}
OVERDUE = {hangs: 1, ends_at_its_time_out: 1}
OVERDUE_ON_A_THREAD = {blocks: 1}


def one_of(chance, *weighed):
    ways = {way: weight for each in weighed for way, weight in each.items()}
    return chance.choices(list(ways), list(ways.values()))[0]


# -- what is around a handler


async def passes_on(world, message, proceed):
    await proceed(message)


async def waits_before(world, message, proceed):
    await asyncio.sleep(LATENCY_S)
    await proceed(message)


async def makes_anew(world, message, proceed):
    await proceed(Message(message.topic, message.payload, dict(message.properties)))


async def swallows(world, message, proceed):
    with suppress(Exception):
        await proceed(message)


async def swallows_all(world, message, proceed):
    try:
        await proceed(message)
    except BaseException:  # noqa: BLE001 - cancellations, too
        await asyncio.sleep(LATENCY_S)


async def fails_before(world, message, proceed):
    world.may_fail(message, "before")
    await proceed(message)


async def fails_behind(world, message, proceed):
    await proceed(message)
    world.may_fail(message, "behind")


async def bounds(world, message, proceed):
    try:
        async with asyncio.timeout(0.3):
            await proceed(message)
    except TimeoutError:
        world.failed.append(identity_of(message))
        raise


async def in_a_task(world, message, proceed):
    await asyncio.create_task(proceed(message))


async def in_a_group(world, message, proceed):
    async with asyncio.TaskGroup() as group:
        group.create_task(proceed(message))


async def shields(world, message, proceed):
    await asyncio.shield(_looked_after(proceed(message)))


async def leaves_early(world, message, proceed):
    _looked_after(proceed(message))
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def _looked_after(coroutine):
    task = asyncio.ensure_future(coroutine)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


KEEPS_CANCELLATIONS = (shields, leaves_early)
ADDS_NO_FAILURE = (passes_on, waits_before, makes_anew, in_a_task)
MIDDLEWARE = (
    *ADDS_NO_FAILURE,
    *KEEPS_CANCELLATIONS,
    *(swallows, swallows_all, fails_before, fails_behind, bounds, in_a_group),
)


def identity_of(message):
    return message.key, message.key_sequence


class DrawnWorld(JournaledWorld):
    """All but the story; see `drawn`."""

    SEED = 0
    OTHERS_LEAVE_NOTHING = LEAVES_NOTHING = False

    def __init__(self, loop, trouble):
        chance = random.Random(self.SEED)
        has_stops, parks = isinstance(self, StoppedWorld), isinstance(self, ParkingWorld)
        self.kind = chance.choice(KINDS)
        self.around = [] if chance.random() < 0.5 else chance.sample(MIDDLEWARE, chance.randint(1, 2))
        if has_stops:
            # What fails elsewhere than the story says stops its queue for good.
            self.around = [each for each in self.around if each in ADDS_NO_FAILURE]
        self.may_go_badly = chance.random() < 0.7 and not has_stops
        self.has_hooks = chance.random() < 0.6
        self.then = None if has_stops or parks else chance.choice([None, None, "error_queue", "dmq"])
        self.dispatch = {"max_in_flight": chance.choice([1, 2, 4, 8]), "runners": chance.choice([1, 2, 3])}
        if chance.random() < 0.4:
            self.dispatch |= {"stuck_key": "300ms", "slow_handler": "100ms", "max_waiting_per_key": 1}
        self.limits = chance.choice([1, 2, 2, 3]), chance.choice(["0ms", "10ms", "100ms"])
        # Where a queue stops, the story says by when another member has it.
        if not has_stops and bounds not in self.around and random.Random(f"{self.SEED} patient").random() < 0.5:
            self.limits = self.limits[0], "3s"
        # Without a key of its own, a message has its place among those of its shard, of which each world has two.
        self.has_keys = chance.random() < 0.85 or parks or isinstance(self, PartitionedWorld)
        is_refused = random.Random(f"{self.SEED} refuses").random() < 0.5
        self._refuses = is_refused and not self.has_keys and self.then is not None
        """What has no key is moved away, untried."""
        if self._refuses:
            self.dispatch["missing_key"] = "error"
        self._guard = MemoryGuard()
        self._numbers = Counter()
        """How often this was begun: a message, or a piece of middleware for one."""
        self._handlings = {}
        """The newest of each message."""
        self._calls = Counter()
        """Of handlers, by handling."""
        self._failed_s = {}
        """By handling, when its handler has failed last."""
        self._overdue = set()
        """Handlings of which the newest attempt took too long, and ended well."""
        self._begins = {}
        """By handling, how much had been begun when its handler was called last."""
        self._latest = {}
        """By lane: the latest begin of what was handled with success, and its member, queue and epoch."""
        self._told = {}
        """By member and queue: what its hooks were told."""
        self._kept = set()
        """What was found waiting for its batch, though its queue or its shard leaves."""
        super().__init__(loop, trouble)

    def __repr__(self):
        around = "".join(f", {each.__name__}" for each in self.around)
        then = f", then {self.then}" if self.then else ""
        hooks = ", hooks" if self.has_hooks else ""
        keys = "" if self.has_keys else ", no keys"
        return f"{type(self).__name__}: {self.kind}{around}{hooks}{then}{keys}, {self.dispatch}, {self.limits}"

    def sections(self, name):
        told = super().sections(name)
        told["dispatch"] = told.get("dispatch", {}) | self.dispatch
        if not self.has_keys:
            told["group"] = told.get("group", {}) | {"key": "json:/none"}
        if self.then is not None:
            told["failure"] = {"attempts": 2, "then": self.then, "dead_message_queue": ASIDE}
        return told

    def verdicts(self):
        # Journals go by keys.
        return super().verdicts() if self.has_keys else ("unknown", "invalid")

    def create_queues(self):
        super().create_queues()
        self.broker.create_queue(OUT, ["out/>"])
        self.broker.create_queue(ASIDE, [ASIDE])

    def fault(self, text):
        # A handler that waits for a confirm cannot be cut short.
        is_kept = self.kind in PUBLISH and set(KEEPS_CANCELLATIONS) & set(self.around)
        if not (is_kept and text.endswith(("to leave", "flows bound"))):
            super().fault(text)

    # -- what fails, and what becomes of it

    def may_fail(self, message, where):
        """Fail sometimes, but not again and again."""
        identity = identity_of(message)
        self._numbers[identity, where] += 1
        chance = random.Random(f"{self.SEED} {identity} {where} {self._numbers[identity, where]}")
        if self._numbers[identity, where] <= 2 and chance.random() < 0.3:
            self.failed.append(identity)
            raise NotThisTime(where)

    def is_poison(self, identity):
        return self.then is not None and random.Random(f"{self.SEED} {identity}").random() < 0.15

    def aside(self):
        told = [] if self.then is None else [each.properties for each in self.broker.left_on(ASIDE)]
        return {(each[PARTITION_KEY_PROPERTY], each[ERROR_KEY_SEQUENCE_PROPERTY]) for each in told}

    def may_be_moved(self, identity):
        is_parked = isinstance(self, ParkingWorld) and identity[0] in {key for key, _ in self.failed}
        return is_parked or identity in self.aside() or super().may_be_moved(identity)

    @property
    def repeated(self):
        return [each for each in super().repeated if each not in self.failed]

    async def act(self, identity, *, is_first):
        if self.is_poison(identity):
            self.failed.append(identity)
            raise NotThisTime("always")
        self._numbers[identity] += 1
        chance = random.Random(f"{self.SEED} {identity} {self._numbers[identity]}")
        overdue = OVERDUE_ON_A_THREAD if self.kind == "thread" else OVERDUE
        way = one_of(chance, WELL, BADLY, {} if set(KEEPS_CANCELLATIONS) & set(self.around) else overdue)
        if self._numbers[identity] > 2 or not self.may_go_badly:
            way = one_of(chance, WELL)
        if way not in WELL:
            self.failed.append(identity)
        # Another member may have begun with it before this one is done.
        handling, began_s = self._handlings[identity], self._running_s()
        await way()
        if self._running_s() - began_s > 1 and bounds not in self.around:
            self._overdue.add(handling)
        await super().act(identity, is_first=is_first)
        await self._guard.once(handling.message, lambda value: [*(value or ()), identity[1]])

    def _running_s(self):
        # What was to be done by now is done first when the process goes on.
        return self.loop.time() - self.loop.stood_still_s

    # -- batches

    async def begin(self):
        await super().begin()
        if self.kind == "batch":
            self._look_at_batches()

    def _look_at_batches(self):
        """What leaves in good order waits for no others."""
        kept = {each for member in self.members.values() if member.is_there for each in _kept_by(member)}
        for each in kept & self._kept:
            self.fault(f"{identity_of(each.message)} waits for others in its batch, though its queue or shard leaves")
        self._kept = kept
        self._next_look = self.loop.call_later(0.5, self._look_at_batches)

    # -- handlers

    def add_handler(self, handlers, member):
        for function in self.around:
            self._surround(handlers, function)
        getattr(self, f"_add_{self.kind}")(handlers, member)

    def _surround(self, handlers, function):
        @handlers.middleware
        async def around(message: Message, proceed: Proceed) -> None:
            await function(self, message, proceed)

    def _meet(self, member, message, handling):
        """A handler is called with a message; return whether for the first time, and the message's identity."""
        identity, delivery = identity_of(message), handling.delivery
        self._handlings[identity] = handling
        self._calls[handling] += 1
        self._overdue.discard(handling)
        self.check_may_begin(member, identity, delivery.queue, delivery.epoch)
        self._look_at_hooks(member, delivery)
        if member.dispatcher.is_stopped(delivery.queue, delivery.epoch):
            self.fault(f"{identity} was begun although its queue has stopped")
        if self._refuses:
            self.fault(f"{identity} was begun although it has no key")
        if identity != identity_of(delivery.message):
            self.fault(f"{delivery.message} comes as {message}")
        _, latest = self._latest.get(handling.lane, (0, None))
        if not message.is_first_of_key and latest != (place := (member.name, delivery.queue, delivery.epoch)):
            self.fault(f"{identity} is not the first of its key in {place}, and the latest was handled in {latest}")
        self._begins[handling] = len(self.begun)
        if not message.is_first_of_key and isinstance(self, PartitionedWorld):
            self.fault(f"{identity} is not the first of its key, which the broker may have moved unseen")
        waited_s = self.loop.time() - self._failed_s.pop(handling, 0)
        if waited_s < SHORTEST_WAIT_S:
            self.fault(f"{identity} is tried again after {waited_s:.3f} s")
        running = sum(count for (name, _), count in self._running.items() if name == member.name)
        stuck = sum(each.route.attempts.is_stuck(each) for each in member.dispatcher.running())
        if self.kind not in ("batch", "receipt") and running >= self.dispatch["runners"] + stuck:
            self.fault(f"{member.name} has {running + 1} handlers at work")
        return identity not in self.begun, identity

    def look_at_end(self, member, handling):
        identity, calls = identity_of(handling.message), self._calls.pop(handling, 0)
        if handling.outcome is not None and handling.end_report is None and handling.attempts:
            done = self._begins[handling], (member.name, handling.queue, handling.epoch)
            self._latest[handling.lane] = max(done, self._latest.get(handling.lane, done))
            if handling in self._overdue:
                self.fault(f"{identity} is accepted, although its last attempt took too long")
        if calls > handling.attempts or (calls < handling.attempts and not (self.around or self._refuses)):
            self.fault(f"{identity} was begun {calls} times, and counts as tried {handling.attempts} times")

    def look_at_rest(self, member):
        pool, attempts = member.dispatcher._pool, member.dispatcher.running()
        runners = sum(each.get_name() == "lbg-runner" and not each.done() for each in pool._group._tasks)
        if attempts or (runners - pool._surplus, pool.batch_turns._free) != (self.dispatch["runners"],) * 2:
            self.fault(f"at rest there are {runners} runners, {pool._surplus} of them too many, and {attempts} run")

    def _add_single(self, handlers, member):
        @handlers.handler("orders/>")
        async def handle(message: Message) -> None:
            await self.work(member, message, CURRENT_HANDLING.get())

    def _add_thread(self, handlers, member):
        @handlers.handler("orders/>")
        def handle(message: Message) -> None:
            is_first, identity = self._meet(member, message, CURRENT_HANDLING.get())
            with self.at_work(member, identity):
                done_on_loop(self.act(identity, is_first=is_first))

    def _add_gated(self, handlers, member):
        @handlers.handler("orders/>")
        async def handle(message: Message) -> None:
            handling = CURRENT_HANDLING.get()
            await self._pass_gate(member, handling)
            await self.work(member, message, handling)

    async def _pass_gate(self, member, handling):
        """As in a sidecar whose application is away: it waits, and goes back if its queue is given up meanwhile."""
        gate = identity_of(handling.message), "gate"
        self._numbers[gate] += 1
        chance = random.Random(f"{self.SEED} {gate} {self._numbers[gate]}")
        with attempt_put_off():
            for _ in range(chance.choice([0, 0, 1, 3, 6])):
                await asyncio.sleep(0.1)
                machine = machines_of(member).get((handling.queue, handling.epoch))
                if machine is not None and machine.state is not FlowState.ACTIVE:
                    raise GivenBack

    def _add_receipt(self, handlers, member):
        @handlers.handler("orders/>")
        async def handle(message: Message, receipt: Receipt) -> None:
            try:
                await self.work(member, message, CURRENT_HANDLING.get())
            except NotThisTime as error:
                receipt.fail(error)
            else:
                asyncio.get_running_loop().call_later(0.02, receipt.accept)

    async def work(self, member, message, handling):
        is_first, identity = self._meet(member, message, handling)
        try:
            with self.at_work(member, identity):
                await self.act(identity, is_first=is_first)
        except NotThisTime:
            self._failed_s[handling] = self.loop.time()
            raise

    def _add_batch(self, handlers, member):
        count, wait = self.limits

        @handlers.batch_handler("orders/>", max_count=count, max_wait=wait)
        async def handle(batch: Batch) -> None:
            met = {item: self._meet(member, item.message, item.handling) for item in batch}
            works = {item: self.at_work(member, identity) for item, (_, identity) in met.items()}
            for work in works.values():
                work.__enter__()
            try:
                for item, (is_first, identity) in met.items():
                    await self._act_in_batch(item, identity, works, is_first=is_first)
            except BaseException as error:
                # With the one that has failed, all others have.
                self.failed += [met[item][1] for item in works]
                for work in works.values():
                    work.__exit__(type(error), error, error.__traceback__)
                raise
            if asyncio.current_task().cancelling():
                # By one that has cancelled the task of all of them, and nothing has waited since.
                self.failed += [met[item][1] for item in works]
            for work in works.values():
                work.__exit__(None, None, None)

    async def _act_in_batch(self, item, identity, works, *, is_first):
        is_settled_alone = random.Random(f"{self.SEED} alone {identity}").random() < 0.5
        failures = (NotThisTime,)
        if isinstance(self, StoppedWorld):
            # What fails with one whose queue stops would stop its own.
            is_settled_alone, failures = True, (NotThisTime, ValueError)
        try:
            await self.act(identity, is_first=is_first)
        except failures as error:
            if not is_settled_alone:
                raise
            works.pop(item).__exit__(type(error), error, error.__traceback__)
            item.fail(error)
            return
        if item.handling in self._overdue:
            # The time of all of them is over.
            self._overdue.update(each.handling for each in works)
            self.failed += [identity_of(each.message) for each in works]
        if is_settled_alone:
            works.pop(item).__exit__(None, None, None)
            item.accept()

    def _add_returns(self, handlers, member):
        @handlers.handler("orders/>", publishes=True)
        async def handle(message: Message):
            await self.work(member, message, CURRENT_HANDLING.get())
            return [_part(message, 1), _part(message, 2)]

    def _add_yields(self, handlers, member, *, transacted=False):
        @handlers.handler("orders/>", transacted=transacted)
        async def handle(message: Message):
            is_first, identity = self._meet(member, message, CURRENT_HANDLING.get())
            with self.at_work(member, identity):
                yield _part(message, 1)
                await self.act(identity, is_first=is_first)
                yield _part(message, 2)

    def _add_transacted(self, handlers, member):
        self._add_yields(handlers, member, transacted=True)

    # -- hooks

    def add_hooks(self, handlers, member):
        for kind in ("on_assigned", "on_drain", "on_revoked") if self.has_hooks else ():
            self._add_hook(handlers, member, kind)

    def _add_hook(self, handlers, member, kind):
        @getattr(handlers, kind)
        async def hook(queue, epoch):
            told = self._told.setdefault((member.name, queue), [])
            began = [each for what, *each in told if what == "begun"]
            ended = [each for what, *each in told if what == "ended"]
            is_open = kind == "on_assigned" or ["on_assigned", epoch] in ended
            if began != ended or [kind, epoch] in began or ["on_revoked", epoch] in began or not is_open:
                self.fault(f"{kind} of {queue}, {epoch}, behind {told}")
            running = {each.epoch for each in member.dispatcher.running() if each.queue == queue}
            if kind == "on_revoked" and epoch in running:
                self.fault(f"{kind} of {queue}, {epoch}, while it is handled")
            before = [each for what, each in began if what == "on_assigned" and ["on_revoked", each] not in began]
            # Whoever is still at work on a lost queue does not hold up the next epoch for good.
            if kind == "on_assigned" and not running.issuperset(before):
                self.fault(f"{kind} of {queue}, {epoch}, before {before} are over")
            told.append(("begun", kind, epoch))
            chance = random.Random(f"{self.SEED} {queue} {epoch} {kind}")
            try:
                await one_of(chance, WELL, *([] if isinstance(self, StoppedWorld) else [BADLY, OVERDUE]))()
            finally:
                told.append(("ended", kind, epoch))

    def _look_at_hooks(self, member, delivery):
        told = self._told.get((member.name, delivery.queue), [])
        is_open = ("ended", "on_assigned", delivery.epoch) in told
        is_told = self.has_hooks and delivery.queue in self.queues
        if is_told and (not is_open or ("begun", "on_revoked", delivery.epoch) in told):
            self.fault(f"{delivery} is handled behind {told}")

    # -- the end

    async def rest(self):
        if self.kind == "batch":
            self._next_look.cancel()
        await super().rest()

    async def afterwards(self):
        await super().afterwards()
        aside = self.aside()
        for key, count in self._published.items():
            numbers = [n for n in range(1, count + 1) if (key, n) not in aside]
            effects = self._guard.entries[key].value if key in self._guard.entries else []
            if [n for n in effects if (key, n) not in aside] != numbers:
                self.fault(f"effects of {key}: {effects}; aside: {aside}")
        for (name, queue), told in self._told.items():
            assigned, revoked = (
                [epoch for what, kind, epoch in told if (what, kind) == ("ended", each)]
                for each in ("on_assigned", "on_revoked")
            )
            if name == "b" and assigned != revoked:
                self.fault(f"{name} was told of {queue}: {told}")
        if self.kind in PUBLISH:
            self._look_at_parts(aside)

    def _look_at_parts(self, aside):
        """What handlers have published: all of what is settled, in order, and together if it was to be."""
        parts = [tuple(each.payload.decode().split()) for each in self.broker.left_on(OUT)]
        for key, count in self._published.items():
            expected = [(key, str(n), part) for n in range(1, count + 1) for part in "12" if (key, n) not in aside]
            found = [each for each in dict.fromkeys(parts) if each in expected]
            # What follows one that was refused is there before it.
            if found != expected and not (self._trouble and sorted(found) == sorted(expected)):
                self.fault(f"published for {key}: {parts}; aside: {aside}")
        pairs = [(each[:2], each[2]) for each in parts]
        whole = [((message, "1"), (message, "2")) for message, _ in pairs[::2]]
        if self.kind == "transacted" and list(zip(pairs[::2], pairs[1::2], strict=False)) != whole:
            self.fault(f"not together: {parts}")


def machines_of(member):
    """Those of its flows, by queue and epoch."""
    return {(each.machine.queue, each.machine.epoch): each.machine for each in member.supervisor.runners}


def _kept_by(member):
    """What waits for its batch in a member, and should not."""
    if member.supervisor is None or not member.dispatcher.batch_turns._free:
        return
    machines = machines_of(member)
    for handling in member.dispatcher.running():
        machine, waiting = machines.get((handling.queue, handling.epoch)), handling.route.attempts._put_off
        if machine is not None and handling in waiting and waiting[handling].interrupted_by is None:
            is_leaving = machine.state is FlowState.DRAINING and machine.cause.is_in_good_order
            if is_leaving or handling.shard in machine.closing_shards:
                yield handling


def _part(message, number):
    key, sequence = identity_of(message)
    return Message(f"out/{key}", f"{key} {sequence} {number}".encode())


PUBLISH = ("returns", "yields", "transacted")
KINDS = ("single", "thread", "gated", "receipt", "batch", *PUBLISH)


def drawn(story, seed):
    """The world of a seed."""
    return type(f"{story.__name__}{seed}", (DrawnWorld, story), {"SEED": seed, "MISHAPS": story.MISHAPS})
