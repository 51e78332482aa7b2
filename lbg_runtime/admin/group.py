"""A group on the broker, from its creation to its end."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from lbg_runtime.admin.creation import Creation
from lbg_runtime.admin.executor import Executor, OnStep
from lbg_runtime.admin.fills import check_still_unused, check_unused
from lbg_runtime.admin.objects import Attributes, ObjectKind, Ref, State, desired_state, with_limits
from lbg_runtime.admin.plan import (
    Change,
    Step,
    after_steps,
    plan_apply,
    plan_delete,
    plan_quiet,
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
from lbg_runtime.model.errors import (
    GroupInUse,
    GroupMissing,
    GroupRefused,
    MembersNotSeen,
    PlanOutdated,
    SempError,
    SempMissing,
    SempRefused,
    UserError,
    VpnNotUp,
)
from lbg_runtime.semp.client import SempClient

_LOOKS = 5
"""The most looks at a group that somebody else is deleting at the same time."""

PLAN_COUNTS_S = 30.0
"""How long after the plan, or the beginning of the step before it, a step may begin: longer than a broker takes."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be done, and why it must not be."""

    steps: tuple[Step, ...]
    problems: tuple[UserError, ...]
    """If there are any, nothing is done."""
    surplus: tuple[str, ...]
    """Queues named like the group's that it should not have; no step touches them."""
    remarks: tuple[UserError, ...]
    """Faults that no step corrects and that stop nothing: of queues that are not the group's, or that nobody reads."""
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

    def __init__(self, client: SempClient, vpn: str, steady_s: Callable[[], float] = time.monotonic) -> None:
        """`steady_s` is a clock in seconds; one that goes on while the host sleeps notices that it did."""
        self._client = client
        self._vpn = vpn
        self._steady_s = steady_s
        self._seen_s = steady_s()
        """When the newest plan was made, or a step of it last began."""
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
            # If a problem is known for a taken name, it says more than that the name is taken, and also stops `apply`.
            named = {problem.where for problem in problems}
            problems += (taken for taken in find_taken_names(spec, actual) if taken.where not in named)
        remarks = (*await self._look_at_borrowed(spec), *find_unread_parking(spec, actual))
        self._seen_s = self._steady_s()
        return Plan(steps, tuple(problems), surplus_queues(spec, actual), remarks, spec.creates_queues)

    async def _look_at_borrowed(self, spec: GroupSpec) -> tuple[UserError, ...]:
        found = {
            queue: await read_object(self._client, self._vpn, Ref(ObjectKind.QUEUE, queue)) for queue in spec.borrowed
        }
        return tuple(find_unfit({queue: None if each is None else each.attributes for queue, each in found.items()}))

    async def apply(self, plan: Plan, on_step: OnStep = lambda _: None) -> None:
        """Carry out the newest plan; raises `GroupRefused` if it has problems.

        If it fails or is killed on the way, the next plan continues from there. If it fails or is cancelled, and may
        have changed something, the log says so. Raises `PlanOutdated` at a step that comes long after the one before
        it, or after the plan: this process was stopped, or its host slept, and somebody else may have changed the group
        meanwhile, even moved its shards.
        """
        _refuse(plan.problems)
        done = 0
        try:
            for step in plan.steps:
                on_step(step)
                before_s, self._seen_s = self._seen_s, self._steady_s()
                if (since_s := self._seen_s - before_s) > PLAN_COUNTS_S:
                    raise PlanOutdated(since_s)
                await self._executor.do(step)
                done += 1
        except (SempError, asyncio.CancelledError) as error:
            # What is refused is not done; every other step may have been.
            if done or not isinstance(error, PlanOutdated | SempRefused):
                reason, expected = _reason_of(error), "`lbg group apply` to go on, `lbg group plan` to see what is left"
                steps = len(plan.steps)
                _log.error("group_apply_interrupted", reason=reason, done=done, steps=steps, expected=expected)
            raise

    async def create(self, plan: Plan, on_step: OnStep = lambda _: None) -> None:
        """Carry out the plan of a new group. If it fails on the way, it is undone, as far as the broker can be reached.

        Not once somebody else may count on its queues: if one has messages or flows, if others have made queues or
        subscriptions of the group, or if there are queues and members may create some. Then everything made stays, and
        the next `apply` finishes it. What somebody else has made meanwhile is left alone. Raises `GroupRefused` if the
        plan has problems, otherwise whatever was in the way.
        """
        _refuse(plan.problems)
        creation = Creation(self._client, self._vpn, plan.steps, self._steady_s, members_create=plan.members_create)
        await creation.carry_out(on_step)

    async def delete(self, spec: GroupSpec, *, force: bool = False, on_step: OnStep = lambda _: None) -> list[Ref]:
        """Delete everything that has one of the group's names; return what this administrator may not delete.

        Without `force`, raises `GroupInUse` while messages or bound flows are left, and leaves the group as it was;
        `MembersNotSeen` while the broker does not know yet who binds to queues that had messages; `VpnNotUp` where what
        it says of them counts for nothing; and at a queue that somebody else has put to use again meanwhile,
        `GroupReopened` or `GroupInUse`. Raises `GroupMissing` if there is nothing, also if somebody else has deleted it
        meanwhile, and `GroupRefused` if what is stored under its name cannot be read, or if this administrator may not
        change the VPN. The next deletion continues one that was interrupted.
        """
        begun: list[Step] = []

        def note(step: Step) -> None:
            begun.append(step)
            on_step(step)

        try:
            return await self._look_and_delete(spec, begun, force=force, on_step=note)
        except (SempError, asyncio.CancelledError) as error:
            is_as_it_was = isinstance(error, GroupInUse | MembersNotSeen | VpnNotUp) and _is_quieting(begun)
            if begun and not (is_as_it_was or isinstance(error, GroupMissing)):
                expected = "`lbg group delete` to go on, `lbg group apply` to have its queues take messages again"
                _log.error("group_deletion_interrupted", reason=_reason_of(error), expected=expected)
            raise

    async def _look_and_delete(self, spec: GroupSpec, begun: list[Step], *, force: bool, on_step: OnStep) -> list[Ref]:
        for looks_left in reversed(range(_LOOKS)):
            try:
                return await self._delete_what_is_there(spec, force=force, on_step=on_step)
            except (GroupInUse, MembersNotSeen, VpnNotUp):
                if _is_quieting(begun):
                    await self._executor.take_back(begun)
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
            await check_unused(self._client, self._vpn, gone)
        quieting = plan_quiet(gone)
        for step in quieting:
            on_step(step)
            await self._executor.do(step)
        if not force:
            await check_unused(self._client, self._vpn, gone)
        for step in plan_delete(after_steps(gone, quieting)):
            on_step(step)
            if not force:
                await check_still_unused(self._client, self._vpn, step, self._steady_s)
            await self._executor.do(step)
        return kept


def _refuse(problems: tuple[UserError, ...]) -> None:
    if problems:
        raise GroupRefused(problems)


def _reason_of(error: SempError | asyncio.CancelledError) -> str:
    return "interrupted" if isinstance(error, asyncio.CancelledError) else str(error)


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
