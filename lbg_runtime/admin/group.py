"""A group on the broker, from its creation to its end."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from lbg_runtime.admin.executor import Executor
from lbg_runtime.admin.objects import PARTS, Attributes, ObjectKind, Ref, State, desired_state, with_limits
from lbg_runtime.admin.plan import (
    Change,
    Create,
    Delete,
    Step,
    difference,
    plan_apply,
    plan_delete,
    plan_quiet,
    take_step,
)
from lbg_runtime.admin.problems import (
    find_foreign_marker,
    find_missing_rights,
    find_problems,
    find_taken_names,
    find_unfit,
    find_unread_parking,
    is_of_restriping,
    is_own_username,
    stored_group,
    surplus_queues,
)
from lbg_runtime.admin.spec import GroupSpec, StoredGroup
from lbg_runtime.admin.state import read_groups, read_object, read_rights, read_state
from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.model.errors import (
    GroupInUse,
    GroupMissing,
    GroupRefused,
    SempError,
    SempExists,
    SempMissing,
    SempRefused,
    UserError,
)
from lbg_runtime.model.ids import QueueName
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.client import SempClient

UNDO_TIMEOUT_S = 60.0
_LOOKS = 5
"""The most looks at a group that somebody else is deleting at the same time."""

_log = structlog.get_logger(__name__)

OnStep = Callable[[Step], None]
"""Called with every step before it is carried out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be done, and why it must not be."""

    steps: tuple[Step, ...]
    problems: tuple[UserError, ...]
    """If there are any, nothing is done."""
    surplus: tuple[str, ...]
    """Queues named like the group's that it should not have; no step touches them."""
    remarks: tuple[UserError, ...]
    """Faults that no step mends and that stop nothing: of queues that are not the group's, or that nobody reads."""
    members_create: bool
    """Whether members and publishers may be making the same queues, and count on those that they find."""

    @property
    def is_clean(self) -> bool:
        """Whether the broker is as it should be."""
        return not (self.steps or self.problems or self.surplus or self.remarks)


