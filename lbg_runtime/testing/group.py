"""A group of members that a test runs, breaks and inspects.

More than 400 lines, as all that a test asks of its group is asked of one object.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lbg_runtime.config.settings import GroupBackend, Settings
from lbg_runtime.core.parking.identity import MessageIdentity
from lbg_runtime.core.parking.records import ParkedMessage, UnparkAsked, encode_entry
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import shard_of
from lbg_runtime.model.ids import MemberId
from lbg_runtime.model.message import NO_HEADERS, NO_PROPERTIES, Headers, Message, PropertyValue
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.unawaited import Unawaited
from lbg_runtime.runtime.membership import Membership
from lbg_runtime.runtime.parking.parked_queue import name_of_key
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING
from lbg_runtime.runtime.supervisor import StopReport
from lbg_runtime.testing.balance import beginnings, imbalances, uneven
from lbg_runtime.testing.failures import NotReached, holds
from lbg_runtime.testing.group_broker import GroupBroker
from lbg_runtime.testing.handled import Handled, Payload, differences, handled_by
from lbg_runtime.testing.handler_watch import CURRENT_WATCH, Attempt, Wrapper, identity_of_moved
from lbg_runtime.testing.life import Life, LifeState
from lbg_runtime.testing.moments import Moments
from lbg_runtime.testing.own_wait import OwnWait
from lbg_runtime.testing.parked import parked_by_queue, parking_queues, why_aside
from lbg_runtime.testing.standstill import Reasons, Standstill

PATIENCE_S = 120.0
"""Virtual time that a test waits for something: above what a lost connection, a time-out and the next attempt take."""

LOOK_S = 1.0
"""Interval, in virtual time, at which the kit checks what it is not notified of."""

PUBLISHER_ID = "publisher"


@dataclass(slots=True)
class Sent:
    """What happened to the messages of the test."""

    confirmed: list[tuple[Confirmation, int]] = field(default_factory=list)
    """Each with the moment of its confirmation."""
    failures: list[str] = field(default_factory=list)
    """The errors of those that the broker refused."""


class Group:
    """The group that `running` gives to a test. Used on the test's event loop, where all time is virtual.

    Waits are bounded (`within_s`, two minutes of virtual time) and raise `NotReached`, which says what is missing, and
    why. If a member ends by itself, the next wait raises its error. Members are referred to by name; raises `UserError`
    for one that does not exist, or is not in a state for the request.
    """

    def __init__(self, settings: Settings, handlers: Handlers, seed: int, around: Wrapper | None) -> None:
        """Created by `running`."""
        self.settings = settings
        self.shape: GroupShape = settings.group.shape()
        self.lives: list[Life] = []
        """Every life of every member, in the order in which they began."""
        self.sent = Sent()
        self.unawaited: list[str] = []
        """A line for each coroutine that a member, most likely a handler, has made and not awaited."""
        self._handlers = handlers
        self._seed = seed
        self._around = around
        self._moments = Moments()
        self._something_happened = asyncio.Event()
        self._own_wait = OwnWait(self._standstill)
        self.broker = GroupBroker(self._moments, self._something_happened.set)
        """`fail()` and `restore()` it; `depth(...)` and `left_on(...)` show what lies on a queue."""
        self._is_partitioned = settings.group.backend is GroupBackend.PARTITIONED
        if self._is_partitioned:
            self.broker.make_partitioned(settings)
        self._memberships: dict[str, Membership] = {}
        self._messenger = self.broker.make_transport(PUBLISHER_ID)
        self._publisher = HashedPublisher(
            self._messenger,
            self.shape,
            settings.group.hash_function,
            publisher_id=PUBLISHER_ID,
            key_source=settings.group.key,
        )

    # -- messages

    async def publish(
        self,
        topic: str,
        *payloads: Payload,
        key: str | None = None,
        properties: Mapping[str, PropertyValue] = NO_PROPERTIES,
        headers: Headers = NO_HEADERS,
    ) -> None:
        """Publish messages of one key, in this order; return when they are sent.

        Without `key`, the key is found by the rule of `group.key`. Raises `UserError` for no payload, a message without
        a key, or an impossible topic.
        """
        if not payloads:
            # Otherwise a test that meant an empty message would publish none, and pass.
            raise UserError("group.publish", f"no payload for {topic}", 'at least one; b"" is an empty message')
        self._own_wait.note()
        for payload in payloads:
            content = payload.encode() if isinstance(payload, str) else payload
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answer = await self._publisher.submit(
                        topic, content, key=key, properties=properties, headers=headers
                    )
            except TimeoutError:
                raise NotReached("not published", PATIENCE_S, self._standstill().lines) from None
            answer.add_done_callback(self._note_answer)

    async def settled(self, within_s: float = PATIENCE_S) -> None:
        """Wait until everything that was published is handled, moved or parked, and settled at the broker."""
        __tracebackhide__ = True
        await self._until(self._is_settled, "not settled", within_s, self._standstill)

    async def started(self, key: str | None = None, number: int | None = None) -> Attempt:
        """Wait until a handler runs, for this key and this message of it if they are given; return that call.

        One that returns at once is not seen running: `attempts` has it.
        """
        __tracebackhide__ = True

        def running() -> list[Attempt]:
            return [each for each in self.attempts(key, number) if each.is_running]

        def why() -> Reasons:
            reasons, ended = self._standstill(), self.attempts(key, number)
            last = (f"its last call has ended, {ended[-1]}: attempts() has {len(ended)} of them",) if ended else ()
            return Reasons((*reasons.lines, *last), reasons.error)

        whose = ("" if key is None else f" of {key}") + ("" if number is None else f" #{number}")
        await self._until(lambda: bool(running()), f"no handler{whose} seen running", PATIENCE_S, why)
        return running()[-1]

    def handled(self, key: str | None = None) -> list[Handled]:
        """What was handled successfully until now, of all keys or of this one, in the order in which it ended."""
        return [each for each in handled_by(self.lives, self.shape) if key in (None, each.key)]

    def attempts(self, key: str | None = None, number: int | None = None) -> list[Attempt]:
        """Every call of a handler until now, for all keys or this one, in the order in which they began."""
        every = sorted((each for life in self.lives for each in life.watch.attempts), key=lambda each: each.start_ns)
        return [each for each in every if key in (None, each.key) and number in (None, each.number)]

    def error_queue(self) -> list[Message]:
        """What was moved to the error queue, in order; the properties have the reason (`lbg_error` and others)."""
        return self.broker.left_on(self.settings.error_queue)

    def dead_message_queue(self) -> list[Message]:
        """What was moved to the dead message queue, as for `error_queue`."""
        return self.broker.left_on(self.settings.dead_message_queue)

    def parked(self, key: str | None = None) -> list[ParkedMessage]:
        """What is parked, of all keys or of this one, in the order of its replay: `original`, `attempts` and `error`.

        A message that followed a failed one of its key has no attempts and no error of its own.
        """
        return [each for found in parked_by_queue(self.broker, self.shape, key).values() for each in found]

    async def unpark(self, key: str) -> None:
        """Ask for the replay of what is parked of a key, as `lbg parked unpark` does; return when the broker has that.

        `settled` does not wait for the replay; `until(lambda: not group.parked(key))` does. Raises `UserError` if
        nothing of the key is parked.
        """
        queues = parked_by_queue(self.broker, self.shape, key)
        if not queues:
            raise UserError("group.unpark", repr(key), "a key of which something is parked")
        try:
            async with asyncio.timeout(PATIENCE_S):
                for queue in queues:
                    await self._messenger.send(encode_entry(UnparkAsked(name_of_key(key)), queue))
        except TimeoutError:
            raise NotReached(f"the broker was not told to unpark {key}", PATIENCE_S, self._standstill().lines) from None

    def assert_handled(self, expected: Mapping[str, Sequence[Payload]]) -> None:
        """Assert that exactly these payloads were handled, by key, in this order, and that no `await` was forgotten.

        One that came again counts once.
        """
        __tracebackhide__ = True
        lines = [*differences(expected, self.handled()), *self.unawaited]
        if lines:
            why, moved = self._standstill(), [*self.error_queue(), *self.dead_message_queue()]
            aside = why_aside(self.parked(), moved)
            raise AssertionError("\n  ".join(["not handled as expected:", *lines, *aside, *why.lines])) from why.error

    def assert_failed(self, key: str, number: int, error: type[BaseException], times: int | None = None) -> None:
        """Assert that handling this message raised such an error, `times` times if that is given, and no other."""
        __tracebackhide__ = True
        attempts = self.attempts(key, number)
        failed = [each for each in attempts if isinstance(each.error, error)]
        others = [each for each in attempts if each.error is not None and each not in failed]
        if others or not failed or times not in (None, len(failed)):
            wanted = f"{error.__name__}{'' if times is None else f', {times} times'}"
            raise AssertionError(f"{key} #{number}: expected {wanted}; its attempts were {attempts}")

    # -- members

    @property
    def members(self) -> dict[str, LifeState]:
        """The state of every member, by name."""
        return {name: life.state for name, life in self._latest().items()}

    def start(self, member: str) -> None:
        """Start a life of a new member, or of one that is gone. `balanced` waits until it has its share."""
        latest = self._latest().get(member)
        if latest is not None and latest.state not in (LifeState.KILLED, LifeState.STOPPED):
            raise UserError("group.start", f"{member}, which is {latest.state.value}", "a member that is gone, or new")
        membership = self._memberships.get(member)
        if membership is None:
            if any(known.place is not None for known in self._memberships.values()):
                raise UserError("group.start", repr(member), f"one of {', '.join(self._memberships)}: they are counted")
            membership = Membership(MemberId(member), None)
        self._begin(membership)

    async def stop(self, member: str) -> StopReport:
        """Make a member leave in good order, as SIGTERM does; return how it left."""
        report = await self._life("stop", member, LifeState.RUNNING, LifeState.PARTITIONED).stop()
        self._raise_failures()
        return report

    def kill(self, member: str) -> None:
        """End a member as SIGKILL does: at once, in the middle of whatever it does, without running another line."""
        self._life("kill", member, LifeState.RUNNING, LifeState.PARTITIONED, LifeState.PAUSED).kill()

    def pause(self, member: str) -> None:
        """Stop a member's process, as SIGSTOP does; after 10.5 s the broker breaks its connection."""
        self._life("pause", member, LifeState.RUNNING).pause()

    def resume(self, member: str) -> None:
        """Let a paused member go on."""
        self._life("resume", member, LifeState.PAUSED).recover()

    def partition(self, member: str) -> None:
        """Break a member's connection, and keep it from coming back. Its handlers go on."""
        self._life("partition", member, LifeState.RUNNING).partition()

    def heal(self, member: str) -> None:
        """Let a partitioned member connect again; it does so within a second."""
        self._life("heal", member, LifeState.PARTITIONED).recover()

    async def balanced(self, within_s: float = PATIENCE_S) -> None:
        """Wait until every queue is with the member that it belongs to, as far as members are at work."""
        __tracebackhide__ = True
        await self._until(
            lambda: not self._imbalances(), "not balanced", within_s, lambda: Reasons(tuple(self._imbalances()))
        )

    def owner(self, key: str) -> str | None:
        """The member to which the broker feeds the messages of a key; None while there is none."""
        shard = shard_of(self.settings.group.hash_function, key, self.shape.hash_count)
        index = 0 if self._is_partitioned else self.shape.queue_index_of_shard(shard)
        client = self.broker.fed_with(self.shape.queue_name(index), key)
        return next((life.member for life in self.lives if life.client_name == client), None)

    # -- time

    async def advance(self, seconds: float) -> None:
        """Let this much virtual time pass. It takes no real time."""
        with self._own_wait.held():
            await asyncio.sleep(seconds)
        self._raise_failures()

    async def until(self, condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        """Wait until the condition holds; it is checked whenever something happens in the group, and once a second."""
        __tracebackhide__ = True
        await self._until(condition, "the condition given to until() was not met", within_s, self._standstill)

    # -- for `running`

    def note_unawaited(self, seen: Unawaited) -> None:
        """Note a coroutine that was never awaited, if a member of this group made it and was not killed."""
        watch = CURRENT_WATCH.get(None)
        if watch is None or watch.is_over or all(life.watch is not watch for life in self.lives):
            return
        handling = CURRENT_HANDLING.get(None)
        message = f", handling {handling.key} #{handling.message.key_sequence or '?'}" if handling is not None else ""
        self.unawaited.append(f"{watch.member}{message}: never awaited {seen.coroutine}, at {seen.place}")

    async def open(self, memberships: Sequence[Membership]) -> None:
        """Start the first lives and wait until every queue is with its member."""
        await self._messenger.open()
        for membership in memberships:
            self._begin(membership)
        self._own_wait.begin()
        if memberships:
            await self.balanced()

    async def leave(self) -> None:
        """Stop all members at work, in good order."""
        at_work = [life for life in self._latest().values() if life.state in (LifeState.RUNNING, LifeState.PARTITIONED)]
        await asyncio.gather(*(life.stop() for life in at_work))
        self._raise_failures()

    async def close(self) -> None:
        """End everything that is left, all at once and regardless of how it ends."""
        self._own_wait.end()
        for life in self.lives:
            life.end()
        for life in self.lives:
            await life.dispose()
        await self._publisher.close(timeout_ms=1_000)
        await self._messenger.close()

    def left(self) -> set[tuple[str, int]]:
        """Key and number of the messages that lie on a queue of the group, or are parked next to one."""
        queues = (*self.shape.queue_names(), *parking_queues(self.shape))
        messages = [each for queue in queues for each in self.broker.left_on(queue)]
        return {(message.key or "", message.key_sequence or 0) for message in messages}

    def moved(self) -> set[MessageIdentity]:
        """What is in the error queue or the dead message queue."""
        found = map(identity_of_moved, (*self.error_queue(), *self.dead_message_queue()))
        return {identity for identity in found if identity is not None}

    # -- parts

    def _begin(self, membership: Membership) -> None:
        self._memberships[membership.member] = membership
        self.lives.append(
            Life(
                len(self.lives) + 1,
                membership,
                self.settings,
                self._handlers,
                self.broker,
                self._moments,
                self._seed,
                self._around,
                self._something_happened.set,
            )
        )

    def _latest(self) -> dict[str, Life]:
        return {life.member: life for life in self.lives}

    def _life(self, verb: str, member: str, *states: LifeState) -> Life:
        life = self._latest().get(member)
        fit = [name for name, state in self.members.items() if state in states]
        if life is None or life.state not in states:
            found = repr(member) if life is None else f"{member}, which is {life.state.value}"
            raise UserError(f"group.{verb}", found, f"one of {', '.join(fit)}" if fit else "there is none it is for")
        return life

    def _is_settled(self) -> bool:
        if self.sent.failures:
            raise NotReached("not settled", None, self.sent.failures)
        if self._publisher.counts.unconfirmed:
            return False
        return not any(self.broker.depth(queue) for queue in self.shape.queue_names())

    def _imbalances(self) -> list[str]:
        at_work = [life for life in self.lives if life.is_at_work]
        if waits := beginnings(at_work):
            return waits
        if self._is_partitioned:
            return uneven(at_work, self.broker.partition_owners(self.shape.queue_name(0)))
        return imbalances(self.shape.queue_names(), at_work, self.broker)

    def _standstill(self) -> Reasons:
        now_s = asyncio.get_running_loop().time()
        why = Standstill(self.settings, self._handlers, self.broker, self._latest(), now_s).reasons()
        if unconfirmed := self._publisher.counts.unconfirmed:
            return Reasons((*why.lines, f"{unconfirmed} published messages have no answer of the broker"), why.error)
        return why

    async def _until(
        self, condition: Callable[[], bool], what: str, within_s: float, why: Callable[[], Reasons]
    ) -> None:
        __tracebackhide__ = True
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        while True:
            self._raise_failures()
            if holds(condition):
                return
            if (left_s := deadline_s - loop.time()) <= 0:
                reasons = why()
                raise NotReached(what, within_s, reasons.lines) from reasons.error
            self._something_happened.clear()
            timer = loop.call_later(min(LOOK_S, left_s), self._something_happened.set)
            try:
                # Bounded by the timer.
                with self._own_wait.held():
                    await self._something_happened.wait()
            finally:
                timer.cancel()

    def _raise_failures(self) -> None:
        for life in self.lives:
            if (failure := life.take_failure()) is not None:
                raise failure

    def _note_answer(self, answer: "asyncio.Future[Confirmation]") -> None:
        error = answer.exception()
        if error is None:
            self.sent.confirmed.append((answer.result(), self._moments.next_ns()))
        else:
            self.sent.failures.append(f"publishing failed: {error}")
        self._something_happened.set()
