"""How a group is made and ended, and what is refused.

More than 400 lines, as all of it is about what `running` makes, ends and refuses.
"""

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator
from types import ModuleType

import anyio
import pytest
import structlog

from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.errors import ConfigError, HandlerError, UserError
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.lifespan import LifespanFailed
from lbg_runtime.runtime.handlers.parameters import State
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.testing import AwaitForgotten, NotReached, VirtualTimeLoop, own_wait, running, virtual_time
from lbg_runtime.testing.virtual_time import VirtualTimeStall

YAML = """
group: {name: mine, hash_prefix: mine-hash, hash_count: 12, queue_count: 3}
ops: {journal: {path: nowhere}, status: "127.0.0.1:1"}
connection: {transport: solace, host: "tcp://nowhere:1"}
"""


async def test_the_settings_of_a_file_are_used_and_nothing_of_the_machine(handlers, tmp_path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(YAML)
    async with running(handlers(), settings=path) as group:
        assert sorted(group.broker.engine.queue_names("default")) == ["mine/0", "mine/1", "mine/2"]
        await group.publish("orders/new", "1", key="k")
        await group.settled()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("section", "found"), [("mine", "a text"), (None, "nothing")])
def test_what_is_no_section_is_refused_in_one_line(handlers, section, found) -> None:
    with pytest.raises(ConfigError, match=f"settings: group: {found}; expected a section with keys"):
        running(handlers(), settings={"group": section})


async def test_sections_are_laid_over_those_of_a_small_group(handlers) -> None:
    async with running(handlers(), settings={"group": {"queue_count": 2}, "failure": {"timeout": "1s"}}) as group:
        assert group.shape.queue_names() == ("test/0", "test/1")
        assert group.settings.failure.timeout_ms == 1_000


async def test_an_app_brings_its_handlers_and_settings(handlers) -> None:
    settings = parse_settings(
        {"group": {"name": "apps", "hash_prefix": "h", "hash_count": 4, "queue_count": 2}}, "test", {}
    )
    async with running(App(handlers(), settings), members=2) as group:
        await group.publish("orders/new", "1", key="k")
        await group.settled()
        assert group.shape.name == "apps"


async def test_a_module_brings_its_handlers(handlers, monkeypatch) -> None:
    module = ModuleType("module_of_a_user")
    module.handlers = handlers()
    monkeypatch.setitem(sys.modules, "module_of_a_user", module)
    async with running(module) as group:
        await group.publish("orders/new", "1", key="k")
        await group.settled()


def test_no_handlers_are_refused() -> None:
    with pytest.raises(HandlerError, match="handlers: none; expected at least one function"):
        running(Handlers())
    with pytest.raises(HandlerError, match="no Handlers object in the module"):
        running(asyncio)
    with pytest.raises(HandlerError, match="handlers: a str; expected a Handlers, the module that has one, or an App"):
        running("handlers.orders")


def test_names_are_for_members_that_discover_each_other(handlers) -> None:
    with pytest.raises(UserError, match=r"members: names, and membership.mode is static; expected a number"):
        running(handlers(), members=("a",), settings={"membership": {"mode": "static"}})


async def test_handlers_that_the_settings_do_not_fit_are_told_on_entry(handlers) -> None:
    with pytest.raises((ConfigError, HandlerError), match="then"):
        async with running(handlers(attempts=3)):
            pass


@pytest.mark.real_time
async def test_real_time_is_refused_with_what_to_do(handlers) -> None:
    with pytest.raises(UserError, match=r"an event loop of real time; expected a test with lbg_running among"):
        async with running(handlers()):
            pass


async def test_whoever_forgets_to_enter_it_is_told_how(handlers) -> None:
    with pytest.raises(AttributeError, match=r"\.publish without `async with`; expected `async with ... as group:`"):
        await running(handlers()).publish("orders/new", b"1", key="1")


def test_whoever_runs_it_without_asyncio_is_told_the_same(handlers) -> None:
    """As anyio does on trio."""
    entering = running(handlers()).__aenter__()
    with pytest.raises(UserError, match=r"no event loop of asyncio; expected .* run by pytest-asyncio, not by anyio"):
        entering.send(None)


