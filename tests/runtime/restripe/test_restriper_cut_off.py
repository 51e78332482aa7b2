"""Who conducted and was cut off sends nothing more over SEMP, however slow a gateway is; and says what happened."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from lbg_runtime.broker.engine.settings import QueueSettings, RejectOnDiscard
from lbg_runtime.broker.semp.app import make_app
from lbg_runtime.core.restripe.conductor import DeleteQueue, Publish
from lbg_runtime.core.restripe.records import StripeEnd
from lbg_runtime.model.errors import (
    ConductorCutOff,
    ConfigError,
    PublishFailed,
    SempElsewhere,
    SempError,
    SempUnreachable,
    TransportError,
    UserError,
)
from lbg_runtime.runtime.restripe import restriper as restriper_module
from lbg_runtime.runtime.restripe.hearing import LOOK_AGAIN_S, PROOF_PATIENCE_S, PROOF_S
from lbg_runtime.runtime.restripe.restriper import HELD_S, Restriper, open_restriper
from lbg_runtime.semp.client import PAUSES_S, REQUEST_TIMEOUT_S, SempAccount, SempClient
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.restripe.restripe_world import GROUP, handled, in_order_and_once, publish_for, published_in

SLOW_S = 7.0
A_SHARD = "DELETE /SEMP/v2/config/msgVpns/default/queues/orders%2F0/subscriptions/h%2F4%2F%3E"
LAST_TOPIC = "DELETE /SEMP/v2/config/msgVpns/default/queues/orders%2F1/subscriptions/lbg-control"
FIRST_TOPIC = "POST /SEMP/v2/config/msgVpns/default/queues/orders%2F0/subscriptions"
LAST_TOPIC_OF_THE_LAST = "DELETE /SEMP/v2/config/msgVpns/default/queues/orders%2F3/subscriptions/lbg-control"
A_QUEUE = "PATCH /SEMP/v2/config/msgVpns/default/queues/orders%2F3"


class Gateway(httpx.AsyncBaseTransport):
    """Before the broker's SEMP. Keeps the times of all requests; some it answers late with 503."""

    def __init__(self, broker, slow="", slow_count=0):
        self._broker = httpx.ASGITransport(make_app(broker.engine, broker.post))
        self._slow = slow
        self._left = slow_count
        self._turns_at = ""
        self.came_at_s = []
        self._is_slow = asyncio.Event()

    def turn_to(self, broker, at=""):
        """Ask another broker from now on or, `at` a request, from the answer to that one on."""
        self._turns_to, self._turns_at = httpx.ASGITransport(make_app(broker.engine, broker.post)), at
        self._broker = self._broker if at else self._turns_to

    async def handle_async_request(self, request):
        self.came_at_s.append(asyncio.get_running_loop().time())
        what = f"{request.method} {request.url.raw_path.decode()}"
        if self._turns_at and what.startswith(self._turns_at):
            answer = await self._broker.handle_async_request(request)
            self._broker, self._turns_at = self._turns_to, ""
            return answer
        if self._left and self._slow and what.startswith(self._slow):
            self._left -= 1
            self._is_slow.set()
            await asyncio.sleep(SLOW_S)
            return httpx.Response(503)
        return await self._broker.handle_async_request(request)

    async def slow_request(self, restriping):
        """Wait until a request waits for its late answer; `restriping` goes on."""
        waiting = asyncio.ensure_future(self._is_slow.wait())
        await asyncio.wait([waiting, restriping], return_when=asyncio.FIRST_COMPLETED)
        assert not restriping.done(), restriping.exception()


class Conductors:
    """Runs of the command against one broker, of which each replaces the one before."""

    def __init__(self, trial, settings, monkeypatch, name="orders"):
        sections = {"semp": {"url": "http://broker", "password": "admin"}, "rebind": {"mode": "cooperative"}}
        self._settings = settings(group=GROUP | {"name": name}, **sections)
        self._broker = trial.broker
        self._gateway = None
        self.sessions = []
        self.has_session = asyncio.Event()
        monkeypatch.setattr(restriper_module, "open_session", self._open_session)
        monkeypatch.setattr(restriper_module, "open_semp", self._open_semp)

    async def restripe(self, count, gateway=None):
        self._gateway = gateway or Gateway(self._broker)
        async with open_restriper(self._settings, count, lambda _: None) as restriper:
            return await restriper.run()

    @asynccontextmanager
    async def _open_session(self, _, name, *__, **___):
        for earlier in self.sessions:
            earlier.drop_connection(3_600)
        session = MemoryTransport(self._broker, name)
        await session.open()
        self.sessions.append(session)
        self.has_session.set()
        try:
            yield session
        finally:
            await session.close()

    def _open_semp(self, _):
        return SempClient(SempAccount("http://broker", "admin", "admin"), transport=self._gateway)


