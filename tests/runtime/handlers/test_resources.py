"""Lifespans: entered before the first message, left after the last, and what handlers find of them."""

import asyncio
from contextvars import ContextVar

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import HandlerError, InvariantViolated
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.parameters import State
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import RESOURCES, MemberResources
from tests.runtime.cancellations import left_by_a_task_group


class Pool:
    pass


class LargePool(Pool):
    pass


def _recording(name, log, state=None):
    handlers = Handlers()

    @handlers.lifespan
    async def life():
        log.append(f"{name} in")
        yield state
        log.append(f"{name} out")

    return handlers


async def test_lifespans_surround_everything_and_end_in_the_opposite_order(trial):
    log, hooks = [], Handlers()
    hooks.include(_recording("first", log))
    hooks.include(_recording("second", log))

    async def work(message):
        log.append("handled")

    async with trial.at_work(trial.member(work=work, hooks=hooks)):
        await trial.publish(2)
        await trial.until(lambda: len(trial.handled) == 2)
    assert log == ["first in", "second in", "handled", "handled", "second out", "first out"]


async def test_what_a_lifespan_sets_in_context_variables_holds_for_handlers_and_hooks_alike(trial):
    tenant, seen, hooks = ContextVar("tenant", default="none"), set(), Handlers()

    def see(where):
        seen.add((where, tenant.get()))
        tenant.set(where)

    @hooks.lifespan
    async def life():
        tenant.set("of the lifespan")
        yield
        see("its end")

    for kind in ("assigned", "drain", "revoked"):

        async def hook(_queue, _epoch, kind=kind):
            see(kind)

        getattr(hooks, f"on_{kind}")(hook)

    async def work(_message):
        see("handler")

    async with trial.at_work(trial.member(work=work, hooks=hooks)):
        await trial.publish(2)
        await trial.until(lambda: len(trial.handled) == 2)
    assert seen == {(each, "of the lifespan") for each in ("assigned", "handler", "drain", "revoked", "its end")}


async def test_state_is_found_by_its_type():
    resources, log = MemberResources(), []
    pool = LargePool()
    lifespans = [*_recording("a", log, pool).lifespans, *_recording("b", log, b"bytes").lifespans]
    async with resources.entered(lifespans):
        assert RESOURCES.get() is resources
        assert resources.state(Pool) is pool
        assert resources.state(LargePool) is pool
        assert resources.states(Message) == []
        with pytest.raises(InvariantViolated, match="no lifespan yielded a Message"):
            resources.state(Message)
    assert RESOURCES.get() is not resources


async def test_a_handler_without_its_state_stops_the_start(trial):
    hooks = Handlers()

    @hooks.handler("bills/>")
    async def handle(message: Message, pool: State[Pool]) -> None: ...

    with pytest.raises(HandlerError, match=r"State\[Pool\]; expected a lifespan that yields one"):
        await trial.member(hooks=hooks).run()


async def test_a_handler_whose_state_lies_in_a_tuple_is_told_what_the_lifespans_have_yielded(trial):
    hooks = _recording("both", [], (Pool(), Pool()))
    hooks.include(_recording("none", []))

    @hooks.handler("bills/>")
    async def handle(message: Message, pool: State[Pool]) -> None: ...

    line = r"State\[Pool\], where there is only tuple; expected a lifespan that yields one"
    with pytest.raises(HandlerError, match=line):
        await trial.member(hooks=hooks).run()


async def test_a_handler_that_could_get_either_of_two_states_stops_the_start(trial):
    """It got the first: what was meant for one of two groups was published to the other."""
    hooks = Handlers()
    for name, pool in (("one", Pool()), ("other", LargePool())):
        hooks.include(_recording(name, [], pool))

    @hooks.handler("bills/>")
    async def handle(message: Message, large: State[LargePool], pool: State[Pool]) -> None: ...

    told = r"State\[Pool\], of which there are 2 \(Pool, LargePool\); expected a type of which there is one"
    with pytest.raises(HandlerError, match=told):
        await trial.member(hooks=hooks).run()


async def test_a_lifespan_that_fails_to_begin_stops_the_start_and_the_others_end(trial):
    log, hooks = [], Handlers()
    hooks.include(_recording("first", log))

    @hooks.lifespan
    async def broken():
        raise OSError("no database")
        yield

    with pytest.raises(HandlerError, match=r"broken \(.*\): OSError: no database; expected a lifespan that reaches"):
        await trial.member(hooks=hooks).run()
    assert log == ["first in", "first out"]
    assert trial.active() == {}


