"""Members that are asked to leave while they begin, or while their lifespans end.

More than 400 lines, as each thing that a member waits for at its beginning has a stand-in here.
"""

import asyncio
import sys
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress

import anyio
import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.model.errors import ConfigError, ConnectFailed, HandlerError
from lbg_runtime.runtime import app as app_module
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.lifespan import LifespanFailed
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.shutdown import ExitGuard
from tests.runtime.cancellations import left_by_a_task_group


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_a_session_that_cannot_be_opened_matters_only_to_a_member_that_is_to_stay(trial, is_stopped):
    app, opening, given_up = trial.member(), asyncio.Event(), asyncio.Event()

    async def time_out():
        opening.set()
        await given_up.wait()
        raise ConnectFailed("tcp://silent:55555", "no answer")

    trial.sessions["member-0"].open = time_out
    task = asyncio.ensure_future(app.run())
    await opening.wait()
    if is_stopped:
        app.stop()
    given_up.set()
    if is_stopped:
        assert (await task).exit_code == 0
        assert trial.records()[-1]["clean"] is True
        return
    with pytest.raises(ConnectFailed):
        await task


@pytest.mark.parametrize("how", ["stop", "stop_now", "stop before"])
async def test_a_member_that_is_to_leave_waits_for_no_connection(trial, how):
    app, opening = trial.member(), asyncio.Event()

    async def hang():
        opening.set()
        await asyncio.get_running_loop().create_future()

    trial.sessions["member-0"].open = hang
    if how == "stop before":
        app.stop()
    task = asyncio.ensure_future(app.run())
    if how != "stop before":
        await opening.wait()
        getattr(app, how)()
    report = await asyncio.wait_for(task, 1)
    assert report.exit_code == 0
    assert trial.records()[-1]["clean"] is True
    assert task.cancelling() == 0


async def test_the_loop_is_watched_from_before_the_first_handler_of_the_user_to_the_end_and_not_while_it_connects(
    trial, monkeypatch
):
    """Where many started at once, some were ended for a loop that their imports blocked."""
    told, hooks = [], Handlers()

    @contextmanager
    def watched(_):
        told.append("watched")
        yield
        told.append("no longer watched")

    @hooks.lifespan
    async def lived():
        told.append("begins")
        yield
        told.append("ends")

    monkeypatch.setattr(app_module, "watched_loop", watched)
    app = trial.member(hooks=hooks)
    session = trial.sessions["member-0"]
    for name, asked in (("open", session.open), ("provision", session.provision), ("close", session.close)):

        async def noted(*arguments, name=name, asked=asked, **options):
            told.append(name)
            return await asked(*arguments, **options)

        monkeypatch.setattr(session, name, noted)
    guard = ExitGuard()
    running = asyncio.ensure_future(app._run_as_process(guard, None, ends_process=False))
    try:
        await trial.until(lambda: len(trial.active()) == 4)
        app.stop()
        assert (await running).is_clean
    finally:
        # Otherwise it ends the process of these tests half a minute later.
        guard.disarm()
    in_order = list(dict.fromkeys(told))
    assert in_order == ["open", "provision", "watched", "begins", "ends", "close", "no longer watched"]


@pytest.mark.parametrize("how", ["stop", "stop_now"])
async def test_a_member_that_is_to_leave_makes_no_more_queues_and_begins_no_lifespan(trial, how):
    hooks, begun = Handlers(), []

    @hooks.lifespan
    async def life():
        begun.append("life")
        yield

    app, asked = trial.member(hooks=hooks), asyncio.Event()
    trial.broker.is_reachable = True

    async def hang(queue, subscriptions):
        asked.set()
        await asyncio.get_running_loop().create_future()

    trial.sessions["member-0"].provision = hang
    task = asyncio.ensure_future(app.run())
    await asked.wait()
    getattr(app, how)()
    report = await asyncio.wait_for(task, 1)
    assert report.exit_code == 0
    assert begun == []
    assert trial.records()[-1]["clean"] is True


class _SlowCompanion:
    """Ready after a while; by then somebody has deleted the queues."""

    def __init__(self, broker):
        self._broker = broker
        self.shared = {}

    @asynccontextmanager
    async def attend(self, session, on_able, changed):
        yield

    async def until_ready(self):
        await asyncio.sleep(5)
        for index in range(4):
            self._broker.delete_queue(f"orders/{index}")

    def flow_changed(self, queue, epoch, *, is_kept):
        pass


