"""A group on the broker, from its creation to its end."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from lbg_runtime.admin.account import semp_missing
from lbg_runtime.admin.executor import Executor
from lbg_runtime.admin.objects import PARTS, Attributes, ObjectKind, Ref, State, desired_state, marker_ref
from lbg_runtime.admin.plan import Change, Step, plan_apply, plan_delete, plan_quiet, state_after
from lbg_runtime.admin.problems import (
    find_missing_rights,
    find_problems,
    find_taken_names,
    is_of_restriping,
    stored_group,
    surplus_queues,
)
from lbg_runtime.admin.roles import Login, Topics
from lbg_runtime.admin.spec import GroupSpec, StoredGroup
from lbg_runtime.admin.state import read_groups, read_rights, read_state
from lbg_runtime.config.semp_settings import AccountSettings
from lbg_runtime.config.settings import GroupBackend, GroupSource, Provision, Settings
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.model.errors import (
    ConfigError,
    GroupInUse,
    GroupMissing,
    GroupRefused,
    SempError,
    SempRefused,
    UserError,
)
from lbg_runtime.model.failure import QUEUE_ADDRESS_PREFIX, Then
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.semp_code import SempCode
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.client import SempClient

UNDO_TIMEOUT_S = 60.0
_LOOKS = 5
"""At a group that somebody else deletes at the same time."""

_log = structlog.get_logger(__name__)

OnStep = Callable[[Step], None]
"""Told of every step before it is carried out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be done, and why it must not be."""

    steps: tuple[Step, ...]
    problems: tuple[UserError, ...]
    """With any of them nothing is done."""
    surplus: tuple[str, ...]
    """Queues named like the group's that it should not have; no step touches them."""
    stored: StoredGroup | None
    """What is stored of the group."""

    @property
    def is_clean(self) -> bool:
        """Whether the broker is as it should be."""
        return not (self.steps or self.problems or self.surplus)


