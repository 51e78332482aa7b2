"""Conducting a re-striping from outside the group: does what the conductor says, and shows it what comes of it.

The shell around `core.restripe.conductor`. Its session's client name is the group's alone, so that the broker lets only
one conduct; and it gives up with its connection, so that one which was replaced does not come back.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import assert_never

import structlog

from lbg_runtime.admin.queues import QueueAdmin, open_queue_admin
from lbg_runtime.config.settings import GroupBackend, Provision, RebindMode, Settings
from lbg_runtime.core.group.control_codec import ControlMessageRefused, decode, encode
from lbg_runtime.core.group.control_messages import ControlMessage, GroupQuestion, Header, Inquiry, Life, QuestionId
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.core.restripe.conductor import (
    Conductor,
    CreateQueue,
    DeleteQueue,
    Done,
    Publish,
    Sight,
    Step,
    Subscribe,
    Unsubscribe,
    Wait,
    plan_under_way,
)
from lbg_runtime.core.restripe.records import StripePlan, encode_record, plan_of_topic, without_secret
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.errors import (
    ConfigError,
    ConnectFailed,
    LbgError,
    PublishFailed,
    QueueInUse,
    SempRefused,
    SempUnreachable,
    UserError,
)
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.clock import wall_us
from lbg_runtime.runtime.session import Session, open_session

_log = structlog.get_logger(__name__)

LOOK_AGAIN_S = 0.05
ASK_AGAIN_S = 1.0
"""Members are asked how they stand; what they say by themselves comes as often."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a re-striping has come."""

    plan: StripePlan
    moved: int
    """Shards that are in their new queue alone."""
    moving: int
    """Shards that change their queue at all."""
    waiting_for: str
    """Whom the next step waits for; empty where it waits for nobody."""