async def test_queues_that_were_deleted_while_a_member_waited_for_its_companion_are_made_again(trial):
    """Missing ones would be taken for a mistake, and the member would leave."""
    made = trial.member()
    companion = _SlowCompanion(trial.broker)
    app = App(made.handlers, made.settings, session=trial.sessions["member-0"], companion=companion)
    async with trial.running(app):
        await trial.until(lambda: len(trial.active()) == 4, within_s=10)


@pytest.mark.parametrize("how", [App.stop, App.stop_now])
async def test_a_member_that_is_to_leave_waits_no_longer_for_its_companion(trial, how):
    made = trial.member()
    companion = _SlowCompanion(trial.broker)
    app = App(made.handlers, made.settings, session=trial.sessions["member-0"], companion=companion)
    running = asyncio.create_task(app.run())
    await asyncio.sleep(2)
    how(app)
    assert (await running).is_clean
    assert trial.broker.engine.queue_status(DEFAULT_VPN, "orders/0"), "it was not waited for"


async def test_a_member_that_is_to_leave_waits_no_longer_for_its_companion_to_begin(trial):
    """As for a lander whose disk hangs."""

    class HangingCompanion(_SlowCompanion):
        @asynccontextmanager
        async def attend(self, session, on_able, changed):
            await asyncio.get_running_loop().create_future()
            yield

    made = trial.member()
    companion = HangingCompanion(trial.broker)
    app = App(made.handlers, made.settings, session=trial.sessions["member-0"], companion=companion)
    running = asyncio.create_task(app.run())
    await asyncio.sleep(2)
    app.stop()
    assert (await asyncio.wait_for(running, 1)).is_clean


async def test_who_cannot_handle_any_more_when_the_member_begins_gets_no_queues(trial):
    class GoneCompanion(_SlowCompanion):
        """Ready, and then away, while the member still waits for the broker."""

        @asynccontextmanager
        async def attend(self, session, on_able, changed):
            self._on_able = on_able
            yield

        async def until_ready(self):
            self._on_able(False)

    made, other = trial.discovered("a"), trial.discovered("b")
    companion = GoneCompanion(trial.broker)
    app = App(made.handlers, made.settings, session=trial.sessions["a"], companion=companion)
    async with trial.at_work(app, other):
        await asyncio.sleep(20)
        assert set(trial.active().values()) == {"b"}


def test_a_member_whose_name_no_broker_takes_is_told_so_before_it_connects(settings):
    handlers = Handlers()
    handlers.handler("orders/>")(lambda _: asyncio.sleep(0))
    discovered = settings(
        membership={"mode": "discovered", "index": None, "count": None}, rebind={"mode": "cooperative"}
    )
    with pytest.raises(ConfigError, match=r"membership\.id: 200 bytes; expected at most"):
        App(handlers, discovered, member_id="ä" * 100)


def _leaving_slowly(log):
    """Handlers with a lifespan that takes its time to end."""
    hooks = Handlers()

    @hooks.lifespan
    async def slow():
        yield
        await asyncio.sleep(1)
        log.append("slow out")

    return hooks


async def test_a_stop_ends_a_lifespan_that_is_still_beginning_and_those_before_it_end_in_order(trial):
    log, begun = [], asyncio.Event()
    hooks = _leaving_slowly(log)

    @hooks.lifespan
    async def endless():
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(1)
            log.append("endless out")
        yield

    app = trial.member(hooks=hooks, rebind={"drain_timeout": "1h"})
    task = asyncio.ensure_future(app.run())
    await begun.wait()
    app.stop()
    report = await asyncio.wait_for(task, 10)
    assert report.exit_code == 0
    assert log == ["endless out", "slow out"]
    assert trial.active() == {}
    assert asyncio.current_task().cancelling() == 0