def story(handlers, seed: int) -> list[object]:
    """What happened, by its records and calls, in a run of its own."""

    async def play():
        async def work(message):
            await asyncio.sleep(0.3)
            if len(group.attempts(message.key, message.key_sequence)) == 1 and message.key_sequence == 2:
                raise ValueError("once")

        async with running(handlers(work), members=3, seed=seed) as group:
            for number in range(10):
                await group.publish("orders/new", str(number), key=f"k{number % 3}")
            group.kill((await group.started("k1")).member)
            await group.settled()
        flows = [(life.member, record) for life in group.lives for record in life.records.flows]
        calls = [(each.member, each.key, each.number, each.start_ns, each.end_ns) for each in group.attempts()]
        return flows + calls

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(play())


@pytest.mark.real_time
def test_a_seed_is_the_same_run_every_time(handlers) -> None:
    first = story(handlers, 7)
    assert story(handlers, 7) == first
    assert story(handlers, 8) != first


async def test_an_error_of_the_test_leaves_no_task_behind(handlers) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        async with running(handlers(seconds=1_000), members=2) as group:
            await group.publish("orders/new", "1", "2", key="k")
            await group.started("k")
            group.pause("member-0")
            raise ZeroDivisionError
    assert asyncio.all_tasks() == before


async def test_a_test_that_is_cut_off_while_its_members_leave_leaves_nothing_behind(handlers) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10), running(handlers(seconds=1_000), members=2) as group:
            await group.publish("orders/new", "1", key="k")
            await group.started("k")
    assert asyncio.all_tasks() == before
    # Nor is the runtime's log kept quiet any longer.
    assert not structlog.is_configured()


@pytest.mark.parametrize("waits", [True, False])
async def test_a_member_that_its_lifespan_has_ended_is_told(waits) -> None:
    """It was called running, and the test waited in vain for what it should have handled."""
    handlers = Handlers()
    handlers.handler("orders/>")(asyncio.sleep)

    @handlers.lifespan
    async def life() -> AsyncIterator[None]:
        async with asyncio.timeout(10):
            yield

    with pytest.raises(LifespanFailed, match="the member was cancelled by a lifespan"):
        async with running(handlers) as group:
            await asyncio.sleep(20)
            if waits:
                await group.balanced()
                pytest.fail("it is still taken for a member")


async def within(seconds, call) -> None:
    async with asyncio.timeout(seconds):
        await call()


async def within_by_anyio(seconds, call) -> None:
    with anyio.fail_after(seconds):
        await call()


@pytest.mark.parametrize("bounded", [within, within_by_anyio])
@pytest.mark.parametrize("fails_at_s", [9, None])
async def test_a_test_that_is_cut_off_while_its_group_ends_sees_no_other_error(bounded, fails_at_s) -> None:
    """Members that were to be ended stayed frozen: the loop's runner waited for them in vain, and raised a stall."""

    async def slow_to_leave(message):
        try:
            await asyncio.sleep(1_000)
        finally:
            await asyncio.sleep(5)

    async def play() -> None:
        async with running(handlers, members=2) as group:
            await group.publish("orders/new", "1", key="k")
            await group.started("k")
            if fails_at_s is not None:
                await asyncio.sleep(fails_at_s - asyncio.get_running_loop().time())
                raise ZeroDivisionError
            await asyncio.sleep(100)

    handlers = Handlers()
    handlers.handler("orders/>")(slow_to_leave)
    before = asyncio.all_tasks()
    with pytest.raises((TimeoutError, ZeroDivisionError)):
        await bounded(10, play)
    assert asyncio.all_tasks() == before


async def test_a_wait_that_is_cut_off_leaves_no_timer(handlers) -> None:
    async with running(handlers()) as group:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            await within(0.1, lambda: group.until(lambda: False))
        wakes = [each for each in loop._scheduled if each._callback == group._something_happened.set]
        assert all(each.cancelled() for each in wakes)


