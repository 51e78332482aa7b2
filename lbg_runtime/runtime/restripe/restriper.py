"""Conducts a re-striping from outside the group: the shell around `core/restripe/conductor.py`, which takes its steps.

The client name of its session depends only on the group, so the broker lets only one conduct. It gives up if it loses
its connection, so one that was replaced does not come back; and before every attempt of every request over SEMP, it
makes sure that it still has its connection.

More than 400 lines, because every step of a re-striping is taken here, and every request sent.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

import structlog

from lbg_runtime.admin.account import open_semp
from lbg_runtime.admin.queues import QueueAdmin, queue_admin
from lbg_runtime.admin.sight import insist_on_broker_of
from lbg_runtime.admin.stored import store_queue_count, stored_queue_count
from lbg_runtime.config.broker_names import conductor_name
from lbg_runtime.config.settings import Settings
from lbg_runtime.core.group.membership_timing import MembershipTiming
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
)
from lbg_runtime.core.restripe.layout import SeenQueues, ensure_target
from lbg_runtime.core.restripe.records import StripePlan, encode_record
from lbg_runtime.model.errors import (
    PublishFailed,
    PublishRefused,
    QueueInUse,
    QueueUnfit,
    SempError,
    SempRefused,
    SempUnreachable,
    TransportError,
    UserError,
)
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.clock import wall_us
from lbg_runtime.runtime.restripe.fitness import (
    insist_on_few_moves,
    insist_on_fit_names,
    insist_on_fit_queues,
    insist_on_fit_settings,
    insist_on_fit_topic,
    insist_on_no_parking,
    insist_on_target,
    insist_on_unclaimed_queues,
    look_again,
    with_refusing_queues,
)
from lbg_runtime.runtime.restripe.hearing import Hearing
from lbg_runtime.runtime.restripe.reporting import facts_of, secret_of, without
from lbg_runtime.runtime.session import Session, open_session

_log = structlog.get_logger(__name__)

HELD_S = 20.0
"""How late a request of an earlier conductor may arrive. A conductor that is replaced finds out within 3 s, and gives a
request up after 10 s (`SempClient.fence`), but something on the way may hold the request longer. SEMP has no means to
refuse it, so we wait until it would change nothing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a re-striping has got."""

    plan: StripePlan
    moved: int
    """Shards that are only in their new queue."""
    moving: int
    """All shards that change their queue."""
    waiting_for: str
    """What the next step waits for; empty if it waits for nothing."""


class Restriper:
    """Conducts one re-striping, on one event loop; `run` once."""

    def __init__(
        self,
        settings: Settings,
        queue_count: int,
        queues: QueueAdmin,
        session: Session,
        on_progress: Callable[[Progress], None],
        store_count: Callable[[int], Awaitable[None]],
        stored_count: Callable[[], Awaitable[int | None]],
        insist_on_broker: Callable[[], Awaitable[None]],
    ) -> None:
        """`queue_count`: how many queues the group is to have at the end. `store_count` stores how many there are; it
        is called while nobody can begin another re-striping. `stored_count` returns the stored number; None if nothing
        is stored. `insist_on_broker` raises `SempElsewhere` if `queues` are not those of the session's broker; it is
        asked before anything is decided by the messages and flows of queues: another broker would call all queues
        empty and out of use, and the administration's address may lead to one at any time."""
        self._queue_count = queue_count
        self._shape = settings.group.shape()
        self._topic = settings.group.control_topic_name
        self._queues = queues
        self._session = session
        self._on_progress = on_progress
        self._store_count = store_count
        self._stored_count = stored_count
        self._insist_on_broker = insist_on_broker
        self._quiet_from_s = 0.0
        """From when on no request of an earlier conductor can arrive any more, on the loop's clock; 0 if none can."""
        self._seen = SeenQueues(self._shape, self._topic, {})
        self._in_use = ""
        """Why the queue that is to be deleted could not be; empty if none is waited for."""
        timing = MembershipTiming(heartbeat_ms=settings.membership.heartbeat_ms)
        self._hearing = Hearing(self._shape, self._topic, session, timing)

    async def run(self) -> Progress | None:
        """Bring the group to its new number of queues, or go on with a re-striping to that number.

        Returns None if the group has that many, its members know, and nothing is under way: an earlier run may have
        done it. What is left of a plan that never began is taken away.

        Before anything else is changed, raises `UserError` if the group is being brought to another number, is in a
        state that no step leaves behind, parks, or has members of another version or too many counted ones; and
        `QueueUnfit` if a queue is closed, may throw messages away or deliver them out of order, or is added and may be
        somebody else's. At the end, raises `UserError` if somebody else has changed what the queues subscribe to. At
        any time, raises `SempError` and `TransportError` if the broker refuses or cannot be reached. It may be run
        again after any of them, and after a crash; but after `ConductorCutOff` only if nobody else conducts.
        """
        try:
            return await self._run()
        except (SempError, TransportError, UserError):
            # If another conductor has caused this, by what it did to us or the queues, that is the error to raise: "run
            # it again" would be bad advice.
            await self._hearing.wait()
            self._hearing.insist_on_no_cut()
            raise

    async def insist_on_connection(self) -> None:
        """Raise `ConductorCutOff` if somebody else may conduct by now. Called before every request over SEMP."""
        await self._hearing.insist_on_connection()

    async def _run(self) -> Progress | None:
        await self._hearing.begin()
        asking = asyncio.create_task(self._hearing.ask_now_and_then())
        try:
            return await self._bring_there()
        finally:
            asking.cancel()

    async def _bring_there(self) -> Progress | None:
        await self._look_at_queues(self._queue_count)
        if self._seen.plans():
            self._quiet_from_s = asyncio.get_running_loop().time() + HELD_S
        await self._clear_leftovers()
        conductor = await self._conductor()
        present = self._queue_count if conductor is None else conductor.plan.from_count
        if not self._quiet_from_s and await self._stored_count() not in (None, present):
            # An earlier run that found nothing to move may have asked to store that count, which leaves no other trace.
            self._quiet_from_s = asyncio.get_running_loop().time() + HELD_S
        if conductor is None:
            # Before anything else: a later run could no longer tell that such a request may be under way.
            await self._wait_for_quiet(Progress(StripePlan(0, present, present, ""), 0, 0, ""))
            await self.insist_on_connection()
            await self._store_count(self._queue_count)
            self._tell_of_queues_left()
            return None
        plan = conductor.plan
        is_maybe_known = self._seen.has_begun(plan)
        if not is_maybe_known:
            insist_on_fit_topic(plan, self._topic)
            insist_on_few_moves(plan, self._shape)
            await insist_on_unclaimed_queues(self._queues, plan, self._seen)
        await insist_on_fit_queues(self._queues, plan, self._seen)
        if self._seen.is_unmoved(plan):
            await self._insist_on_no_parking(plan)
        return await self._conduct(conductor, is_maybe_known=is_maybe_known)

    async def _conduct(self, conductor: Conductor, *, is_maybe_known: bool) -> Progress:
        # While no shard has moved, the plan may or may not have been published.
        is_to_begin = self._seen.is_unmoved(conductor.plan)
        if is_to_begin:
            await self._hear_of_members(conductor, is_maybe_known=is_maybe_known)
            # Looked at again, as parking may have been turned on meanwhile.
            await self._insist_on_no_parking(conductor.plan)
        while True:
            sight = await self._look(conductor)
            before = conductor.plan.generation
            step = conductor.next_step(sight)
            self._hearing.book.trust(conductor.plan)
            if conductor.plan.generation != before:
                _log.warning("restripe_plan_renewed", outdated=before, generation=conductor.plan.generation)
            waiting_for = self._hearing.with_hindrance(step.for_what) if isinstance(step, Wait) else self._in_use
            moved, moving = conductor.moved_count(sight), len(conductor.moves)
            progress = Progress(conductor.plan, moved, moving, waiting_for)
            self._on_progress(progress)
            if isinstance(step, Done):
                await self._look_at_the_end(conductor.plan)
                self._tell_of_queues_left()
                return progress
            if is_to_begin and step == Publish(conductor.plan):
                # A late request could take the topic from a queue that must get the plan and its markers.
                await self._wait_for_quiet(progress)
                if not await self._is_as_seen(conductor, is_maybe_known=is_maybe_known):
                    continue
                is_to_begin = False
            if step == Unsubscribe(0, conductor.topic):
                # Queue 0 has the last trace of this one: while it is there, nobody begins another.
                await self._wait_for_quiet(progress)
                await self.insist_on_connection()
                await self._store_count(self._queue_count)
            await self._take(step, conductor)

    async def _hear_of_members(self, conductor: Conductor, *, is_maybe_known: bool) -> None:
        """Wait until each member had time to speak, and one is heard: its generation decides that of the plan.

        Members teach each other the newest generation, so any of them speaks for all, whatever the clocks say. No
        bound: without members no step is taken anyway. Raises `UserError` if a member does not fit the plan, unless
        members may know the plan already.
        """
        while True:
            if not is_maybe_known:
                self._hearing.insist_on_fit_members(conductor.plan)
            if self._hearing.is_heard and self._hearing.has_heard_all:
                return
            await self.insist_on_connection()
            self._on_progress(Progress(conductor.plan, 0, len(conductor.moves), self._hearing.waits_for))
            await self._hearing.wait()

    # -- what exists

    async def _look_at_queues(self, queue_count: int) -> None:
        await self._insist_on_broker()
        self._seen = await look_again(self._queues, self._seen, queue_count)

    async def _clear_leftovers(self) -> None:
        """Remove what is left of plans that never began or are over: nobody could bring those to an end."""
        leftovers = self._seen.leftover_plans(self._queue_count)
        if not leftovers:
            return
        await self._wait_for_quiet(Progress(max(leftovers, key=lambda plan: plan.generation), 0, 0, ""))
        await self._look_at_queues(self._queue_count)
        leftovers &= self._seen.leftover_plans(self._queue_count)
        for plan in sorted(leftovers, key=lambda plan: plan.generation):
            _log.warning(
                "restripe_leftover_cleared", generation=plan.generation, before=plan.from_count, target=plan.to_count
            )
            await self._take_away(plan)

    async def _take_away(self, plan: StripePlan) -> None:
        conductor = Conductor(self._shape, plan, self._topic)
        for index in sorted(self._seen.subscriptions, reverse=True):
            if conductor.topic in self._seen.subscriptions[index]:
                await self._take(Unsubscribe(index, conductor.topic), conductor)

    def _tell_of_queues_left(self) -> None:
        """Log the queues beyond the group's, which a plan that never began may have left, or somebody else made."""
        if left := [self._shape.queue_name(index) for index in self._seen.subscriptions if index >= self._queue_count]:
            expected = "deleted by hand, if nobody wants them; the next growth takes only empty ones of the group's"
            _log.warning("restripe_queues_left", queues=left, expected=expected)

    async def _is_as_seen(self, conductor: Conductor, *, is_maybe_known: bool) -> bool:
        """Before the plan is published: whether the queues are as when we began, with our topic added.

        Raises `UserError` or `QueueUnfit` if no plan may be published there. Our topic is then removed, as nobody could
        bring the plan to an end, unless it may have been published before.
        """
        before, plan = self._seen, conductor.plan
        await self._look_at_queues(plan.queue_total)
        try:
            self._seen.ensure_layout(plan.from_count)
            if not is_maybe_known:
                await insist_on_unclaimed_queues(self._queues, plan, self._seen)
                self._hearing.insist_on_fit_members(plan)
            await insist_on_fit_queues(self._queues, plan, self._seen)
            await self._insist_on_no_parking(plan)
        except (UserError, QueueUnfit):
            if not is_maybe_known:
                await self._take_away(plan)
            raise
        return self._seen == before

    async def _look_at_the_end(self, plan: StripePlan) -> None:
        await self._look_at_queues(plan.queue_total)
        # A conductor that has replaced us may be on the way to another layout.
        await self.insist_on_connection()
        self._seen.ensure_layout(plan.to_count)

    async def _insist_on_no_parking(self, plan: StripePlan) -> None:
        await insist_on_no_parking(self._queues, plan, self._seen, self._hearing.picture)

    async def _conductor(self) -> Conductor | None:
        plan = self._seen.plan_under_way()
        if plan is None:
            present = self._seen.layout()
            if present == self._queue_count and not await self._hearing.hears_of_another(present):
                return None
            plan = StripePlan(wall_us(), present, self._queue_count, secrets.token_hex(16))
        ensure_target(plan, self._queue_count)
        self._seen.ensure_on_the_way(plan)
        self._seen.ensure_informed(plan)
        return Conductor(replace(self._shape, queue_count=plan.from_count), plan, self._topic)

    async def _look(self, conductor: Conductor) -> Sight:
        if 0 < self._quiet_from_s <= asyncio.get_running_loop().time():
            # A request of an earlier conductor may have arrived after we had read the subscriptions.
            self._quiet_from_s = 0.0
            await self._look_at_queues(conductor.plan.queue_total)
            self._seen.ensure_informed(conductor.plan)
        owned, depth, name = self._hearing.picture.owners, self._queues.depth, self._shape.queue_name
        sight = Sight(
            self._seen.subscriptions,
            {},
            {index for index in range(conductor.plan.queue_total) if name(index) in owned},
            self._hearing.book.now if self._hearing.is_heard else None,
        )
        measured = conductor.queues_to_measure(sight)
        if measured:
            await self._insist_on_broker()
        return replace(sight, depths={each: await depth(name(each)) for each in measured})

    # -- taking steps

    async def _take(self, step: Step, conductor: Conductor) -> None:
        await self.insist_on_connection()
        try:
            is_done = await self._do(step, conductor)
        except (SempRefused, SempUnreachable, PublishFailed) as error:
            raise without(secret_of(step, conductor), error) from None
        if is_done:
            conductor.did(step)
            _log.info("restripe_step_done", step=type(step).__name__, **facts_of(step, self._topic))

    async def _do(self, step: Step, conductor: Conductor) -> bool:
        """Take the step; return whether it is done, so that something has changed."""
        match step:
            case CreateQueue(index):
                queue = self._shape.queue_name(index)
                await self._queues.create_queue(queue)
                self._seen.subscriptions[index] = await self._queues.subscriptions(queue) or frozenset()
            case Subscribe(index, topic):
                await self._queues.subscribe(self._shape.queue_name(index), topic)
                self._seen.subscriptions[index] |= {topic}
            case Unsubscribe(index, topic):
                await self._queues.unsubscribe(self._shape.queue_name(index), topic)
                self._seen.subscriptions[index] -= {topic}
            case Publish(record):
                await self._publish(encode_record(record, conductor.topic))
            case DeleteQueue(index):
                await self._insist_on_broker()
                try:
                    await self._queues.delete_queue(self._shape.queue_name(index))
                except QueueInUse as in_use:
                    # The members that are bound to it have heard that the re-striping is over, and will unbind.
                    self._in_use = f"a queue to be out of use: {in_use}"
                    await self._hearing.wait()
                    return False
                self._in_use = ""
                del self._seen.subscriptions[index]
            case Wait() | Done():
                await self._hearing.wait()
                return False
            case _:
                assert_never(step)
        return True

    async def _publish(self, record: Message) -> None:
        try:
            await self._session.send(record)
        except PublishRefused as refusal:
            raise await with_refusing_queues(refusal, self._queues, self._seen) from None

    async def _wait_for_quiet(self, progress: Progress) -> None:
        """Wait until every request of an earlier conductor has arrived, or never will arrive."""
        while asyncio.get_running_loop().time() < self._quiet_from_s:
            await self.insist_on_connection()
            self._on_progress(replace(progress, waiting_for="late requests of an earlier run of this command"))
            await self._hearing.wait()