async def test_a_stop_ends_a_lifespan_that_tries_its_services_in_one_task_group_after_another(trial):
    tries, hooks = asyncio.Queue(), Handlers()

    async def connect():
        raise OSError("away")

    @hooks.lifespan
    async def services():
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(connect())
                break
            except* OSError:
                tries.put_nowait("away")
            await asyncio.sleep(1)
        yield

    app = trial.member(hooks=hooks, rebind={"drain_timeout": "1h"})
    task = asyncio.ensure_future(app.run())
    for _ in range(3):
        await tries.get()
    app.stop()
    report = await asyncio.wait_for(task, 10)
    assert report.exit_code == 0
    assert trial.active() == {}


async def test_stop_now_ends_a_lifespan_that_was_still_beginning_at_the_stop_and_takes_its_time_to_give_up(trial):
    log, begun, tidying, hooks = [], asyncio.Event(), asyncio.Event(), Handlers()

    @hooks.lifespan
    async def endless():
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            tidying.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                log.append("endless out")
        yield

    app = trial.member(hooks=hooks, rebind={"drain_timeout": "1h"})
    task = asyncio.ensure_future(app.run())
    await begun.wait()
    app.stop()
    await tidying.wait()
    app.stop_now()
    report = await asyncio.wait_for(task, 10)
    assert report.exit_code == 0
    assert log == ["endless out"]
    assert trial.active() == {}
    assert asyncio.current_task().cancelling() == 0


async def test_a_lifespan_that_reaches_its_yield_all_the_same_is_left_and_nothing_is_bound(trial):
    log, begun, hooks = [], asyncio.Event(), Handlers()

    @hooks.lifespan
    async def deaf():
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            log.append("in")
        yield
        log.append("out")

    app = trial.member(hooks=hooks)
    task = asyncio.ensure_future(app.run())
    await begun.wait()
    app.stop()
    assert (await asyncio.wait_for(task, 10)).is_clean
    assert log == ["in", "out"]
    assert not any(record["kind"] == "flow" for record in trial.records())


async def test_a_lifespan_that_fails_for_being_stopped_is_told(trial):
    begun, hooks = asyncio.Event(), Handlers()

    @hooks.lifespan
    async def broken():
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise OSError("half open") from None
        yield

    app = trial.member(hooks=hooks)
    task = asyncio.ensure_future(app.run())
    await begun.wait()
    app.stop()
    with pytest.raises(HandlerError, match="half open"):
        await task


async def test_stop_now_ends_a_lifespan_that_is_still_ending_and_those_before_it_end_in_order(trial):
    log, ending = [], asyncio.Event()
    hooks = _leaving_slowly(log)

    @hooks.lifespan
    async def endless():
        yield
        ending.set()
        await asyncio.get_running_loop().create_future()

    app = trial.member(hooks=hooks)
    async with trial.at_work(app) as (task,):
        app.stop()
        await ending.wait()
        app.stop_now()
        report = await asyncio.wait_for(task, 10)
    assert report.is_clean
    assert log == ["slow out"]


@asynccontextmanager
async def _waiting_in_anyio():
    """A group that waits for a task which cleans up: it forgets its own cancellation for one that comes meanwhile."""
    is_clean = asyncio.Event()

    async def clean_up_slowly():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            with anyio.CancelScope(shield=True):
                await is_clean.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(clean_up_slowly)
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(1, is_clean.set)


@asynccontextmanager
async def _waiting():
    try:
        yield
    finally:
        await asyncio.sleep(1)


@pytest.mark.parametrize("stops", ["never", "before", "at once", "meanwhile"])
@pytest.mark.parametrize("around", [nullcontext, _waiting, _waiting_in_anyio])
@pytest.mark.parametrize("failed_before", [False, True])
async def test_a_member_that_is_cancelled_while_a_lifespan_begins_passes_it_on_whether_it_is_stopped_or_not(
    trial, stops, around, failed_before
):
    """Behind what cleans up after it, the cancellation was lost: whoever had cancelled saw a member that had left."""
    begun, hooks = asyncio.Event(), Handlers()

    @hooks.lifespan
    async def endless():
        if failed_before:
            await left_by_a_task_group()
        async with around():
            begun.set()
            await asyncio.get_running_loop().create_future()
        yield

    app = trial.member(hooks=hooks)
    task = asyncio.ensure_future(app.run())
    await begun.wait()
    if stops == "before":
        app.stop()
    task.cancel()
    if stops == "meanwhile":
        await asyncio.sleep(0.5)
    if stops != "never":
        app.stop()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_a_lifespan_ignores_is_passed_on_once_the_member_has_left(trial):
    begun, ignored, hooks = asyncio.Event(), asyncio.Event(), Handlers()

    @hooks.lifespan
    async def deaf():
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        ignored.set()
        yield

    app = trial.member(hooks=hooks)
    task = asyncio.ensure_future(app.run())
    await begun.wait()
    task.cancel()
    await ignored.wait()
    app.stop()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert trial.records()[-1]["clean"] is True