async def test_a_handler_that_does_not_leave_is_named_and_stopped(handlers) -> None:
    """It had gone on, with time jumping from one of its timers to the next, for as long as the loop's runner waited for
    its end: the test hung."""

    async def stubborn(message):
        nonlocal steps
        while True:
            steps += 1
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                if is_over:
                    raise

    steps, is_over = 0, False
    try:
        settings = {"failure": {"timeout": "1h"}}
        with pytest.raises(
            NotReached, match=r"(?s)^member-0 did not leave within .*<k #1 at member-0: running>, though it was canc"
        ):
            async with running(handlers(stubborn), settings=settings) as group:
                await group.publish("orders/new", "1", key="k")
                await group.started("k")
        before = steps
        await asyncio.sleep(10_000)
        assert steps == before
    finally:
        is_over = True
        for life in group.lives:
            await life.dispose()


class Prices:
    def of(self, fruit: str) -> int:
        raise AssertionError("the real ones are on the other side of a socket")


class FixedPrices(Prices):
    def of(self, fruit: str) -> int:
        return len(fruit)


async def test_states_take_the_place_of_what_lifespans_yield() -> None:
    handlers, asked = Handlers(), []

    @handlers.lifespan
    async def prices() -> AsyncIterator[Prices]:
        raise AssertionError("no lifespan runs")
        yield Prices()

    @handlers.handler("orders/>")
    async def on_order(fruit: str, prices: State[Prices]) -> None:
        asked.append(prices.of(fruit))

    async with running(handlers, members=2, states=[FixedPrices()]) as group:
        await group.publish("orders/new", "apple", key="k")
        await group.settled()
        group.assert_handled({"k": ["apple"]})
    assert asked == [5]
    assert [lifespan.where for lifespan in handlers.lifespans] != ["FixedPrices"], "the user's own are as they were"


async def test_a_handler_that_forgets_to_await_has_not_handled_its_message() -> None:
    handlers = Handlers()

    async def book(message: Message) -> None:
        raise AssertionError("it runs")

    @handlers.handler("orders/>")
    async def on_order(message: Message) -> object:
        return book(message)

    async with running(handlers, settings={"failure": {"then": "error_queue"}}) as group:
        await group.publish("orders/new", "apple", key="k")
        await group.settled()
        assert group.handled() == []
        (moved,) = group.error_queue()
        assert "on_order" in str(moved.properties["lbg_error"])


async def test_handlers_on_threads_and_their_lifespans_work() -> None:
    handlers, lived = Handlers(), []

    @handlers.lifespan
    async def prices() -> AsyncIterator[Prices]:
        lived.append("begun")
        yield FixedPrices()
        lived.append("ended")

    @handlers.handler("orders/>")
    def on_order(fruit: str, prices: State[Prices]) -> None:
        time.sleep(0.01)
        lived.append(prices.of(fruit))

    async with running(handlers) as group:
        await group.publish("orders/new", "apple", "fig", key="k")
        await group.settled()
        group.assert_handled({"k": ["apple", "fig"]})
    assert lived == ["begun", 5, 3, "ended"]


async def test_a_group_that_waits_for_a_lifespan_says_so_and_what_to_do() -> None:
    handlers = Handlers()

    @handlers.lifespan
    async def prices() -> AsyncIterator[Prices]:
        yield FixedPrices()

    @handlers.lifespan
    async def pool() -> AsyncIterator[Pool]:
        await asyncio.Event().wait()  # as a socket, which never answers in virtual time
        yield Pool()

    @handlers.handler("orders/>")
    async def handle(message: Message, pool: State[Pool]) -> None: ...

    with pytest.raises(NotReached, match=r"member-1 waits for the lifespan .*pool .* with `states=`") as failed:
        async with running(handlers, members=2):
            pass
    assert len(failed.value.why) == 2, "no line for each queue, which has no owner for that"


class Pool: ...


async def test_a_state_of_another_type_names_the_argument_it_is_missing_in() -> None:
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def handle(message: Message, pool: State[Pool]) -> None: ...

    line = r"State\[Pool\], where there is only object; expected one in `states=`, with which no lifespan runs"
    with pytest.raises(HandlerError, match=line):
        async with running(handlers, states=[object()]):
            pass


# -- a forgotten `await`


async def write(message) -> None: ...


async def forgetful(message) -> None:
    write(message)


UNAWAITED = r"member-0, handling k #1: never awaited write \(.*test_group_context.py:\d+\), at .*test_group_context.py:"
AS_PYTHON_WARNS = pytest.mark.filterwarnings("ignore:coroutine 'write' was never awaited")


