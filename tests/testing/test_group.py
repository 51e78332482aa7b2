"""A group in a test: publishing, faults, members that come and go, and what it tells of them."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from lbg_runtime.model.errors import ConfigError, ConnectFailed, UserError
from lbg_runtime.model.message import Headers, Message
from lbg_runtime.runtime.handlers.middleware import Proceed
from lbg_runtime.testing import LifeState, NotReached, running


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_every_queue_has_its_member_on_entry(handlers) -> None:
    async with running(handlers(), members=2) as group:
        owners = Counter(group.owner(f"k{number}") for number in range(40))
        assert set(owners) == {"member-0", "member-1"}
        assert group.members == {"member-0": LifeState.RUNNING, "member-1": LifeState.RUNNING}


async def test_members_can_have_names(handlers) -> None:
    async with running(handlers(), members=("anna", "ben")) as group:
        await group.publish("orders/new", "1", key="k")
        await group.settled()
        assert {handled.member for handled in group.handled()} <= {"anna", "ben"}


async def test_a_killed_member_comes_to_no_further_line_and_what_it_held_comes_again(handlers) -> None:
    lines = []

    async def work(message):
        try:
            lines.append("begun")
            await asyncio.sleep(5)
            lines.append("ended")
        finally:
            lines.append("left")

    async with running(handlers(work), members=2) as group:
        await group.publish("orders/new", "1", "2", key="k")
        attempt = await group.started("k", 1)
        group.kill(attempt.member)
        await group.settled()
        assert lines == ["begun", *["begun", "ended", "left"] * 2]
        first, second = group.handled("k")
        assert first.redelivered
        assert first.member != attempt.member
        assert second.redelivered, "it had been sent to the killed member as well"
        assert (attempt.end_ns, attempt.error, attempt.is_running) == (None, None, False)


async def test_a_member_that_is_killed_by_what_its_handler_calls_does_nothing_more(handlers) -> None:
    handled = []

    async def work(message):
        handled.append(message.payload)
        if message.payload == b"deadly" and len(handled) == 1:
            group.kill(group.owner("k"))

    async with running(handlers(work), members=2) as group:
        await group.publish("orders/new", "deadly", "next", key="k")
        await group.settled()
        assert handled == [b"deadly", b"deadly", b"next"]
        assert [each.redelivered for each in group.handled()] == [True, True]


async def test_an_acknowledgement_that_was_still_to_be_sent_dies_with_its_member(handlers) -> None:
    async with running(handlers(), members=2) as group:
        await group.publish("orders/new", "1", key="k")
        await group.until(lambda: len(group.handled("k")) == 1)
        group.kill(group.handled("k")[0].member)
        await group.settled()
        assert [handled.redelivered for handled in group.handled("k")] == [False, True]
        group.assert_handled({"k": ["1"]})


async def test_a_stopped_member_leaves_nothing_to_repeat_and_can_come_back(handlers) -> None:
    async with running(handlers(seconds=1), members=2) as group:
        await group.publish("orders/new", *"123456", key="k")
        owner = (await group.started("k", 2)).member
        report = await group.stop(owner)
        assert report.is_clean
        assert group.members[owner] is LifeState.STOPPED
        group.start(owner)
        await group.balanced()
        await group.settled()
        group.assert_handled({"k": list("123456")})
        assert not any(handled.redelivered for handled in group.handled())


async def test_a_new_member_gets_its_share(handlers) -> None:
    async with running(handlers(), members=1) as group:
        group.start("second")
        await group.balanced()
        assert {group.owner(f"k{number}") for number in range(40)} == {"member-0", "second"}


async def test_a_condition_that_would_have_to_be_awaited_is_refused(handlers) -> None:
    """A coroutine counts as true."""

    async def never() -> bool:
        return False

    async with running(handlers()) as group:
        with pytest.raises(UserError, match=r"group\.until: an async condition; expected a function that is not async"):
            await group.until(never)


async def test_a_paused_member_keeps_its_queue_until_the_broker_finds_out(handlers) -> None:
    async with running(handlers(seconds=1), members=2) as group:
        await group.publish("orders/new", "1", key="k")
        paused = (await group.started("k")).member
        group.pause(paused)
        since_s = now_s()
        await group.advance(10)
        assert group.owner("k") == paused
        await group.settled()
        assert 10.5 <= now_s() - since_s < 13
        group.resume(paused)
        await group.balanced()
        await group.publish("orders/new", "2", key="k")
        await group.settled()
        group.assert_handled({"k": ["1", "2"]})


async def test_a_short_pause_costs_time_and_nothing_else(handlers) -> None:
    async with running(handlers(seconds=1), members=2) as group:
        await group.publish("orders/new", "1", "2", key="k")
        paused = (await group.started("k")).member
        group.pause(paused)
        await group.advance(5)
        group.resume(paused)
        await group.settled()
        assert [(each.member, each.redelivered) for each in group.handled()] == [(paused, False)] * 2


async def test_a_partitioned_member_is_replaced_and_comes_back(handlers) -> None:
    async with running(handlers(seconds=1), members=2) as group:
        await group.publish("orders/new", "1", "2", key="k")
        cut_off = (await group.started("k")).member
        group.partition(cut_off)
        await group.settled()
        assert {each.member for each in group.handled("k") if each.redelivered} == set(group.members) - {cut_off}
        group.heal(cut_off)
        await group.balanced()
        group.assert_handled({"k": ["1", "2"]})


async def test_what_was_published_while_the_broker_was_away_is_handled_when_it_is_back(handlers) -> None:
    async with running(handlers(), members=2) as group:
        group.broker.fail()
        await group.publish("orders/new", "1", "2", key="k")
        await group.advance(60)
        assert group.handled() == []
        group.broker.restore()
        await group.settled()
        group.assert_handled({"k": ["1", "2"]})


async def test_attempts_and_failures_are_told_message_by_message(handlers) -> None:
    async def work(message):
        if len(group.attempts("k", message.key_sequence)) < 3 and message.payload == b"twice":
            raise ValueError("not yet")

    async with running(handlers(work)) as group:
        await group.publish("orders/new", "twice", "at once", key="k")
        await group.settled()
        group.assert_failed("k", 1, ValueError, times=2)
        assert [len(group.attempts("k", number)) for number in (1, 2)] == [3, 1]
        assert [handled.attempts for handled in group.handled("k")] == [3, 1]
        with pytest.raises(AssertionError, match=r"k #2: expected ValueError; its attempts were \[<k #2 .*: done>\]"):
            group.assert_failed("k", 2, ValueError)
        with pytest.raises(AssertionError, match=r"k #1: expected ValueError, 3 times; its attempts were"):
            group.assert_failed("k", 1, ValueError, times=3)
        with pytest.raises(AssertionError, match=r"k #1: expected KeyError"):
            group.assert_failed("k", 1, KeyError)


async def test_what_was_handled_is_compared_key_by_key(handlers) -> None:
    async with running(handlers()) as group:
        await group.publish("orders/new", "1", "2", key="a")
        await group.publish("orders/new", "x", key="b")
        await group.settled()
        group.assert_handled({"a": [b"1", "2"], "b": ["x"]})
        with pytest.raises(AssertionError) as failure:
            group.assert_handled({"a": ["2", "1"], "c": ["y"]})
    assert str(failure.value).splitlines()[1:] == [
        "  key 'a': expected [b'2', b'1'], handled [b'1', b'2']",
        "  key 'b': expected [], handled [b'x']",
        "  key 'c': expected [b'y'], handled []",
    ]


@pytest.mark.parametrize("then", ["park", "error_queue", "dmq"])
async def test_what_was_set_aside_says_why_where_it_was_to_be_handled(handlers, then) -> None:
    async def fail(message):
        if message.payload == b"1":
            raise KeyError("pear")

    async with running(handlers(fail), settings={"failure": {"attempts": 2, "then": then}}) as group:
        await group.publish("orders/new", "1", "2", key="k")
        await group.settled()
        with pytest.raises(AssertionError) as failure:
            group.assert_handled({"k": ["1", "2"]})
    what = "is parked" if then == "park" else "was moved away"
    assert str(failure.value).splitlines()[2:] == [f"  k #1 {what}: it failed 2 times, at last with KeyError: 'pear'"]


async def test_what_is_parked_when_the_test_ends_is_not_lost(handlers) -> None:
    async def fail(message):
        if message.key == "bad":
            raise ValueError("poison")

    async with running(handlers(fail, attempts=1, then="park")) as group:
        await group.publish("orders/new", "1", "2", "3", key="bad")
        await group.publish("orders/new", "1", key="good")
        await group.settled()
        assert {number for key, number in group.left() if key == "bad"} == {1, 2, 3}


async def test_what_is_parked_is_listed_and_can_be_replayed(handlers) -> None:
    poison = ["poison"]

    async def fail(message):
        if message.key in ("bad", "worse") and poison:
            raise ValueError(*poison)

    async with running(handlers(fail, attempts=1, then="park")) as group:
        assert group.parked() == []
        await group.publish("orders/new", "1", "2", "3", key="bad")
        await group.publish("orders/new", "4", key="worse")
        await group.publish("orders/new", "5", key="good")
        await group.settled()
        assert [each.original.payload for each in group.parked("bad")] == [b"1", b"2", b"3"]
        assert [(each.attempts, each.error) for each in group.parked("bad")[:2]] == [(1, "ValueError: poison"), (0, "")]
        assert sorted(each.original.payload for each in group.parked()) == [b"1", b"2", b"3", b"4"]
        assert group.parked("good") == []
        poison.clear()
        await group.unpark("bad")
        await group.until(lambda: not group.parked("bad"))
        group.assert_handled({"bad": ["1", "2", "3"], "good": ["5"]})
        assert [each.original.payload for each in group.parked()] == [b"4"]
        with pytest.raises(UserError, match=r"group\.unpark: 'bad'; expected a key of which something is parked"):
            await group.unpark("bad")


async def test_a_message_whose_attempts_are_used_up_is_in_the_error_queue(handlers) -> None:
    async def fail(message):
        raise ValueError("never")

    async with running(handlers(fail, attempts=2, then="error_queue")) as group:
        await group.publish("orders/new", "1", key="k", headers=Headers("c", "type", 7, 9))
        await group.settled()
        (moved,) = group.error_queue()
        assert (moved.payload, moved.headers) == (b"1", Headers("c", "type", 7, 9))
        assert moved.properties["lbg_error"] == "ValueError: never"
        group.assert_failed("k", 1, ValueError, times=2)
        assert group.handled() == []


async def test_what_is_moved_although_its_handler_has_returned_is_not_handled(handlers) -> None:
    async def ignore_the_timeout(message):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(10)

    failing_commit = handlers()

    @failing_commit.middleware
    async def commit(message: Message, proceed: Proceed) -> None:
        await proceed(message)
        raise OSError("no commit")

    for each in (handlers(ignore_the_timeout, timeout="1s"), failing_commit):
        async with running(each, settings={"failure": {"attempts": 2, "then": "error_queue"}}) as group:
            await group.publish("orders/new", "1", key="k")
            await group.settled()
            assert len(group.attempts()) == 2
            assert len(group.error_queue()) == 1
            assert group.handled() == []


@pytest.mark.parametrize(
    ("verb", "member", "message"),
    [
        ("kill", "nobody", "group.kill: 'nobody'; expected one of member-0, member-1"),
        ("resume", "member-0", "group.resume: member-0, which is running; expected there is none it is for"),
        ("start", "member-0", "group.start: member-0, which is running; expected a member that is gone, or new"),
    ],
)
async def test_a_member_that_it_is_not_for_is_refused(handlers, verb, member, message) -> None:
    async with running(handlers(), members=2) as group:
        with pytest.raises(UserError) as refusal:
            getattr(group, verb)(member)
    assert str(refusal.value) == message


async def test_counted_members_are_as_many_as_they_are(handlers) -> None:
    settings = {"membership": {"mode": "static"}, "rebind": {"mode": "cycle", "interval": "5s"}}
    async with running(handlers(), members=2, settings=settings) as group:
        with pytest.raises(UserError, match=r"group.start: 'third'; expected one of member-0, member-1: they a"):
            group.start("third")
        group.kill("member-1")
        group.start("member-1")
        await group.balanced()
        await group.publish("orders/new", "1", key="k")
        await group.settled()


async def test_publishing_nothing_is_refused_and_an_empty_message_is_one(handlers) -> None:
    async with running(handlers()) as group:
        with pytest.raises(UserError, match=r'group\.publish: no payload for orders/new; expected at least one; b"" i'):
            await group.publish("orders/new", key="k")
        await group.publish("orders/new", b"", key="k")
        await group.settled()
        group.assert_handled({"k": [""]})


async def test_a_message_without_a_key_is_refused_and_a_key_is_found_by_the_groups_rule(handlers) -> None:
    async with running(handlers()) as group:
        with pytest.raises(UserError, match="key: none in a message to orders/new"):
            await group.publish("orders/new", "1")
    async with running(handlers(), settings={"group": {"key": "json:/id"}}) as group:
        await group.publish("orders/new", '{"id": "k"}')
        await group.settled()
        assert [handled.key for handled in group.handled()] == ["k"]


async def test_a_message_that_the_broker_refuses_is_told_of(handlers) -> None:
    async with running(handlers()) as group:
        await group.publish("orders/new", bytes(10_000_001), key="k")
        with pytest.raises(NotReached, match=r"(?s)not settled:.*publishing failed: .* Document Is Too Large"):
            await group.settled()


async def test_a_member_that_ends_by_itself_has_its_error_raised_once(handlers) -> None:
    async with running(handlers(), members=1) as group:
        group.broker.fail()
        group.start("second")
        with pytest.raises(ConnectFailed, match="nothing listens there"):
            await group.advance(1)
        assert group.members["second"] is LifeState.STOPPED
        group.broker.restore()
        group.start("second")
        await group.balanced()


async def test_a_handler_may_cause_the_trouble_itself(handlers) -> None:
    async def work(message):
        trouble = {b"pause": group.pause, b"partition": group.partition, b"fail": lambda _: group.broker.fail()}
        if not any(each.payload == message.payload for each in caused):
            caused.append(message)
            trouble[message.payload](group.owner(message.key))
        await asyncio.sleep(1)

    caused: list[Message] = []
    async with running(handlers(work), members=4) as group:
        for payload in ("pause", "partition", "fail"):
            await group.publish("orders/new", payload, key="k")
            await group.until(lambda payload=payload: caused[-1:] != [] and caused[-1].payload == payload.encode())
            await group.advance(15)
            group.broker.restore()
            await group.settled()
        group.assert_handled({"k": ["pause", "partition", "fail"]})


async def test_settings_that_no_group_can_have_are_one_line(handlers) -> None:
    with pytest.raises(ConfigError, match=r"settings: group.queue_coun: unknown setting; expected queue_count"):
        running(handlers(), settings={"group": {"queue_coun": 2}})