def make_queues(broker, settings):
    shape = settings().group.shape()
    for name, topics in zip(shape.queue_names(), map(shape.subscriptions, range(4)), strict=True):
        broker.create_queue(name, topics, settings=QueueSettings(reject_on_discard=RejectOnDiscard.ALWAYS))


@pytest.fixture
def conductors(trial, settings, monkeypatch):
    make_queues(trial.broker, settings)
    return Conductors(trial, settings, monkeypatch)


async def test_who_was_replaced_does_not_send_its_request_again_when_slow_503s_come(trial, conductors) -> None:
    """It would take a shard from a queue that is to have it again by then."""
    gateway = Gateway(trial.broker, A_SHARD, len(PAUSES_S))
    async with trial.at_work(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        publishing = asyncio.ensure_future(publish_for(trial, 60))
        replaced = asyncio.ensure_future(conductors.restripe(6, gateway))
        await gateway.slow_request(replaced)
        replaced_at_s = asyncio.get_running_loop().time()
        for count in (6, 4):
            assert (await conductors.restripe(count)).moving == 4
        with pytest.raises(
            ConductorCutOff, match="re-striping of group orders: the connection was lost, or another run"
        ):
            await replaced
        await publishing
        await trial.until(lambda: handled(trial) == published_in(60))
    assert max(gateway.came_at_s) <= replaced_at_s
    assert in_order_and_once(trial)


@pytest.mark.parametrize(("slow", "count"), [(A_SHARD, 6), (LAST_TOPIC, 6), (A_QUEUE, 3)])
async def test_nothing_leaves_over_semp_once_the_connection_is_lost(trial, conductors, slow: str, count: int) -> None:
    """Neither another attempt, nor the next request of the same step, such as those that delete a queue."""
    gateway = Gateway(trial.broker, slow, 1)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        restriping = asyncio.ensure_future(conductors.restripe(count, gateway))
        await gateway.slow_request(restriping)
        cut_off_at_s = asyncio.get_running_loop().time()
        conductors.sessions[-1].drop_connection(3_600)
        with pytest.raises(ConductorCutOff):
            await restriping
    assert max(gateway.came_at_s) <= cut_off_at_s


async def test_a_request_is_given_up_after_its_time_and_leaves_room_for_one_that_is_held(trial, conductors) -> None:
    gateway = Gateway(trial.broker, A_SHARD, 6)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        restriping = asyncio.ensure_future(conductors.restripe(6, gateway))
        await gateway.slow_request(restriping)
        asked_at_s = asyncio.get_running_loop().time()
        with pytest.raises(SempUnreachable, match="no answer within 10 s"):
            await restriping
        told_after_s = asyncio.get_running_loop().time() - asked_at_s
        assert told_after_s == pytest.approx(REQUEST_TIMEOUT_S, abs=2 * LOOK_AGAIN_S)
    assert PROOF_S + REQUEST_TIMEOUT_S < HELD_S


async def test_the_administration_of_another_broker_than_that_of_the_members_is_refused(
    trial, settings, conductors
) -> None:
    """The standby of a pair has the same queues, and says that they are empty and that nobody is bound to them."""
    standby = MemoryBroker()
    make_queues(standby, settings)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        with pytest.raises(SempElsewhere, match=r"semp\.url: http://broker is of a broker .* lbg-restriper-orders"):
            await conductors.restripe(3, Gateway(standby))
        assert len(standby.engine.queue_names("default")) == 4
        assert (await conductors.restripe(3)).moving == 5


@pytest.mark.parametrize("turns_at", [FIRST_TOPIC, LAST_TOPIC_OF_THE_LAST])
async def test_an_administration_that_leads_to_another_broker_later_on_is_refused_then(
    trial, settings, conductors, monkeypatch, turns_at: str
) -> None:
    """What distributes requests may send them to the standby as soon as it believes both brokers to be ill."""
    standby, gateway, take, steps = MemoryBroker(), Gateway(trial.broker), Restriper._do, []
    make_queues(standby, settings)

    def noted(restriper, step, conductor):
        steps.append(step)
        return take(restriper, step, conductor)

    monkeypatch.setattr(Restriper, "_do", noted)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        gateway.turn_to(standby, at=turns_at)
        with pytest.raises(SempElsewhere):
            await conductors.restripe(3, gateway)
        records = [step.record for step in steps if isinstance(step, Publish)]
        assert not any(isinstance(record, StripeEnd) for record in records), "members leave queues at that"
        assert len(standby.engine.queue_names("default")) == 4, "what is deleted there is deleted at both"
        assert await conductors.restripe(3) is not None
    assert len(trial.broker.engine.queue_names("default")) == 3


async def test_no_queue_is_deleted_because_another_broker_calls_it_out_of_use(
    trial, settings, conductors, monkeypatch
) -> None:
    standby, gateway, take = MemoryBroker(), Gateway(trial.broker), Restriper._do
    make_queues(standby, settings)

    def turned_by_then(restriper, step, conductor):
        if isinstance(step, DeleteQueue):
            gateway.turn_to(standby)
        return take(restriper, step, conductor)

    monkeypatch.setattr(Restriper, "_do", turned_by_then)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        with pytest.raises(SempElsewhere):
            await conductors.restripe(3, gateway)
    assert len(standby.engine.queue_names("default")) == 4


async def test_who_loses_its_connection_while_it_waits_for_members_says_so(trial, conductors) -> None:
    gateway = Gateway(trial.broker)
    restriping = asyncio.ensure_future(conductors.restripe(6, gateway))
    await conductors.has_session.wait()
    conductors.sessions[-1].drop_connection(3_600)
    with pytest.raises(ConductorCutOff) as caught:
        await restriping
    assert caught.value.group == "orders"
    assert not isinstance(caught.value, SempError | TransportError), "the command would say to run it again"


@pytest.mark.parametrize("news_after_s", [0, LOOK_AGAIN_S / 2])
async def test_a_record_that_fails_because_another_took_over_is_no_reason_to_run_again(
    trial, conductors, news_after_s: float
) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        restriping = asyncio.ensure_future(conductors.restripe(6))
        await conductors.has_session.wait()
        session = conductors.sessions[-1]

        async def send(message):
            if news_after_s:
                asyncio.get_running_loop().call_later(news_after_s, session.drop_connection, 3_600)
            else:
                session.drop_connection(3_600)
            raise PublishFailed(message.topic, "the session ended")

        session.send = send
        with pytest.raises(ConductorCutOff):
            await restriping


async def test_an_administrator_that_is_refused_throws_nobody_out(trial, conductors, monkeypatch) -> None:
    def refuse(_):
        raise ConfigError("semp.password", "refused", "another")

    monkeypatch.setattr(restriper_module, "open_semp", refuse)
    with pytest.raises(ConfigError):
        await conductors.restripe(6)
    assert not conductors.sessions


async def test_who_asks_for_another_number_throws_out_nobody_who_conducts(trial, conductors) -> None:
    """The shard that was just moving would wait for the next run."""
    gateway = Gateway(trial.broker, A_SHARD, 1)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        restriping = asyncio.ensure_future(conductors.restripe(6, gateway))
        await gateway.slow_request(restriping)
        for count in (3, 4):
            with pytest.raises(UserError, match=f"--queues: {count}, while .* from 4 to 6 queues; expected 6, to end"):
                await conductors.restripe(count)
        assert len(conductors.sessions) == 1
        assert (await restriping).moved == 4


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_who_was_stopped_sends_nothing_before_it_is_proved_that_nobody_took_over(
    trial, conductors, monkeypatch, is_replaced: bool
) -> None:
    """The news of that is still to be read when the process goes on, and what was to be done next would be done."""
    gateway = Gateway(trial.broker)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        loop = asyncio.get_running_loop()
        came_before, stopped_at_s = [], []
        take = Restriper._take

        async def stop_then_take(restriper, step, conductor):
            if len(gateway.came_at_s) > 12 and not stopped_at_s:
                came_before.append(len(gateway.came_at_s))
                stopped_at_s.append(loop.time())
                # What arrives meanwhile is read only afterwards.
                watcher = conductors.sessions[0]._watcher
                heard, conductors.sessions[0]._direct = conductors.sessions[0]._direct, []
                conductors.sessions[0]._watcher = None
                if is_replaced:
                    conductors.sessions[0].drop_connection(3_600)
                await asyncio.sleep(25)
                conductors.sessions[0]._watcher, conductors.sessions[0]._direct = watcher, heard
                if is_replaced:
                    loop.call_later(0.001, watcher, False)
            await take(restriper, step, conductor)

        monkeypatch.setattr(Restriper, "_take", stop_then_take)
        restriping = asyncio.ensure_future(conductors.restripe(6, gateway))
        if is_replaced:
            with pytest.raises(ConductorCutOff):
                await restriping
            assert len(gateway.came_at_s) == came_before[0]
        else:
            assert (await restriping).moving == 4
            assert gateway.came_at_s[came_before[0]] >= stopped_at_s[0] + 25


async def test_who_cannot_hear_itself_changes_nothing(trial, conductors) -> None:
    gateway = Gateway(trial.broker)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        restriping = asyncio.ensure_future(conductors.restripe(6, gateway))
        await conductors.has_session.wait()
        conductors.sessions[0].send_direct = lambda _: None
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(UserError, match="what is published there does not come back within 8 s"):
            await restriping
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(PROOF_PATIENCE_S, abs=1)


async def test_who_conducts_is_let_in_however_long_the_name_of_the_group_is(trial, settings, monkeypatch) -> None:
    conductors = Conductors(trial, settings, monkeypatch, "n" * 190)
    with pytest.raises(UserError):
        await conductors.restripe(6)
    assert conductors.sessions