class Restriper:
    """Conducts one re-striping; `run` once. On one event loop."""

    def __init__(
        self, settings: Settings, queues: QueueAdmin, session: Session, on_progress: Callable[[Progress], None]
    ) -> None:
        self._shape = settings.group.shape()
        self._topic = settings.group.control_topic_name
        self._queues = queues
        self._session = session
        self._on_progress = on_progress
        self._subscriptions: dict[int, frozenset[str]] = {}
        self._depths: dict[int, int] = {}
        """Forgotten with every step, as it may change them."""
        self._book = StripingBook(1, self._shape.hash_count)
        self._picture = GroupPicture()
        self._is_heard = False
        self._has_news = asyncio.Event()
        self._is_cut_off = False

    async def run(self, queue_count: int) -> Progress | None:
        """Bring the group to so many queues, or go on with a re-striping to so many that is under way.

        None where the group has so many and nothing is under way: it may have been done by a run that could not tell.
        Raises, before anything is changed, `UserError` where the group is being brought to another number or is as no
        step leaves it, and `QueueUnfit` where a queue may throw messages away or deliver them out of order; at any time
        `SempError` and `TransportError` where the broker says no. Run again after any of them, and after a crash.
        """
        self._session.watch_connection(self._connection_changed)
        await self._session.subscribe(self._topic, self._arrived)
        await self._read_subscriptions(queue_count)
        for index in self._subscriptions:
            # A record that was thrown away after some redeliveries would be missed without a word.
            await self._queues.ensure_fit(self._shape.queue_name(index))
        await self._insist_on_no_parking()
        conductor = self._conductor(queue_count)
        if conductor is None:
            return None
        asking = asyncio.create_task(self._ask_now_and_then())
        try:
            if plan_under_way(self._subscriptions, self._topic) is None:
                await self._hear_of_members(conductor)
            while True:
                sight = await self._look(conductor)
                before = conductor.plan.generation
                step = conductor.next_step(sight)
                self._book.trust(conductor.plan)
                if conductor.plan.generation != before:
                    _log.warning("restripe_plan_renewed", outdated=before, generation=conductor.plan.generation)
                waiting_for = step.for_what if isinstance(step, Wait) else ""
                progress = Progress(
                    conductor.plan, conductor.moved_count(sight), len(conductor.moving_shards()), waiting_for
                )
                self._on_progress(progress)
                if isinstance(step, Done):
                    return progress
                await self._take(step, conductor)
        finally:
            asking.cancel()

    async def _hear_of_members(self, conductor: Conductor) -> None:
        """Wait until one is heard: what it knows of earlier re-stripings decides what the plan is called.

        Members teach each other the newest, so one speaks for all, whatever the clocks say. No bound: without members
        no step is taken anyway.
        """
        while not self._is_heard:
            if self._is_cut_off:
                raise _cut_off()
            moving = len(conductor.moving_shards())
            self._on_progress(Progress(conductor.plan, 0, moving, "the members to say how far they are"))
            await self._wait()

    # -- what is there

    async def _read_subscriptions(self, queue_count: int) -> None:
        """Those of the group's queues; it has them without gaps."""
        index = 0
        while True:
            found = await self._queues.subscriptions(self._shape.queue_name(index))
            if found is None and index >= max(queue_count, self._shape.queue_count):
                return
            if found is not None:
                self._subscriptions[index] = found
            index += 1

    async def _insist_on_no_parking(self) -> None:
        """What is parked belongs to a queue, and would stay behind when its shard moves. Raises `UserError`."""
        if plan_under_way(self._subscriptions, self._topic) is not None:
            return
        for index in self._subscriptions:
            queue = parking_queue(self._shape.name, index)
            if await self._queues.subscriptions(queue) is not None:
                raise UserError(
                    "failure.then: park",
                    f"parking queue {queue}",
                    "a group without parking queues: what is parked is replayed, members run without `park`, and the "
                    "parking queues are deleted first",
                )

    def _conductor(self, queue_count: int) -> Conductor | None:
        plan = plan_under_way(self._subscriptions, self._topic)
        if plan is None:
            present = self._queue_count()
            if present == queue_count:
                return None
            plan = StripePlan(wall_us(), present, queue_count, secrets.token_hex(16))
        elif plan.to_count != queue_count:
            raise UserError(
                "--queues",
                f"{queue_count}, while the group is brought from {plan.from_count} to {plan.to_count} queues",
                f"{plan.to_count}, to end that first",
            )
        return Conductor(self._of_count(plan.from_count), plan, self._topic)

    def _queue_count(self) -> int:
        """By what the queues subscribe to, whatever the settings say; raises `UserError` where it is no layout."""
        with_shards = {
            index: frozenset(topic for topic in topics if topic.startswith(f"{self._shape.hash_prefix}/"))
            for index, topics in self._subscriptions.items()
        }
        count = sum(map(bool, with_shards.values()))
        if not 0 < count <= self._shape.hash_count:
            raise UserError("group.name", f"{count} queues of {self._shape.name} with shards", "queues of the group")
        shape = self._of_count(count)
        for index in range(count):
            found, expected = with_shards.get(index, frozenset()), frozenset(shape.subscriptions(index))
            if found != expected:
                odd = sorted(found ^ expected)[0]
                raise UserError(
                    shape.queue_name(index),
                    f"{'no ' if odd in expected else ''}subscription {odd}",
                    f"what it has as one of {count} queues; `lbg group plan` says what to do",
                )
        return count

    def _of_count(self, queue_count: int) -> GroupShape:
        shape = self._shape
        return GroupShape(shape.name, shape.hash_prefix, shape.hash_count, queue_count)

    async def _look(self, conductor: Conductor) -> Sight:
        if not self._depths:
            self._depths = {
                index: await self._queues.depth(self._shape.queue_name(index)) for index in self._subscriptions
            }
        owned = self._picture.owners
        return Sight(
            self._subscriptions,
            self._depths,
            {index for index in range(conductor.plan.queue_total) if self._shape.queue_name(index) in owned},
            self._book.now if self._is_heard else None,
        )

    # -- what is done

    async def _take(self, step: Step, conductor: Conductor) -> None:
        if self._is_cut_off:
            raise _cut_off()
        try:
            is_done = await self._do(step, conductor)
        except (SempRefused, SempUnreachable, PublishFailed) as error:
            raise _without(_secret_of(step, conductor), error) from None
        self._depths = {}
        if is_done:
            conductor.did(step)
            _log.info("restripe_step_done", step=type(step).__name__, **_facts(step, self._topic))

    async def _do(self, step: Step, conductor: Conductor) -> bool:
        """Whether something is done now that was not before."""
        match step:
            case CreateQueue(index):
                await self._queues.create_queue(self._shape.queue_name(index))
                self._subscriptions[index] = (
                    await self._queues.subscriptions(self._shape.queue_name(index)) or frozenset()
                )
            case Subscribe(index, topic):
                await self._queues.subscribe(self._shape.queue_name(index), topic)
                self._subscriptions[index] |= {topic}
            case Unsubscribe(index, topic):
                await self._queues.unsubscribe(self._shape.queue_name(index), topic)
                self._subscriptions[index] -= {topic}
            case Publish(record):
                await self._session.send(encode_record(record, conductor.topic))
            case DeleteQueue(index):
                return await self._delete(index)
            case Wait() | Done():
                await self._wait()
                return False
            case _:
                assert_never(step)
        return True

    async def _delete(self, index: int) -> bool:
        try:
            await self._queues.delete_queue(self._shape.queue_name(index))
        except QueueInUse:
            # Its members have heard that it is over, and are on their way out.
            await self._wait()
            return False
        del self._subscriptions[index]
        return True

    async def _wait(self) -> None:
        self._has_news.clear()
        try:
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self._has_news.wait()
        except TimeoutError:
            pass

    # -- what members say

    async def _ask_now_and_then(self) -> None:
        number = 0
        life = Life(wall_us(), secrets.randbits(53))
        name = MemberId(f"restriper-{life.nonce}")
        while True:
            number += 1
            header = Header(GroupName(self._shape.name), name, life, number)
            question = GroupQuestion(header, QuestionId(f"{name}/{number}"))
            self._session.send_direct(Message(self._topic, encode(question)))
            await asyncio.sleep(ASK_AGAIN_S)

    def _arrived(self, message: Message) -> None:
        try:
            heard: ControlMessage | Inquiry = decode(message.payload, GroupName(self._shape.name))
        except ControlMessageRefused:
            # Another group's, or no control message at all: the members log it.
            return
        self._picture.hear(heard)
        for beat in self._picture.members.values():
            self._is_heard = True
            self._book.hear(beat.striping)
        self._has_news.set()

    def _connection_changed(self, is_up: bool) -> None:
        if not is_up:
            self._is_cut_off = True


