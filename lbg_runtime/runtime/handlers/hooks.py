"""Calls a handler module's hooks when a queue comes or goes: one assignment for each epoch that became active.

Guaranteed for each queue and epoch: `on_assigned` is called once, before the first message of the epoch is asked for;
then `on_drain` at most once, when the flow begins to be given up in good order; then `on_revoked` once, after the last
handling of the epoch has ended and its flow is unbound or lost. Never two hooks run at a time for a queue, and all of
an epoch end before `on_assigned` of the next. A flow that never became active, such as one that hops, calls no hooks.
If a hand-back is given up, its `on_drain` is not taken back: the queue is handled as before, and `on_revoked` follows
when it goes.

Hooks play no part in the laws. A hook that raises, or takes longer than `failure.timeout`, is logged and counts as
done: it is better to handle a queue without a cache than not at all because the cache could not be filled. For the same
reason, if the flow of the previous epoch was lost and a handler still runs, `on_assigned` waits no longer than that for
the end of that epoch. Draining and unbinding wait for no hook; the end of a member waits for them, within the bounds of
its leaving. A process that dies, or is cut short at those bounds, calls nothing. A hook that swallows its cancellation
is waited for: its queue is not handled meanwhile.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

import structlog

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.handlers.signatures import signature_of
from lbg_runtime.runtime.runners.failure_report import error_text, plain
from lbg_runtime.runtime.runners.handling import refuse_unrun

_log = structlog.get_logger(__name__)

HookFunction = Callable[[QueueName, Epoch], Awaitable[object]]
"""Called when a queue comes or goes. What it raises is logged, and so is an answer that should have been awaited."""


_AS_EPOCH = (Epoch, int, "Epoch", "int")
_AS_QUEUE = (QueueName, str, "QueueName", "str")
"""Annotations of parameters, as objects or as text."""


class HookKind(Enum):
    """The moments of an epoch (the time in which one flow of the member owns one queue) at which hooks are called."""

    ASSIGNED = "on_assigned"
    DRAIN = "on_drain"
    REVOKED = "on_revoked"


@dataclass(frozen=True, slots=True)
class Hook:
    """One registered hook."""

    kind: HookKind
    function: HookFunction
    where: str
    """`module:function (file:line)`, for messages to the user."""


def make_hook(kind: HookKind, function: HookFunction, where: str) -> Hook:
    """The hook of a function. Raises `HandlerError` if it cannot be one."""
    if not inspect.iscoroutinefunction(function):
        raise HandlerError(where, "not async", "`async def`, as hooks share one event loop")
    signature = signature_of(function)
    try:
        taken = signature.bind(None, None).arguments
    except TypeError:
        raise HandlerError(where, f"parameters {signature}", "two parameters, queue and epoch") from None
    said = [signature.parameters[name].annotation for name in taken]
    if len(said) == 2 and (said[0] in _AS_EPOCH or said[1] in _AS_QUEUE):
        raise HandlerError(where, f"parameters {signature}", "queue and epoch, in this order")
    return Hook(kind, function, where)


class _Assignment:
    """One epoch of one queue; `follow` calls the hooks as things happen."""

    def __init__(self, epoch: Epoch, before: "_Assignment | None") -> None:
        self.epoch = epoch
        self.unanswered = 0
        """Deliveries of the epoch that are dispatched and have not ended."""
        self.is_begun = False
        """Whether `on_assigned` is done, so that messages may arrive."""
        self._before = before
        self._is_draining = False
        self._given_up = asyncio.Event()
        """Set when the epoch drains or is over."""
        self._over = asyncio.Event()
        self._told = asyncio.Event()
        """Set when all hooks of the epoch have been called."""

    def drain(self) -> None:
        """Note that the flow is being given up in good order. Idempotent."""
        self._is_draining = True
        self._given_up.set()

    def end(self) -> None:
        """Note that the flow is gone and nothing of it is being handled. Idempotent."""
        self._given_up.set()
        self._over.set()

    async def follow(self, hooks: "QueueHooks", on_begun: Callable[[], None]) -> None:
        """Call the hooks of the epoch, from its beginning to its end."""
        try:
            await self._wait_for_the_one_before(hooks)
            await hooks.call(HookKind.ASSIGNED, self.epoch)
            self.is_begun = True
            on_begun()
            # No bound: a member owns the queue until its flow goes, and handlers are waited for as the laws say.
            await self._given_up.wait()
            if self._is_draining:
                await hooks.call(HookKind.DRAIN, self.epoch)
            await self._over.wait()
            await hooks.call(HookKind.REVOKED, self.epoch)
        finally:
            self._told.set()

    async def _wait_for_the_one_before(self, hooks: "QueueHooks") -> None:
        before, self._before = self._before, None
        if before is None:
            return
        try:
            async with asyncio.timeout(hooks.timeout_s):
                await before._over.wait()
        except TimeoutError:
            _log.warning("handling_outlived_its_epoch", queue=hooks.queue, epoch=before.epoch, next_epoch=self.epoch)
        else:
            # No bound: this waits only for hooks, which have theirs.
            await before._told.wait()


class QueueHooks:
    """The hooks of a member for one queue; the queue's flow runner reports what becomes of each epoch."""

    def __init__(self, hooks: tuple[Hook, ...], queue: QueueName, timeout_ms: int) -> None:
        self.queue = queue
        self.timeout_s = timeout_ms / 1_000
        self._hooks = hooks
        self._one_at_a_time = asyncio.Lock()
        self._assignments: dict[Epoch, _Assignment] = {}
        """Epochs that are not over: the current one, and those whose handlers outlive their flow."""
        self._newest: _Assignment | None = None

    def __bool__(self) -> bool:
        """Whether there are any hooks; if not, nothing need be reported."""
        return bool(self._hooks)

    def open_for(self, epoch: Epoch, children: asyncio.TaskGroup, on_open: Callable[[], None]) -> bool:
        """Whether messages of the epoch may arrive; if not, begin its assignment, and call `on_open` when they may."""
        if not self._hooks:
            return True
        assignment = self._assignments.get(epoch)
        if assignment is None:
            assignment = self._assignments[epoch] = self._newest = _Assignment(epoch, self._newest)
            children.create_task(assignment.follow(self, on_open))
        return assignment.is_begun

    def count(self, epoch: Epoch, change: int) -> None:
        """Change the number of deliveries of the epoch that are dispatched and have not ended."""
        if (assignment := self._assignments.get(epoch)) is not None:
            assignment.unanswered += change

    def drain(self, epoch: Epoch) -> None:
        """Note that the flow is being given up in good order. Idempotent."""
        if (assignment := self._assignments.get(epoch)) is not None:
            assignment.drain()

    def end_all_but(self, bound: Epoch | None) -> None:
        """End all assignments of which nothing is being handled, except that of the epoch that has a flow."""
        for epoch, assignment in list(self._assignments.items()):
            if epoch != bound and not assignment.unanswered:
                assignment.end()
                del self._assignments[epoch]

    async def call(self, kind: HookKind, epoch: Epoch) -> None:
        """Call the hooks of a kind one after another, each within the timeout; raises nothing but cancellation."""
        # No bound: the holder of the lock has one.
        async with self._one_at_a_time:
            for hook in self._hooks:
                if hook.kind is kind:
                    await self._call(hook, epoch)

    async def _call(self, hook: Hook, epoch: Epoch) -> None:
        deadline = asyncio.timeout(self.timeout_s)
        # In a task of its own: a cancellation that a hook, or a task group in it, leaves behind must not seem ours.
        call = asyncio.create_task(self._call_within(deadline, hook, epoch))
        is_cancelled = False
        while not call.done():
            try:
                # No bound here: the call has one.
                await asyncio.wait((call,))
            except asyncio.CancelledError:
                is_cancelled = True
                call.cancel()
        failure = asyncio.CancelledError() if call.cancelled() else call.exception()
        if is_cancelled:
            raise asyncio.CancelledError
        if failure is not None:
            self._tell(hook, epoch, plain(failure), has_timed_out=deadline.expired())

    def _tell(self, hook: Hook, epoch: Epoch, failure: BaseException, *, has_timed_out: bool) -> None:
        reason = f"did not finish within {self.timeout_s:g} s" if has_timed_out else error_text(failure)
        facts = {"hook": hook.kind.value, "function": hook.where, "queue": self.queue, "epoch": epoch, "reason": reason}
        try:
            _log.warning("hook_failed", **facts, exc_info=None if has_timed_out else failure)
        except Exception as error:  # noqa: BLE001 - as in `Troubles.attempt_failed`: a hook plays no part in the laws
            _log.warning("hook_failed", **facts, exception=f"it cannot be told: {type(error).__name__}")

    async def _call_within(self, deadline: asyncio.Timeout, hook: Hook, epoch: Epoch) -> None:
        async with deadline:
            answer = await hook.function(self.queue, epoch)
            if answer is not None:
                refuse_unrun(answer, "the hook")