class GroupAdmin:
    """Administers the groups of one VPN. Raises `SempError` if the broker refuses or does not answer.

    One administrator at a time: two at once may undo each other's work, though either can be run again afterwards.
    """

    def __init__(self, client: SempClient, vpn: str) -> None:
        self._client = client
        self._vpn = vpn
        self._executor = Executor(client, vpn)

    async def stored_groups(self) -> list[StoredGroup]:
        """Every group of the VPN that has been created completely, by name."""
        return await read_groups(self._client, self._vpn)

    async def plan(self, spec: GroupSpec, *, is_new: bool = False) -> Plan:
        """Compare; changes nothing. With `is_new`, whatever already has one of the group's names is a problem."""
        actual = await read_state(self._client, self._vpn, spec)
        rights = await read_rights(self._client, self._vpn)
        control_topic = spec.topics.control
        settled = {ref: found for ref, found in actual.items() if not is_of_restriping(ref, control_topic)}
        steps = plan_apply(with_limits(desired_state(spec), settled, spec), settled)
        problems = [*find_problems(spec, actual), *find_missing_rights(steps, rights)]
        if is_new:
            # What is wrong with an object says more, and keeps `apply` from taking it over, too.
            named = {problem.where for problem in problems}
            problems += (taken for taken in find_taken_names(spec, actual) if taken.where not in named)
        remarks = (*await self._look_at_borrowed(spec), *find_unread_parking(spec, actual))
        return Plan(steps, tuple(problems), surplus_queues(spec, actual), remarks, spec.creates_queues)

    async def _look_at_borrowed(self, spec: GroupSpec) -> tuple[UserError, ...]:
        found = {
            queue: await read_object(self._client, self._vpn, Ref(ObjectKind.QUEUE, queue)) for queue in spec.borrowed
        }
        return tuple(find_unfit({queue: None if each is None else each.attributes for queue, each in found.items()}))

    async def apply(self, plan: Plan, on_step: OnStep = lambda _: None) -> None:
        """Carry out a plan; raises `GroupRefused` if it has problems.

        If it fails or is killed on the way, the next plan continues from there.
        """
        _refuse(plan.problems)
        for step in plan.steps:
            on_step(step)
            await self._executor.do(step)

    async def create(self, plan: Plan, on_step: OnStep = lambda _: None) -> None:
        """Carry out the plan of a new group. If it fails on the way, it is undone, as far as the broker can be reached.

        Not once somebody else may count on its queues: if one has messages or flows, if others have made queues or
        subscriptions of the group, or if there are queues and members may create some. Then everything made stays, and
        the next `apply` finishes it. What somebody else has made meanwhile is left alone. Raises `GroupRefused` if the
        plan has problems, otherwise whatever was in the way.
        """
        _refuse(plan.problems)
        made: dict[Ref, Attributes] = {}
        in_doubt: Step | None = None
        try:
            for step in plan.steps:
                on_step(step)
                in_doubt = step
                await self._executor.do(step)
                take_step(made, step)
                in_doubt = None
        except (SempError, asyncio.CancelledError) as error:
            # One that exists may have been made by this very request, when it was first sent.
            if isinstance(error, SempRefused) and not (isinstance(error, SempExists) and error.is_repeated):
                in_doubt = None
            _log.warning("group_creation_failed", reason=str(error) or "interrupted", objects=len(made))
            await self._undo(plan, made, in_doubt)
            raise

    async def delete(self, spec: GroupSpec, *, force: bool = False, on_step: OnStep = lambda _: None) -> list[Ref]:
        """Delete everything that has one of the group's names; return what this administrator may not delete.

        Without `force`, raises `GroupInUse` while messages or bound flows are left, and leaves the group as it was.
        Raises `GroupMissing` if there is nothing, also if somebody else has deleted it meanwhile, and `GroupRefused` if
        what is stored under its name cannot be read, or if this administrator may not change the VPN. The next deletion
        continues one that was interrupted.
        """
        begun: list[Step] = []

        def note(step: Step) -> None:
            begun.append(step)
            on_step(step)

        try:
            return await self._look_and_delete(spec, begun, force=force, on_step=note)
        except (SempError, asyncio.CancelledError) as error:
            is_as_it_was = isinstance(error, GroupInUse) and _is_quieting(begun)
            if begun and not (is_as_it_was or isinstance(error, GroupMissing)):
                expected = "`lbg group delete` to go on, `lbg group apply` to have its queues take messages again"
                _log.error("group_deletion_interrupted", reason=str(error) or "interrupted", expected=expected)
            raise

    async def _look_and_delete(self, spec: GroupSpec, begun: list[Step], *, force: bool, on_step: OnStep) -> list[Ref]:
        for looks_left in reversed(range(_LOOKS)):
            try:
                return await self._delete_what_is_there(spec, force=force, on_step=on_step)
            except GroupInUse:
                if _is_quieting(begun):
                    await self._take_back(begun)
                raise
            except SempMissing:
                # Gone since the last look. Look again: what is left is still to be deleted.
                if not looks_left:
                    raise
        raise AssertionError("the last look raises or returns")

    async def _delete_what_is_there(self, spec: GroupSpec, *, force: bool, on_step: OnStep) -> list[Ref]:
        found = await read_state(self._client, self._vpn, spec)
        _refuse(tuple(find_foreign_marker(spec, found)))
        actual = _owned(spec, found)
        if not actual:
            raise GroupMissing(spec.shape.name)
        rights = await read_rights(self._client, self._vpn)
        kept = [ref for ref in actual if ref.kind is ObjectKind.CLIENT_PROFILE and not rights.may_write_broker]
        gone = {ref: attributes for ref, attributes in actual.items() if ref not in kept}
        _refuse(tuple(find_missing_rights(plan_delete(gone), rights)))
        if not force:
            # Checked before anything is touched, so that a refusal disturbs nobody; again when nothing more can come.
            await self._check_unused(gone)
        for step in plan_quiet(gone):
            on_step(step)
            await self._executor.do(step)
        if not force:
            await self._check_unused(gone)
        for step in plan_delete(_quiet(gone)):
            on_step(step)
            await self._executor.do(step)
        return kept

    async def fills(self, queues: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Messages and bound flows of each of the queues that exists."""
        fills = {}
        for queue in queues:
            seen = await self._client.find(SempApi.MONITOR, Ref(ObjectKind.QUEUE, queue).path(self._vpn))
            if seen is not None:
                fills[queue] = (seen.count("msgs"), seen.count("txFlows"))
        return fills

    # -- parts

    async def _check_unused(self, state: State) -> None:
        fills = await self.fills(ref.name for ref in state if ref.kind is ObjectKind.QUEUE)
        if left := {queue: fill for queue, fill in fills.items() if any(fill)}:
            are_marks = all(queue.startswith(PARKING_PREFIX) and not flows for queue, (_, flows) in left.items())
            raise GroupInUse(left, only_parking=are_marks)

    async def _take_back(self, quieting: Iterable[Step]) -> None:
        """Have the queues that took messages before take them again; those that are gone by now are passed over."""
        for step in quieting:
            if isinstance(step, Change):
                await self._do_unless_gone(Change(step.ref, step.before, step.attributes))

    async def _do_unless_gone(self, step: Step) -> None:
        with suppress(SempMissing):
            await self._executor.do(step)

    async def _undo(self, plan: Plan, made: State, in_doubt: Step | None) -> None:
        left = dict(made)
        if in_doubt is not None:
            take_step(left, in_doubt)
        try:
            async with asyncio.timeout(UNDO_TIMEOUT_S):
                if in_doubt is not None and not await self._is_done_by_us(in_doubt):
                    left = dict(made)
                if (reason := await self._why_kept(plan, left)) is not None:
                    _tell_not_undone(left, reason)
                    return
                quieting = plan_quiet(left)
                for step in quieting:
                    await self._do_unless_gone(step)
                try:
                    # If queues were already enabled, a publisher may have had messages confirmed.
                    await self._check_unused(left)
                except GroupInUse:
                    await self._take_back(quieting)
                    raise
                for step in plan_delete(_quiet(left)):
                    await self._do_unless_gone(step)
                    if isinstance(step, Delete):
                        # Not its parts, which would have to be looked for among all others: nobody is told of parts.
                        del left[step.ref]
        except (SempError, TimeoutError) as error:
            _tell_not_undone(left, str(error) or "too slow")

    async def _why_kept(self, plan: Plan, made: State) -> str | None:
        """Why somebody else may count on what was made; None if nobody can.

        Whoever has found a queue does not look again. Once it is gone, what he publishes is confirmed and lost.
        """
        path = ("msgVpns", self._vpn, ObjectKind.QUEUE.value)
        found = await self._client.find_all(SempApi.CONFIG, path, select=("queueName",))
        there = {each.text("queueName") for each in found}
        wanted = [step.ref for step in plan.steps if isinstance(step, Create) and step.ref.kind is ObjectKind.QUEUE]
        ours = [ref for ref in wanted if ref in made]
        for ref in wanted:
            if ref.name in there and (ref not in made or await self._has_more_topics(ref, made)):
                return f"somebody else is making this group, too, as {ref} shows"
        if ours and plan.members_create:
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


def _refuse(problems: tuple[UserError, ...]) -> None:
    if problems:
        raise GroupRefused(problems)


def _owned(spec: GroupSpec, actual: State) -> dict[Ref, Attributes]:
    """The objects with the group's names that are the group's to delete."""
    owned = dict(actual)
    if spec.has_account and not spec.manages_client_profile:
        owned.pop(Ref(ObjectKind.CLIENT_PROFILE, spec.client_profile_name()), None)
    stored = stored_group(spec, actual)
    for role, login in spec.logins.items():
        username = Ref(ObjectKind.CLIENT_USERNAME, login.username)
        if username in actual and not is_own_username(spec, role, stored, actual[username]):
            del owned[username]
    return owned


def _is_quieting(steps: Iterable[Step]) -> bool:
    """Whether having queues take messages again would undo everything that has been done."""
    return all(isinstance(step, Change) and step.attributes == {"ingressEnabled": False} for step in steps)


def _quiet(state: State) -> dict[Ref, Attributes]:
    quiet = dict(state)
    for step in plan_quiet(state):
        take_step(quiet, step)
    return quiet
