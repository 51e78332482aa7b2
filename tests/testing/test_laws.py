"""The laws are checked on every run, and each kind of wrongdoing is told by its name."""

import asyncio

import pytest

from lbg_runtime.broker.engine.effects import DeliverRun
from lbg_runtime.model.message import Message
from lbg_runtime.testing import AwaitForgotten, LawsBroken, NotReached, running
from lbg_runtime.validator.findings import Law


async def run(handlers, around, payloads="12") -> LawsBroken:
    with pytest.raises(LawsBroken) as broken:
        async with running(handlers, around=around) as group:
            await group.publish("orders/new", *payloads, key="k")
            await group.settled()
    return broken.value


def laws_of(broken: LawsBroken) -> set[Law]:
    return {law for law, count in broken.verdict.counts.items() if count}


async def test_a_wrapper_that_reorders_a_key(handlers) -> None:
    def latest_first(handle):
        held = []

        async def gather(message):
            held.append(message)
            while len(held) >= 2 or (held and message.payload == b"3"):
                await handle(held.pop())

        return gather

    broken = await run(handlers(), latest_first, payloads="123")
    assert laws_of(broken) == {Law.ORDER}
    assert str(broken).splitlines()[:4] == [
        "the run breaks the laws:",
        "  order:",
        "    publisher/k: 1 handled first after 2 had started",
        "      k #2 at member-0, queue 1, from 3.555 s to 3.555 s",
    ]


async def test_a_wrapper_that_swallows_messages(handlers) -> None:
    def every_second(handle):
        async def swallow(message):
            if message.key_sequence % 2:
                await handle(message)

        return swallow

    broken = await run(handlers(), every_second)
    assert laws_of(broken) == {Law.LOSS}
    assert "publisher/k: 2 confirmed, never handled to an end" in str(broken)


def in_background(handle):
    tasks = set()

    async def begin(message):
        tasks.add(asyncio.ensure_future(handle(message)))

    return begin


async def test_a_wrapper_that_does_not_wait_for_the_handler(handlers) -> None:
    broken = await run(handlers(seconds=1), in_background)
    assert "was settled before" in "".join(broken.__notes__)
    assert laws_of(broken) == {Law.OVERLAP_IN_PROCESS}
    assert "key 'k' handled by member-0 and member-0 at once, for up to 999 ms" in str(broken)


@pytest.mark.parametrize("seconds", [0, 1])
async def test_a_wrapper_that_does_not_wait_is_told_though_no_law_is_broken(handlers, seconds) -> None:
    """A crash in between would have lost the message."""

    with pytest.raises(AwaitForgotten) as told:
        async with running(handlers(seconds=seconds), around=in_background) as group:
            await group.publish("orders/new", "1", key="k")
            await group.settled()
            await group.until(lambda: group.attempts("k") and not group.attempts("k")[0].is_running)
    (line,) = told.value.lines
    assert line.startswith("member-0: k #1 was settled before ")
    assert line.endswith(" had handled it: what is around it did not wait for it")


async def test_a_handler_that_was_settled_and_never_ended(handlers) -> None:
    broken = await run(handlers(seconds=1_000_000), in_background, payloads="1")
    assert laws_of(broken) == {Law.LOSS}


async def test_a_wrapper_that_hands_a_message_on_twice(handlers) -> None:
    def twice(handle):
        async def repeat(message):
            await handle(message)
            await handle(message)

        return repeat

    broken = await run(handlers(), twice, payloads="1")
    assert laws_of(broken) == {Law.DUPLICATE_WITHOUT_FAULT, Law.DUPLICATE_UNFLAGGED}


async def test_a_wrapper_that_tries_again_breaks_nothing(handlers) -> None:
    failed = []

    async def work(message):
        if not failed:
            failed.append(message)
            raise ValueError("once")

    def patient(handle):
        async def insist(message):
            try:
                await handle(message)
            except ValueError:
                await handle(message)

        return insist

    async with running(handlers(work), around=patient) as group:
        await group.publish("orders/new", "1", "2", key="k")
        await group.settled()
        assert [len(group.attempts("k", number)) for number in (1, 2)] == [2, 1]


async def test_a_broker_that_loses_messages(handlers, monkeypatch) -> None:
    with pytest.raises(LawsBroken) as broken:
        async with running(handlers()) as group:
            await group.publish("orders/new", "1", key="k")
            await group.settled()
            queue = group.shape.queue_name(1)
            post = group.broker.post

            def lose(effects):
                post([effect for effect in effects if not isinstance(effect, DeliverRun)])

            monkeypatch.setattr(group.broker, "post", lose)
            await group.publish("orders/new", "2", key="k")
            group.broker.post(group.broker.engine.administration.delete_messages("default", queue))
            await group.settled()
    assert laws_of(broken.value) == {Law.LOSS}


async def test_two_members_that_are_fed_at_once(handlers) -> None:
    """A broker that forgets a client which is at work, and whose connection goes on: nobody had cut that off."""
    with pytest.raises(LawsBroken) as broken:
        async with running(handlers(seconds=1), members=2) as group:
            await group.publish("orders/new", "1", key="k")
            await group.started("k")
            owner = group.owner("k")
            other = next(life for life in group.lives if life.member != owner)
            group.broker.post(group.broker.engine.disconnect(_client_of(group, owner)))
            await group.until(lambda: group.owner("k") == other.member)
            await group.settled()
    assert Law.OVERLAP_ACROSS_PROCESSES in laws_of(broken.value)