def _facts(step: Step, control_topic: str) -> Mapping[str, object]:
    """What the log says of a step: what it is about, without the secret of the re-striping."""
    match step:
        case Subscribe(index, topic) | Unsubscribe(index, topic):
            return {"queue_index": index, "topic": without_secret(control_topic, topic)}
        case CreateQueue(index) | DeleteQueue(index):
            return {"queue_index": index}
        case Publish(record):
            return {"record": str(record)}
        case Wait() | Done():
            return {}
        case _:
            assert_never(step)


def _without(secret: str, error: SempRefused | SempUnreachable | PublishFailed) -> LbgError:
    """The same error where it quotes the topic of the records, or a request that names it."""

    def hide(text: str) -> str:
        return text.replace(secret, "***")

    match error:
        case SempRefused(request=request, http_status=status, code=code, is_repeated=again):
            return SempRefused(hide(request), status, code, error.status, hide(error.description), is_repeated=again)
        case SempUnreachable():
            return SempUnreachable(error.url, hide(error.reason))
        case PublishFailed():
            return type(error)(hide(error.topic), hide(error.reason))


def _secret_of(step: Step, conductor: Conductor) -> str:
    """That of the plan that the step is about; it may be an older one than is conducted."""
    topic = step.topic if isinstance(step, Subscribe | Unsubscribe) else conductor.topic
    return (plan_of_topic(conductor.control_topic, topic) or conductor.plan).secret


def _cut_off() -> ConnectFailed:
    return ConnectFailed("the broker", "the connection was lost, or another one conducts; start again to go on")


@asynccontextmanager
async def open_restriper(settings: Settings, on_progress: Callable[[Progress], None]) -> AsyncIterator[Restriper]:
    """A restriper with an administrator's and a client's session of its own.

    Raises `ConfigError` where the settings do not allow it, or nobody answers.
    """
    group = settings.group
    refusals: Mapping[str, tuple[str, str]] = {}
    if group.backend is not GroupBackend.EXCLUSIVE:
        refusals = {"group.backend": (group.backend.value, "exclusive: the partitions are a setting of the queue")}
    elif settings.rebind.mode is not RebindMode.COOPERATIVE:
        refusals = {"rebind.mode": (settings.rebind.mode.value, "cooperative: other members do not talk to each other")}
    elif group.provision is not Provision.NONE:
        refusals = {
            "group.provision": (
                group.provision.value,
                "none: a member that makes queues by old settings would make the old layout again",
            )
        }
    for where, (found, expected) in refusals.items():
        raise ConfigError(where, found, expected)
    name = f"lbg-restriper-{group.name}"
    # Who was replaced must not come back and replace the other in its turn: both would give up.
    opening = open_session(settings.outside_connection, name, settings.transport.client_path, reconnects=False)
    async with open_queue_admin(settings) as queues, opening as session:
        yield Restriper(settings, queues, session, on_progress)