@pytest.mark.parametrize("phase", ["begin", "end"])
async def test_a_lifespans_own_cancellation_behind_a_failed_task_group_is_told_as_the_lifespans(trial, phase):
    """Python 3.11 and 3.12 have counted one more by then: a bare `CancelledError` came, as if of one from elsewhere."""
    hooks = Handlers()

    async def let_through():
        await left_by_a_task_group()
        own = asyncio.create_task(asyncio.sleep(600))
        own.cancel()
        await own

    @hooks.lifespan
    async def life():
        if phase == "begin":
            await let_through()
        yield
        await let_through()

    app = trial.member(hooks=hooks)
    task = asyncio.ensure_future(app.run())
    if phase == "end":
        await trial.until(lambda: len(trial.active()) == 4)
        app.stop()
    # The count of 3.13 is right, so that it is known for a failure of this lifespan, which is logged at the end.
    if sys.version_info >= (3, 13) and phase == "end":
        await task
        return
    with pytest.raises(HandlerError if sys.version_info >= (3, 13) else LifespanFailed):
        await task


async def test_a_cancel_scope_of_anyio_ends_a_member_in_order(trial):
    """It cancels in each turn of the loop: nothing of that is a second wish to end."""
    log = []
    app = trial.member(hooks=_leaving_slowly(log))
    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        await trial.until(lambda: len(trial.active()) == 4)
        group.cancel_scope.cancel()
    assert log == ["slow out"]
    released = [record for record in trial.records() if record.get("event") == "released"]
    assert len(released) == 4


def _in_asyncio(failing):
    async def life():
        async with asyncio.TaskGroup() as group:
            group.create_task(failing())
            yield

    return life


def _in_anyio(failing):
    async def life():
        async with anyio.create_task_group() as group:
            group.start_soon(failing)
            yield

    return life


def _in_time(failing):
    async def life():
        async with asyncio.timeout(5):
            yield

    return life


@pytest.mark.parametrize("around", [_in_asyncio, _in_anyio, _in_time])
async def test_what_a_lifespan_has_around_its_yield_ends_the_member_with_an_error_that_says_so(trial, around):
    log, began = [], asyncio.Event()
    hooks = _leaving_slowly(log)

    async def failing():
        await asyncio.sleep(5)
        raise OSError("prices are gone")

    async def work(message):
        began.set()
        await asyncio.get_running_loop().create_future()

    hooks.lifespan(around(failing))
    task = asyncio.ensure_future(trial.member(hooks=hooks, work=work).run())
    with capture_logs() as logs:
        await trial.until(lambda: len(trial.active()) == 4)
        await trial.publish(1)
        await began.wait()
        with pytest.raises(LifespanFailed, match="by a lifespan: by what it has around its `yield`") as caught:
            await asyncio.wait_for(task, 60)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["lifespan_failed"] * (
        around is not _in_time
    )
    assert log == ["slow out"]
    assert trial.active() == {}
    assert sum(trial.depths()) == 1, "cut short, and settled by nobody"
    assert trial.records()[-1]["clean"] is False


async def test_a_lifespan_that_fails_while_another_begins_ends_the_start(trial):
    hooks, failed = Handlers(), asyncio.Event()

    async def failing():
        await failed.wait()
        raise OSError("prices are gone")

    hooks.lifespan(_in_asyncio(failing))

    @hooks.lifespan
    async def endless():
        failed.set()
        await asyncio.get_running_loop().create_future()
        yield

    with pytest.raises(LifespanFailed):
        await asyncio.wait_for(trial.member(hooks=hooks).run(), 60)


async def test_a_cancellation_from_outside_is_passed_on_although_there_is_a_lifespan(trial):
    task = asyncio.ensure_future(trial.member(hooks=_leaving_slowly([])).run())
    await trial.until(lambda: len(trial.active()) == 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