def _client_of(group, member):
    name = next(life.client_name for life in group.lives if life.member == member)
    return group.broker.engine.administration.client("default", name).client


async def test_what_still_lies_on_its_queue_is_not_lost(handlers) -> None:
    async def fail(message):
        raise ValueError("never")

    async with running(handlers(fail)) as group:
        await group.publish("orders/new", "1", "2", key="k")
        await group.advance(3)


async def test_nothing_is_judged_where_nothing_was_published(handlers) -> None:
    async with running(handlers(), members=2):
        pass


async def test_a_failed_test_is_told_of_broken_laws_as_well(handlers) -> None:
    def swallow(handle):
        async def nothing(message):
            pass

        return nothing

    with pytest.raises(AssertionError) as failure:
        async with running(handlers(), around=swallow) as group:
            await group.publish("orders/new", "1", key="k")
            await group.settled()
            raise AssertionError("the test's own")
    assert failure.value.__notes__ == [
        "the laws of the runtime are broken as well:\n  loss:\n    publisher/k: 1 confirmed, never handled to an end"
    ]


async def test_what_is_moved_without_a_call_of_its_handler_is_not_lost(handlers) -> None:
    registered = handlers(attempts=1, then="error_queue")

    @registered.middleware
    async def refuse(message, proceed):
        if message.payload == b"2":
            raise ValueError("refused")
        await proceed(message)

    async with running(registered) as group:
        await group.publish("orders/new", "1", "2", "3", key="k")
        await group.settled()
        assert [moved.payload for moved in group.error_queue()] == [b"2"]


@pytest.mark.parametrize("then", ["error_queue", "dmq"])
async def test_what_is_refused_before_its_handler_does_not_overlap_with_what_follows(handlers, then) -> None:
    registered = handlers(seconds=1, attempts=1, then=then)

    @registered.middleware
    async def refuse(message, proceed):
        if message.payload == b"bad":
            raise ValueError("refused")
        await proceed(message)

    async with running(registered) as group:
        await group.publish("orders/new", "bad", "good", "bad", "bad", "good", key="k")
        await group.settled()
        moved = group.error_queue() if then == "error_queue" else group.dead_message_queue()
        assert [message.properties["lbg_error_key_sequence"] for message in moved] == [1, 3, 4]


async def test_what_is_moved_without_a_call_is_not_lost_where_a_call_had_died_with_its_member(handlers) -> None:
    registered = handlers(seconds=3, attempts=1, then="error_queue")
    is_revoked = False

    @registered.middleware
    async def refuse(message, proceed):
        if is_revoked:
            raise ValueError("refused")
        await proceed(message)

    async with running(registered, members=2) as group:
        await group.publish("orders/new", "1", key="k")
        attempt = await group.started("k")
        is_revoked = True
        group.kill(attempt.member)
        await group.settled()
        assert [moved.payload for moved in group.error_queue()] == [b"1"]


async def test_what_was_moved_without_a_call_and_comes_again_is_not_late(handlers) -> None:
    registered = handlers(seconds=1, attempts=1, then="error_queue")
    is_revoked = True

    @registered.middleware
    async def refuse(message, proceed):
        if is_revoked and message.payload == b"1":
            raise ValueError("refused")
        await proceed(message)

    async with running(registered, members=2) as group:
        await group.publish("orders/new", "1", "2", key="k")
        # The acknowledgement of the first one is still to be sent.
        attempt = await group.started("k", 2)
        is_revoked = False
        group.partition(attempt.member)
        await group.settled()
        assert [handled.number for handled in group.handled("k") if handled.redelivered] == [1, 2]


async def test_a_message_that_is_gone_from_where_it_was_moved_is_lost(handlers) -> None:
    registered = handlers(attempts=1, then="error_queue")

    @registered.middleware
    async def refuse(message, proceed):
        raise ValueError("refused")

    with pytest.raises(LawsBroken) as broken:
        async with running(registered) as group:
            await group.publish("orders/new", "1", "2", key="k")
            await group.settled()
            error_queue = group.settings.error_queue
            group.broker.post(group.broker.engine.administration.delete_messages("default", error_queue))
    assert laws_of(broken.value) == {Law.LOSS}


async def test_what_middleware_made_of_a_message_is_that_message(handlers) -> None:
    registered = handlers()

    @registered.middleware
    async def decrypt(message, proceed):
        await proceed(Message(message.topic, message.payload[::-1]))

    async with running(registered) as group:
        await group.publish("orders/new", "12", "34", key="k")
        await group.settled()
        assert [handled.payload for handled in group.handled()] == [b"21", b"43"]


async def test_what_is_tried_again_because_of_middleware_is_no_duplicate(handlers) -> None:
    registered = handlers()
    failures = [ValueError("no commit")] * 2

    @registered.middleware
    async def commit(message, proceed):
        await proceed(message)
        if failures:
            raise failures.pop()

    async with running(registered) as group:
        await group.publish("orders/new", "1", "2", key="k")
        await group.settled()
        assert len(group.attempts("k", number=1)) == 3


async def test_a_failed_wait_is_not_hidden_by_the_laws(handlers) -> None:
    async with running(handlers(seconds=20)) as group:
        await group.publish("orders/new", "1", key="k")
        with pytest.raises(NotReached):
            await group.settled(1)
        await group.settled(200)