async def test_a_lifespan_that_fails_at_its_end_is_told_and_the_member_leaves_cleanly(trial):
    log, hooks = [], Handlers()
    hooks.include(_recording("first", log))

    @hooks.lifespan
    async def broken():
        yield
        raise OSError("no database")

    with capture_logs() as logs:
        async with trial.running(trial.member(hooks=hooks)) as (task,):
            await trial.until(lambda: len(trial.active()) == 4)
    assert task.result().is_clean
    assert log == ["first in", "first out"]
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["lifespan_failed"]


async def _cancelled_task():
    waiting = asyncio.create_task(asyncio.Event().wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await waiting


async def _panic():
    # As the errors of libraries in other languages are.
    raise BaseException("panicked")  # noqa: TRY002


async def _closed():
    raise GeneratorExit


@pytest.mark.parametrize(
    ("fail", "told"),
    [(_cancelled_task, "CancelledError"), (_panic, "BaseException: panicked"), (_closed, "GeneratorExit")],
)
async def test_what_a_lifespan_raises_of_its_own_is_its_failure_at_either_end(fail, told):
    """What was no `Exception` ended the member with a traceback."""
    handlers = Handlers()

    @handlers.lifespan
    async def broken():
        yield
        await fail()

    with capture_logs() as logs:
        async with MemberResources().entered(handlers.lifespans):
            pass
    assert [each["event"] for each in logs] == ["lifespan_failed"]

    @handlers.lifespan
    async def broken_earlier():
        await fail()
        yield

    with pytest.raises(HandlerError, match=rf"broken_earlier \(.*\): {told}; expected"):
        async with MemberResources().entered(handlers.lifespans[1:]):
            pass


@pytest.mark.parametrize("is_at_the_start", [True, False])
async def test_a_lifespan_does_not_take_a_cancellation_of_the_member_for_its_own(is_at_the_start):
    handlers, waiting = Handlers(), asyncio.Event()

    @handlers.lifespan
    async def long():
        if not is_at_the_start:
            yield
        waiting.set()
        await asyncio.Event().wait()
        if is_at_the_start:
            yield

    async def live():
        async with MemberResources().entered(handlers.lifespans):
            pass

    living = asyncio.create_task(live())
    await waiting.wait()
    living.cancel()
    with pytest.raises(asyncio.CancelledError):
        await living


async def test_a_lifespan_that_lets_a_cancellation_through_at_its_end_is_told_although_a_task_group_had_failed_in_it():
    handlers = Handlers()

    @handlers.lifespan
    async def broken():
        await left_by_a_task_group()
        yield
        await _cancelled_task()

    async def live():
        async with MemberResources().entered(handlers.lifespans):
            pass

    with capture_logs() as logs:
        await asyncio.create_task(live())
    assert [each["event"] for each in logs] == ["lifespan_failed"]


async def test_a_lifespan_that_lets_a_cancellation_through_at_its_beginning_is_told_although_another_was_left_one():
    handlers = Handlers()

    @handlers.lifespan
    async def tried():
        await left_by_a_task_group()
        yield

    @handlers.lifespan
    async def broken():
        await _cancelled_task()
        yield

    async def live():
        async with MemberResources().entered(handlers.lifespans):
            pass

    with pytest.raises(HandlerError, match=r"broken \(.*\): CancelledError; expected"):
        await asyncio.create_task(live())


async def test_members_of_one_process_have_their_own_state():
    async def seen(resources, state):
        async with resources.entered(_recording("x", [], state).lifespans):
            await asyncio.sleep(1)
            return RESOURCES.get().state(Pool)

    pools = [Pool(), Pool()]
    assert await asyncio.gather(*(seen(MemberResources(), pool) for pool in pools)) == pools


async def _coroutine():
    pass


async def _with_parameter(app):
    yield


@pytest.mark.parametrize(
    ("function", "line"), [(_coroutine, "no async generator"), (_with_parameter, "parameters (app)")]
)
def test_what_is_no_lifespan_is_refused(function, line):
    with pytest.raises(HandlerError) as caught:
        Handlers().lifespan(function)
    assert line in str(caught.value)
    assert "test_resources.py:" in caught.value.where
