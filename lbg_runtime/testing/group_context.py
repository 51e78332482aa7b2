"""`running`: a group for the duration of a test, judged at its end."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Protocol

from lbg_runtime.config.settings import Settings
from lbg_runtime.model.errors import UserError
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.unawaited import noticed
from lbg_runtime.runtime.membership import Membership
from lbg_runtime.testing.failures import AwaitForgotten, LawsBroken, broken_laws
from lbg_runtime.testing.group import PUBLISHER_ID, Group
from lbg_runtime.testing.handler_watch import Wrapper
from lbg_runtime.testing.kit_settings import Sections, find_handlers, find_memberships, find_settings
from lbg_runtime.testing.quiet_log import quiet_log
from lbg_runtime.testing.virtual_time import VirtualTimeLoop
from lbg_runtime.transport.to_the_end import wait_to_the_end

if TYPE_CHECKING:
    from lbg_runtime.validator.findings import Verdict

_WHERE = "lbg_runtime.testing.running"


def running(
    handlers: Handlers | ModuleType | App,
    members: int | tuple[str, ...] = 1,
    *,
    settings: Settings | Path | str | Sections | None = None,
    states: Iterable[object] | None = None,
    seed: int = 0,
    around: Wrapper | None = None,
) -> "GroupContext":
    """Run real members on a real broker's engine, in one event loop and in virtual time, while the context lasts.

        async with running(handlers, members=2) as group:
            await group.publish("orders/new", b"1", b"2", key="4711")
            await group.settled()

    `handlers` is a `Handlers`, a module that has one, or an `App`, whose settings are then used. `settings` are the
    user's own, their file, or sections that override those of a small group of four queues; their parts on the
    connection, the journal and this machine's membership are not used. `states` are what handlers get as `State[...]`,
    in place of what their lifespans yield; the lifespans then do not run. The same `seed` gives the same run. `around`
    is put around every handler, to test a wrapper of the user's own.

    On entry every queue is with its member. At the end, unless the test has failed, the members are stopped in good
    order; then the laws of the runtime are checked on everything that was done, and `LawsBroken` is raised if one is
    broken: messages lost, out of order, handled twice without a fault, or two of a key handled at once.
    `AwaitForgotten` is raised if a handler made a coroutine and nobody awaited it, or if what is around a handler did
    not wait for it. If the test has failed, both are notes on its error.

    Raises `UserError`: here for impossible handlers and settings, on entry on an event loop of real time, or if a
    package is missing.
    """
    found = find_settings(settings, handlers if isinstance(handlers, App) else None)
    memberships = find_memberships(found, members)
    registered = find_handlers(handlers)
    if states is not None:
        registered = registered.given(states)
    return GroupContext(lambda: Group(found, registered, seed, around), memberships)


class GroupContext:
    """What `running` returns; enter it once."""

    def __init__(self, make_group: Callable[[], Group], memberships: Sequence[Membership]) -> None:
        self._make_group = make_group
        self._memberships = memberships
        self._surroundings = ExitStack()

    if not TYPE_CHECKING:  # type checkers find the mistake themselves

        def __getattr__(self, name: str) -> object:
            raise AttributeError(
                f"{_WHERE}: .{name} without `async with`; expected `async with ... as group:` around it"
            )

    async def __aenter__(self) -> Group:
        __tracebackhide__ = True
        _check_surroundings()
        self._group = self._make_group()
        self._surroundings.enter_context(quiet_log())
        self._surroundings.enter_context(noticed(self._group.note_unawaited))
        try:
            await self._group.open(self._memberships)
        except BaseException:
            await self._close()
            raise
        return self._group

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Pytest then shows the test's own line.
        __tracebackhide__ = True
        failure = error
        try:
            if error is None:
                await self._group.leave()
        except Exception as own:  # noqa: BLE001 - raised below, after what is left has ended
            failure = own
        finally:
            await self._close()
        if unawaited := self._group.unawaited:
            failure = _joined(failure, AwaitForgotten(unawaited), "an `await` was forgotten", unawaited)
        verdict = _verdict(self._group)
        if verdict is not None and (lines := broken_laws(verdict)):
            failure = _joined(failure, LawsBroken(verdict), "the laws of the runtime are broken", lines)
        if unwaited := [line for life in self._group.lives for line in life.watch.unwaited]:
            # Behind the laws: that a key was reordered says more.
            failure = _joined(failure, AwaitForgotten(unwaited), "an `await` was forgotten", unwaited)
        if failure is not None and failure is not error:
            raise failure

    async def _close(self) -> None:
        with self._surroundings:
            # To its end, whoever is cancelled: the loop's runner would wait for members that stay frozen. It is bounded
            # in virtual time.
            await wait_to_the_end(self._group.close())


def _joined(failure: BaseException | None, own: BaseException, what: str, lines: Sequence[str]) -> BaseException:
    """The error to raise: the one that there is, with what else was found as a note, or else our own."""
    if failure is None:
        return own
    failure.add_note("\n  ".join([f"{what} as well:", *lines]))
    return failure


def _check_surroundings() -> None:
    __tracebackhide__ = True
    try:
        is_virtual = isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
        found = "an event loop of real time"
    except RuntimeError:
        is_virtual, found = False, "no event loop of asyncio"
    if not is_virtual:
        # A test that another plugin runs, such as anyio's, has its fixtures, but not its loop.
        expected = (
            "a test with lbg_running among its parameters, run by pytest-asyncio, not by anyio: @pytest.mark.asyncio, "
            "or asyncio_mode = auto; without pytest, asyncio.Runner(loop_factory=VirtualTimeLoop)"
        )
        raise UserError(_WHERE, found, expected)
    if find_spec("pyarrow") is None:
        raise UserError(_WHERE, "no pyarrow, which the laws are checked with", "pip install 'lbg-runtime[testing]'")


class Running(Protocol):
    """The type of the fixture `lbg_running`, which is `running`."""

    def __call__(
        self,
        handlers: Handlers | ModuleType | App,
        members: int | tuple[str, ...] = 1,
        *,
        settings: Settings | Path | str | Sections | None = None,
        states: Iterable[object] | None = None,
        seed: int = 0,
        around: Wrapper | None = None,
    ) -> GroupContext:
        """Run real members in virtual time while the context lasts, and judge at its end what was done.

        `lbg_runtime.testing.running` says what each argument is for.
        """
        ...


def _verdict(group: Group) -> "Verdict | None":
    """The verdict; None if there is nothing to judge."""
    if not group.sent.confirmed:
        return None
    # Imported here because the import takes a moment, and it is first needed here.
    from lbg_runtime.testing.laws import PublishedMessages, judge_lives

    published = PublishedMessages(PUBLISHER_ID, group.sent.confirmed)
    return judge_lives(group.lives, group.broker.failures_ns, published, group.left(), group.moved(), group.shape)