@asynccontextmanager
async def open_restriper(
    settings: Settings, queue_count: int, on_progress: Callable[[Progress], None]
) -> AsyncIterator[Restriper]:
    """A restriper that brings the group to this number of queues, with its own client session and SEMP client.

    Raises `ConfigError` if the settings do not allow it, or nobody answers, and `UserError` if the group cannot have
    that many, or is being brought to another number; a conductor that is at work is then not disturbed.
    """
    insist_on_fit_settings(settings)
    insist_on_fit_names(settings.group.shape(), queue_count)
    name = conductor_name(settings.group.name)
    # Without reconnects: a conductor that was replaced must not come back and replace the other in turn.
    opening = open_session(settings.outside_connection, name, settings.transport.client_path, reconnects=False)
    async with open_semp(settings) as client:
        # All this before the session is opened, as that throws out a conductor at work.
        queues = await queue_admin(client, settings)
        await insist_on_target(queues, settings, queue_count)
        async with opening as session:
            insist_on_broker = partial(insist_on_broker_of, client, settings.connection.vpn, name)
            store_count = partial(store_queue_count, client, settings)
            stored_count = partial(stored_queue_count, client, settings)
            asked = (store_count, stored_count, insist_on_broker)
            restriper = Restriper(settings, queue_count, queues, session, on_progress, *asked)
            client.fence(restriper.insist_on_connection)
            yield restriper