@AS_PYTHON_WARNS
async def test_an_await_that_a_handler_forgot_fails_the_test(handlers) -> None:
    with pytest.raises(AwaitForgotten, match=UNAWAITED) as caught:
        async with running(handlers(forgetful)) as group:
            await group.publish("orders/new", "1", key="k")
            await group.settled()
            with pytest.raises(AssertionError, match=UNAWAITED):
                group.assert_handled({"k": ["1"]})
    assert len(caught.value.lines) == 1


@AS_PYTHON_WARNS
async def test_a_forgotten_await_is_a_note_on_the_error_of_a_test_that_has_failed(handlers) -> None:
    with pytest.raises(ValueError, match="the test's own") as caught:
        async with running(handlers(forgetful)) as group:
            await group.publish("orders/new", "1", key="k")
            await group.settled()
            raise ValueError("the test's own")
    (note,) = caught.value.__notes__
    assert note.startswith("an `await` was forgotten as well:\n  member-0, handling k #1: ")


@AS_PYTHON_WARNS
async def test_what_the_test_itself_and_killed_members_leave_unawaited_is_no_failure(handlers) -> None:
    async def work(message) -> None:
        if message.payload == b"2":
            group.kill("member-0")
            write(message)

    async with running(handlers(work), members=2) as group:
        with pytest.warns(RuntimeWarning, match="coroutine 'write' was never awaited") as warned:
            write(None)
        assert warned[0].filename == __file__
        await group.publish("orders/new", "1", key="k")
        await group.settled()
        group.kill("member-1")
        await group.balanced()
        await group.publish("orders/new", "2", key="k")
        await group.until(lambda: len(group.attempts("k", 2)) == 1)
    assert group.unawaited == []


async def _publish_endlessly(message: Message) -> AsyncIterator[Message]:
    while True:
        yield Message("out/new", b"1")


async def _wait_for_what_is_ready(message: Message) -> None:
    for _ in itertools.count():
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("function", "options"), [(_publish_endlessly, {"publishes": "out/>"}), (_wait_for_what_is_ready, {})]
)
def test_a_handler_that_never_lets_time_pass_ends_the_test_and_is_named(monkeypatch, function, options) -> None:
    handlers = Handlers()

    @handlers.middleware
    async def impatient(message, proceed):
        # Not before: what the group does until then is no subject of this test.
        monkeypatch.setattr(virtual_time, "MOMENT_PATIENCE_S", 0.2)
        await proceed(message)

    handlers.handler("orders/>", **options)(function)

    async def test() -> None:
        async with running(handlers) as group:
            await group.publish("orders/new", "1", key="k")
            await group.settled()

    named = rf"most of all in .*:{function.__name__} \(.*\) at .*, for k #1$"
    with pytest.raises(VirtualTimeStall, match=named), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(test())


def test_a_test_that_waits_for_what_a_failing_handler_does_not_do_ends_and_says_why(monkeypatch) -> None:
    """It hung: members beat on, so time never came to an end."""
    monkeypatch.setattr(own_wait, "OWN_PATIENCE_S", 600.0)
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def on_order(message: Message) -> None:
        raise KeyError("pear")

    async def test() -> None:
        async with running(handlers) as group:
            await group.publish("orders/new", "1", key="k")
            await group.advance(1_000)
            await asyncio.Event().wait()

    told = r"has not come within 600 s:\n  test/1: k #1 failed \d+ times at member-0, at last with KeyError: 'pear'"
    with pytest.raises(VirtualTimeStall, match=told) as caught, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(test())
    assert isinstance(caught.value.__cause__, KeyError)


async def test_a_test_may_sleep_for_as_long_as_its_patience(handlers, monkeypatch) -> None:
    monkeypatch.setattr(own_wait, "OWN_PATIENCE_S", 600.0)
    async with running(handlers()) as group:
        await asyncio.sleep(500)
        await group.publish("orders/new", "1", key="k")
        await asyncio.sleep(600)
        await group.until(lambda: asyncio.get_running_loop().time() > 2_000, within_s=3_000)
        await asyncio.sleep(600)
        # A group may outlive a test, and what is asked of another one counts.
        async with running(handlers()) as other:
            await other.advance(2_000)
            await asyncio.sleep(600)
    await asyncio.sleep(1_000)
