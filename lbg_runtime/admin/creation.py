"""A new group while it is made, and how it is undone if it cannot be made to its end."""

import asyncio
from collections.abc import Callable, Sequence

import anyio
import structlog

from lbg_runtime.admin.executor import Executor, OnStep
from lbg_runtime.admin.fills import check_still_unused, check_unused
from lbg_runtime.admin.objects import PARTS, Attributes, ObjectKind, Ref, State
from lbg_runtime.admin.plan import Create, Delete, Step, after_steps, difference, plan_delete, plan_quiet, take_step
from lbg_runtime.admin.state import read_object
from lbg_runtime.model.errors import GroupInUse, MembersNotSeen, SempError, SempExists, SempRefused, VpnNotUp
from lbg_runtime.model.ids import QueueName
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.client import SempClient

UNDO_TIMEOUT_S = 60.0

_log = structlog.get_logger(__name__)


class Creation:
    """Remembers what it has made of one group, so that only that is removed if it fails. Carried out once."""

    def __init__(
        self,
        client: SempClient,
        vpn: str,
        steps: Sequence[Step],
        steady_s: Callable[[], float],
        *,
        members_create: bool,
    ) -> None:
        """`members_create`: whether members and publishers may be making the same queues."""
        self._client = client
        self._vpn = vpn
        self._executor = Executor(client, vpn)
        self._steps = steps
        self._steady_s = steady_s
        self._members_create = members_create
        self._made: dict[Ref, Attributes] = {}
        self._in_doubt: Step | None = None
        """The step that has begun, of which it is not known whether it was carried out."""

    async def carry_out(self, on_step: OnStep) -> None:
        """Take all steps.

        If one fails, what was made is undone, or the log says that it stays; then the cause is raised. Who is cancelled
        while that is undone leaves the rest of it, and the log says so, too.
        """
        try:
            for step in self._steps:
                on_step(step)
                self._in_doubt = step
                await self._executor.do(step)
                take_step(self._made, step)
                self._in_doubt = None
        except (SempError, asyncio.CancelledError) as error:
            # One that exists may have been made by this very request, when it was first sent.
            if isinstance(error, SempRefused) and not (isinstance(error, SempExists) and error.is_repeated):
                self._in_doubt = None
            reason = "interrupted" if isinstance(error, asyncio.CancelledError) else str(error)
            _log.warning("group_creation_failed", reason=reason, objects=len(self._made))
            # A scope of anyio that is cancelled would cancel each request of it anew. It has a bound of its own.
            with anyio.CancelScope(shield=True):
                await self._undo()
            raise

    async def _undo(self) -> None:
        left = dict(self._made)
        if self._in_doubt is not None:
            take_step(left, self._in_doubt)
        try:
            async with asyncio.timeout(UNDO_TIMEOUT_S):
                if self._in_doubt is not None and not await self._is_done_by_us(self._in_doubt):
                    left = dict(self._made)
                if (reason := await self._why_kept(left)) is not None:
                    _tell_not_undone(left, reason)
                    return
                quieting = plan_quiet(left)
                for step in quieting:
                    await self._executor.do_unless_gone(step)
                try:
                    # If queues were already enabled, a publisher may have had messages confirmed.
                    await check_unused(self._client, self._vpn, left)
                except (GroupInUse, MembersNotSeen, VpnNotUp):
                    await self._executor.take_back(quieting)
                    raise
                for step in plan_delete(after_steps(left, quieting)):
                    await check_still_unused(self._client, self._vpn, step, self._steady_s)
                    await self._executor.do_unless_gone(step)
                    if isinstance(step, Delete):
                        # Not its parts, which would have to be looked for among all others: nobody is told of parts.
                        del left[step.ref]
        except asyncio.CancelledError:
            _tell_not_undone(left, "interrupted")
            raise
        except (SempError, TimeoutError) as error:
            _tell_not_undone(left, str(error) or "too slow")

    async def _why_kept(self, made: State) -> str | None:
        """Why somebody else may count on what was made; None if nobody can.

        A publisher that has found a queue does not look again: once it is gone, its messages are confirmed and lost.
        """
        path = ("msgVpns", self._vpn, ObjectKind.QUEUE.value)
        found = await self._client.find_all(SempApi.CONFIG, path, select=("queueName",))
        there = {each.text("queueName") for each in found}
        wanted = [step.ref for step in self._steps if isinstance(step, Create) and step.ref.kind is ObjectKind.QUEUE]
        for ref in wanted:
            if ref.name in there and (ref not in made or await self._has_more_topics(ref, made)):
                return f"somebody else is making this group, too, as {ref} shows"
        if self._members_create and any(ref in made for ref in wanted):
            # They leave no trace if they find it all there already.
            return "group.provision is create_missing: members and publishers may count on its queues already"
        return None

    async def _has_more_topics(self, queue: Ref, made: State) -> bool:
        name = QueueName(queue.name)
        path = (*queue.path(self._vpn), ObjectKind.SUBSCRIPTION.value)
        topics = [each.text("subscriptionTopic") for each in await self._client.find_all(SempApi.CONFIG, path)]
        return any(Ref(ObjectKind.SUBSCRIPTION, topic, name) not in made for topic in topics)

    async def _is_done_by_us(self, step: Step) -> bool:
        """Whether a step without an answer has to be taken back: not if nothing is there, or somebody else's object."""
        if not isinstance(step, Create) or step.ref.kind in PARTS:
            return True  # It goes with an object that is known to be ours.
        found = await read_object(self._client, self._vpn, step.ref)
        if found is None:
            expected = "if the broker makes it yet, `lbg group apply` or `delete` ends it"
            _log.warning("group_creation_in_doubt", object=str(step.ref), expected=expected)
            return False
        if differing := sorted(difference(step.attributes, found.attributes)):
            expected = "somebody to say whose it is: it is not as it was to be made, and left alone"
            _log.warning("group_creation_met_another", object=str(step.ref), differing=differing, expected=expected)
        return not differing


def _tell_not_undone(left: State, reason: str) -> None:
    names = [str(ref) for ref in left if ref.kind not in PARTS]
    # A queue without all of its subscriptions: what belongs to the missing ones is confirmed and lost.
    expected = "`lbg group apply` to finish it, before anything is published, or `lbg group delete`"
    _log.error("group_creation_not_undone", reason=reason, left=names, expected=expected)