class GroupAdmin:
    """Administers the groups of one VPN. Raises `SempError` where the broker says no or does not answer.

    One administrator at a time: two at once may undo each other's work, though either can be run again after.
    """

    def __init__(self, client: SempClient, vpn: str) -> None:
        self._client = client
        self._vpn = vpn
        self._executor = Executor(client, vpn)

    async def stored_groups(self) -> list[StoredGroup]:
        """Every group of the VPN that has been created whole, by name."""
        return await read_groups(self._client, self._vpn)

    async def plan(self, spec: GroupSpec, *, is_new: bool = False) -> Plan:
        """Compare; changes nothing. `is_new` refuses whatever has a name of the group's already."""
        actual = await read_state(self._client, self._vpn, spec)
        rights = await read_rights(self._client, self._vpn)
        control_topic = spec.topics.control
        settled = {ref: found for ref, found in actual.items() if not is_of_restriping(ref, control_topic)}
        steps = plan_apply(desired_state(spec), settled)
        problems = [*find_problems(spec, actual), *find_missing_rights(steps, rights)]
        if is_new:
            problems += find_taken_names(spec, actual)
        return Plan(steps, tuple(problems), surplus_queues(spec, actual), stored_group(spec, actual))

    async def apply(self, plan: Plan, on_step: OnStep = lambda _: None) -> None:
        """Carry a plan out; raises `GroupRefused` where it has problems.

        What fails, or is killed, on the way is gone on with by the next plan.
        """
        _refuse(plan.problems)
        for step in plan.steps:
            on_step(step)
            await self._executor.do(step)

    async def create(self, plan: Plan, on_step: OnStep = lambda _: None) -> None:
        """Carry the plan of a new group out. What fails on the way is taken back, as far as the broker can be reached.

        Raises `GroupRefused` where the plan has problems, and whatever was in the way otherwise.
        """
        _refuse(plan.problems)
        made: dict[Ref, Attributes] = {}
        in_doubt: Ref | None = None
        try:
            for step in plan.steps:
                on_step(step)
                in_doubt = step.ref
                await self._executor.do(step)
                made, in_doubt = state_after(made, step), None
        except (SempError, asyncio.CancelledError) as error:
            if isinstance(error, SempRefused) and not _may_be_ours(error):
                in_doubt = None
            _log.warning("group_creation_failed", reason=str(error) or "interrupted", objects=len(made))
            # What was being made may be there all the same.
            await self._undo(made if in_doubt is None else state_after(made, step))
            if in_doubt is not None and not isinstance(error, SempRefused):
                expected = "if the broker makes it yet, `lbg group apply` or `delete` ends it"
                _log.warning("group_creation_in_doubt", object=str(in_doubt), expected=expected)
            raise

    async def delete(self, spec: GroupSpec, *, force: bool = False, on_step: OnStep = lambda _: None) -> list[Ref]:
        """Delete everything that has a name of the group's; answers what this administrator may not delete.

        Without `force`, raises `GroupInUse` while messages or bound flows are left, and leaves the group as it was.
        Raises `GroupMissing` where there is nothing, also where another one has deleted it meanwhile. A deletion that
        was interrupted is gone on with by the next one.
        """
        for looks_left in reversed(range(_LOOKS)):
            try:
                return await self._delete_what_is_there(spec, force=force, on_step=on_step)
            except SempRefused as refused:
                # Gone since it was looked at. What is left is looked at anew, and is still to be deleted.
                if not (_is_gone(refused) and looks_left):
                    raise
        raise AssertionError("the last look raises or returns")

    async def _delete_what_is_there(self, spec: GroupSpec, *, force: bool, on_step: OnStep) -> list[Ref]:
        actual = _owned(spec, await read_state(self._client, self._vpn, spec))
        if not actual:
            raise GroupMissing(spec.shape.name)
        rights = await read_rights(self._client, self._vpn)
        kept = [ref for ref in actual if ref.kind is ObjectKind.CLIENT_PROFILE and not rights.may_write_broker]
        gone = {ref: attributes for ref, attributes in actual.items() if ref not in kept}
        if not force:
            # Before anything is touched, so that a refusal disturbs nobody; and again when nothing more can come.
            await self._check_unused(gone)
        try:
            for step in plan_quiet(gone):
                on_step(step)
                await self._executor.do(step)
            if not force:
                await self._check_still_unused(gone)
            for step in plan_delete(_quiet(gone)):
                on_step(step)
                await self._executor.do(step)
        except (SempError, asyncio.CancelledError) as error:
            if not (isinstance(error, GroupInUse) or _is_gone(error)):
                expected = "`lbg group delete` to go on, `lbg group apply` to have its queues take messages again"
                _log.error("group_deletion_interrupted", reason=str(error) or "interrupted", expected=expected)
            raise
        return kept

    async def fills(self, queues: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Messages and bound flows of queues that exist."""
        fills = {}
        for queue in queues:
            seen = await self._client.get(SempApi.MONITOR, Ref(ObjectKind.QUEUE, queue).path(self._vpn))
            fills[queue] = (seen.count("msgs"), seen.count("txFlows"))
        return fills

    # -- parts

    async def _check_unused(self, state: State) -> None:
        fills = await self.fills(ref.name for ref in state if ref.kind is ObjectKind.QUEUE)
        if left := {queue: fill for queue, fill in fills.items() if any(fill)}:
            raise GroupInUse(left)

    async def _check_still_unused(self, state: State) -> None:
        try:
            await self._check_unused(state)
        except GroupInUse:
            for ref, attributes in state.items():
                if ref.kind is ObjectKind.QUEUE:
                    was = {"ingressEnabled": attributes.get("ingressEnabled")}
                    await self._executor.do(Change(ref, was, {"ingressEnabled": False}))
            raise

    async def _undo(self, made: State) -> None:
        left = dict(made)
        try:
            async with asyncio.timeout(UNDO_TIMEOUT_S):
                for step in plan_delete(made):
                    await self._executor.do(step)
                    left = state_after(left, step) if step.ref in left else left
        except (SempError, TimeoutError) as error:
            names = [str(ref) for ref in left if ref.kind not in PARTS]
            _log.error("group_creation_not_undone", reason=str(error) or "too slow", left=names)


def spec_of(settings: Settings) -> GroupSpec:
    """What the settings say of the group; raises `ConfigError` where `semp` is not set."""
    if settings.semp is None:
        raise semp_missing()
    if settings.group.source is not GroupSource.FILE:
        raise ConfigError("group.from", settings.group.source.value, "file: who makes a group says how it is cut")
    group, connection = settings.group, settings.connection
    if group.backend is not GroupBackend.EXCLUSIVE:
        expected = "exclusive: a partitioned queue is made by hand, as docs/patterns.md says"
        raise ConfigError("group.backend", group.backend.value, expected)
    return GroupSpec(
        shape=group.shape(),
        hash_function=group.hash_function,
        key=str(group.key),
        username=connection.username,
        password=connection.password.get_secret_value(),
        queue_spool_mb=settings.semp.queue_spool_mb,
        client_profile=settings.semp.client_profile,
        creates_queues=group.provision is Provision.CREATE_MISSING,
        topics=Topics(
            group.control_topic_name,
            settings.ops.journal.republish_topic,
            (f"{QUEUE_ADDRESS_PREFIX}{settings.dead_message_queue}", *settings.semp.publish_topics),
        ),
        aside=_aside(settings),
        publisher=_login(settings.semp.publisher),
        conductor=_login(settings.semp.conductor),
    )


def _aside(settings: Settings) -> tuple[QueueName, ...]:
    """What `failure.then` needs; a queue of another name than its topic is others'."""
    match settings.failure.then:
        case Then.PARK:
            group = settings.group.shape()
            return tuple(parking_queue(group.name, index) for index in range(group.queue_count))
        case Then.ERROR_QUEUE if settings.error_queue == settings.error_topic:
            return (settings.error_queue,)
        case _:
            return ()


def _login(account: AccountSettings | None) -> Login | None:
    return None if account is None else Login(account.username, account.password.get_secret_value())


def _refuse(problems: tuple[UserError, ...]) -> None:
    if problems:
        raise GroupRefused(problems)


def _is_gone(error: BaseException) -> bool:
    """Whether it says that what was looked at before is not there any more."""
    return isinstance(error, SempRefused) and error.code == SempCode.NOT_FOUND


def _may_be_ours(refused: SempRefused) -> bool:
    """Whether what exists already may have been made by the very request, when it was sent the first time."""
    return refused.is_repeated and refused.code == SempCode.ALREADY_EXISTS


def _owned(spec: GroupSpec, actual: State) -> dict[Ref, Attributes]:
    """What of the group's names is the group's to delete."""
    owned = dict(actual)
    if spec.has_account and not spec.manages_client_profile:
        owned.pop(Ref(ObjectKind.CLIENT_PROFILE, spec.client_profile_name()), None)
    for login in spec.logins.values():
        username = Ref(ObjectKind.CLIENT_USERNAME, login.username)
        if marker_ref(spec) not in actual and actual.get(username, {}).get("enabled"):
            # A group's username is enabled behind its stored settings, and disabled before they go.
            del owned[username]
    return owned


def _quiet(state: State) -> dict[Ref, Attributes]:
    for step in plan_quiet(state):
        state = state_after(state, step)
    return dict(state)
