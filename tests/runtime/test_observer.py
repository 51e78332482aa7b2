"""Members answer who asks from outside, on a memory broker in virtual time; and take no other notice."""

import asyncio

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.group.control_codec import decode, encode
from lbg_runtime.core.group.control_messages import (
    GroupAnswer,
    GroupQuestion,
    Header,
    KeyAnswer,
    KeyDetail,
    KeyQuestion,
    LaneStage,
    LastOutcome,
    Life,
    QuestionId,
    ReportedFlow,
)
from lbg_runtime.core.group.question_gate import MAX_PER_SECOND
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.errors import ConfigError, SubscribeFailed, UserError
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message
from lbg_runtime.model.version import VERSION
from lbg_runtime.runtime.control_plane import ControlPlane
from lbg_runtime.runtime.observer import Observer
from lbg_runtime.transport.memory.transport import MemoryTransport

CONTROL_TOPIC = "lbg-control/orders"


@pytest.fixture
async def asking(trial, settings):
    """Makes observers, each with a session of its own."""
    sessions = []

    async def make(**sections):
        session = MemoryTransport(trial.broker, f"observer-{len(sessions)}")
        await session.open()
        sessions.append(session)
        cooperative = {"membership": {"mode": "discovered", "index": None, "count": None}}
        return Observer(session, settings(**{"rebind": {"mode": "cooperative"}, **cooperative, **sections}), "observer")

    yield make
    for session in sessions:
        await session.close()


async def test_a_group_tells_who_is_there_and_who_owns_what(trial, asking):
    async with trial.at_work(trial.discovered("a"), trial.discovered("b", membership={"weight": 3})):
        await asyncio.sleep(30)
        picture = await (await asking()).look_at_group(1)
        assert {member: beat.weight for member, beat in picture.members.items()} == {"a": 1, "b": 3}
        told = {int(queue.removeprefix("orders/")): owner for queue, (owner,) in picture.owners.items()}
        assert told == trial.active()
        assert picture.versions == {"a": VERSION, "b": VERSION}
        assert (picture.suspects, picture.unheard, picture.twice, picture.disagreements) == ({}, {}, (), ())


async def test_a_member_that_fell_silent_is_told_as_suspect_then_as_gone(trial, asking):
    async with trial.running(trial.discovered("a"), trial.discovered("b"), trial.discovered("c")):
        await asyncio.sleep(10)
        trial.sessions["c"].kill()
        early = await (await asking()).look_at_group(0.5)
        assert (early.suspects, early.unheard) == ({}, {"c": ("a", "b")})
        await asyncio.sleep(3.6)
        late = await (await asking()).look_at_group(0.2)
        assert late.suspects == {"c": ("a", "b")}
        await asyncio.sleep(5)
        gone = await (await asking()).look_at_group(0.2)
        assert (list(gone.members), gone.suspects, gone.unheard) == (["a", "b"], {}, {})


async def test_an_observer_is_nobody_to_the_members_and_moves_nothing(trial, asking):
    async with trial.running(trial.discovered("a"), trial.discovered("b")):
        await asyncio.sleep(30)
        before, releases = trial.active(), [r for r in trial.records() if r["kind"] == "flow"]
        for _ in range(5):
            picture = await (await asking()).look_at_group(1)
            await (await asking()).look_for_key("k", 1)
            assert list(picture.members) == ["a", "b"]
            assert picture.unheard == {}
        await asyncio.sleep(60)
        assert trial.active() == before
        assert [r for r in trial.records() if r["kind"] == "flow"] == releases


async def test_a_member_alone_stays_alone_however_often_it_is_asked(trial, asking):
    # An observer that counted as a peer would keep it from knowing that the topic is silent, or delay its placement.
    async with trial.running(trial.discovered("a")):
        for _ in range(10):
            await (await asking()).look_at_group(0.5)
        assert trial.active() == dict.fromkeys(range(4), "a")


async def test_nobody_is_heard_where_nobody_is(trial, asking):
    picture = await (await asking()).look_at_group(1)
    assert dict(picture.members) == {}
    answers, picture = await (await asking()).look_for_key("k", 1)
    assert (answers, dict(picture.members)) == ([], {})


async def test_an_observer_that_could_not_subscribe_subscribes_with_its_next_question(trial, asking, monkeypatch):
    async with trial.running(trial.discovered("a")):
        await asyncio.sleep(10)
        observer = await asking()

        async def fail(*_):
            raise SubscribeFailed(CONTROL_TOPIC, "timed out")

        with monkeypatch.context() as patched:
            patched.setattr(MemoryTransport, "subscribe", fail)
            with pytest.raises(SubscribeFailed):
                await observer.look_at_group(1)
        picture = await observer.look_at_group(1)
        assert list(picture.members) == ["a"]


async def test_a_key_is_told_with_what_is_in_flight_and_what_waits(trial, asking):
    release = asyncio.Event()

    async def work(message):
        if message.key == "slow" and message.key_sequence == 2:
            await release.wait()

    async with trial.running(trial.discovered("a", work=work), trial.discovered("b", work=work)):
        await asyncio.sleep(30)
        shard = await trial.publish_key("slow", 5)
        await asyncio.sleep(7)
        answers, _ = await (await asking()).look_for_key("slow", 5)
        (owner,) = [answer for answer in answers if answer.flow and answer.flow.is_owner]
        assert (owner.shard, owner.queue) == (shard, f"orders/{shard % 4}")
        assert trial.active()[shard % 4] == owner.header.member
        assert owner.flow.state is ReportedFlow.ACTIVE
        assert owner.flow.in_flight == 4
        sight = owner.sight
        assert (sight.waiting, sight.head.number, sight.head.attempts, sight.head.stage) == (3, 2, 1, LaneStage.RUNNING)
        assert (sight.last.number, sight.last.attempts, sight.last.outcome) == (1, 1, LastOutcome.HANDLED)
        assert (sight.head.topic, sight.head.error) == ("orders/new", None)
        release.set()
        await trial.until(lambda: trial.sequences().get("slow") == [1, 2, 3, 4, 5])
        answers, _ = await (await asking()).look_for_key("slow", 5)
        (owner,) = [answer for answer in answers if answer.flow and answer.flow.is_owner]
        assert (owner.sight.waiting, owner.sight.head, owner.sight.last.number) == (0, None, 5)


async def test_a_key_that_is_parked_is_told_as_such(trial, asking):
    async def work(message):
        if message.key == "bad":
            raise ValueError("no")

    park = {"failure": {"attempts": 1, "then": "park"}}
    async with trial.running(trial.discovered("a", work=work, **park), trial.discovered("b", work=work, **park)):
        await asyncio.sleep(30)
        await trial.publish_key("bad", 5)
        await trial.until(lambda: sum(trial.depths()) == 0)
        answers, _ = await (await asking()).look_for_key("bad", 5)
        (owner,) = [answer for answer in answers if answer.flow and answer.flow.is_owner]
        assert (owner.sight.parked, owner.sight.waiting, owner.sight.head) == (5, 0, None)
        assert owner.sight.last is None


@pytest.mark.parametrize(("then", "outcome"), [("error_queue", LastOutcome.ERROR_QUEUE), ("dmq", LastOutcome.DMQ)])
async def test_a_message_that_was_moved_away_is_not_told_as_handled(trial, asking, then, outcome):
    async def work(message):
        raise ValueError("no")

    moves = {"failure": {"attempts": 2, "then": then}, "group": {"provision": "create_missing"}}
    async with trial.at_work(trial.discovered("a", work=work, **moves)):
        await trial.publish_key("bad", 1)
        await trial.until(lambda: sum(trial.depths()) == 0)
        (answer,), _ = await (await asking()).look_for_key("bad", 5)
        assert (answer.sight.last.number, answer.sight.last.attempts, answer.sight.last.outcome) == (1, 2, outcome)


async def test_a_queue_that_a_message_has_stopped_is_told_of_the_group_and_of_its_other_keys_and_of_no_other_queue(
    trial, asking
):
    async def work(message):
        if message.key == "bad":
            raise ValueError("never")

    stops = {"failure": {"attempts": 1, "then": "stop"}}
    with capture_logs() as logs:
        async with trial.at_work(trial.discovered("a", work=work, **stops)):
            observer = await asking()
            await trial.publish_key("bad", 1)
            await trial.until(lambda: any(log["event"] == "queue_stopped" for log in logs))
            (stopped,) = [log["queue"] for log in logs if log["event"] == "queue_stopped"]
            answers = [(await observer.look_for_key(f"k{number}", 5))[0] for number in range(12)]
            assert (await observer.look_at_group(5)).stopped == {stopped: "a"}
    told = [(answer.queue == stopped, answer.is_stopped) for (answer,) in answers]
    assert set(told) == {(True, True), (False, False)}
    assert all(answer.sight.head is None for (answer,) in answers), "nothing of these keys is in flight"


async def test_the_answer_of_an_older_member_says_less(trial, asking, monkeypatch):
    async def work(message):
        raise ValueError("never")

    say = ControlPlane._say
    monkeypatch.setattr(
        ControlPlane, "_say", lambda self, message: None if isinstance(message, KeyDetail) else say(self, message)
    )
    async with trial.at_work(trial.discovered("a", work=work)):
        await trial.publish_key("bad", 1)
        await asyncio.sleep(5)
        (answer,), _ = await (await asking()).look_for_key("bad", 5)
        assert (answer.sight.head.number, answer.sight.head.topic, answer.sight.head.error) == (1, None, None)


async def test_a_key_that_fails_is_told_with_its_error_its_attempts_and_its_next_one(trial, asking):
    async def work(message):
        raise ValueError("never\n\x1b[31m red " + "x" * 5_000)

    sections = {"failure": {"backoff": {"initial": "100s", "maximum": "100s"}}}
    async with trial.running(trial.discovered("a", work=work, **sections)):
        await asyncio.sleep(10)
        await trial.publish_key("bad", 2)
        await asyncio.sleep(130)
        (answer,), _ = await (await asking()).look_for_key("bad", 5)
        head = answer.sight.head
        assert (head.stage, head.number) == (LaneStage.DELAYED, 1)
        assert head.attempts in (2, 3)
        assert 0 < head.retry_in_ms <= 100_000
        assert head.topic == "orders/new"
        assert head.error.startswith("ValueError: never \\x1b[31m red xx")
        assert len(head.error) < 210
        assert answer.sight.last is None


async def test_the_first_answer_of_an_owner_ends_the_wait(trial, asking):
    async with trial.at_work(trial.discovered("a")):
        async with asyncio.timeout(1):
            answers, _ = await (await asking()).look_for_key("k", 3_600)
        assert answers[0].flow.state is ReportedFlow.ACTIVE


async def test_a_queue_without_an_owner_has_answers_and_none_that_owns(trial, asking):
    async with trial.running(trial.discovered("a")):
        # It has joined, and is bound to nothing before it has learned who is there.
        await asyncio.sleep(0.1)
        answers, _ = await (await asking()).look_for_key("k", 0.5)
        assert [answer.flow for answer in answers] == [None]


async def test_questions_are_answered_once_and_not_in_any_number(trial, asking):
    async with trial.running(trial.discovered("a")):
        await asyncio.sleep(10)
        session = MemoryTransport(trial.broker, "many")
        await session.open()
        heard = []
        group = GroupName("orders")
        await session.subscribe(CONTROL_TOPIC, lambda message: heard.append(decode(message.payload, group)))
        header = Header(group, MemberId("many"), Life(1, 1), 1)
        for _ in range(10):
            session.send_direct(Message(CONTROL_TOPIC, encode(GroupQuestion(header, QuestionId("one")))))
        for number in range(100):
            question = KeyQuestion(header, QuestionId(f"k{number}"), "k")
            session.send_direct(Message(CONTROL_TOPIC, encode(question)))
        await asyncio.sleep(0.05)
        assert len([message for message in heard if isinstance(message, GroupAnswer)]) == 1
        assert len([message for message in heard if isinstance(message, KeyAnswer)]) == MAX_PER_SECOND - 1
        await session.close()


async def test_a_key_that_cannot_be_asked_for_and_a_group_that_does_not_talk_are_refused(asking):
    observer = await asking()
    for key in ("", "x" * 251, "line\nbreak"):
        with pytest.raises(UserError, match="1 to 250 printable characters"):
            await observer.look_for_key(key, 1)
    counted = {"mode": "static", "index": 0, "count": 1}
    with pytest.raises(ConfigError, match=r"rebind\.mode: cycle; expected cooperative"):
        await asking(rebind={"mode": "cycle"}, membership=counted)


@pytest.mark.parametrize("number", [True, -1, 1 << 63])
async def test_a_key_is_told_of_whatever_its_publisher_stamps_as_number(trial, asking, number):
    """A boolean made the answer unreadable for who had asked, and the journal a damaged one."""
    async with trial.at_work(trial.discovered("a")):
        publisher = MemoryTransport(trial.broker, "foreign-publisher")
        await publisher.open()
        stamps = {PARTITION_KEY_PROPERTY: "k", PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: number}
        await publisher.send(Message(f"h/{shard_of(HashFunction.CRC32, 'k', 8)}/orders/new", b"x", stamps))
        await trial.until(lambda: len(trial.handled) == 1)
        (answer,), _ = await (await asking()).look_for_key("k", 1)
        await publisher.close()
    assert answer.sight.last.number is None
    assert read_run(trial.journals).journals.column("defect").to_pylist() == [None]


async def test_only_the_newest_keys_are_remembered(trial, asking, monkeypatch):
    monkeypatch.setattr("lbg_runtime.runtime.dispatch.key_book.MAX_KEYS_REMEMBERED", 4)
    async with trial.at_work(trial.discovered("a")):
        for key in "abcde":
            await trial.publish_key(key, 1)
            await trial.until(lambda key=key: key in trial.sequences())
        known = []
        for key in "abcde":
            (answer,), _ = await (await asking()).look_for_key(key, 1)
            if answer.sight.last is not None:
                known.append((key, answer.sight.last.number))
        assert known == [("c", 1), ("d", 1), ("e", 1)]


async def test_a_handler_that_outlived_its_flow_is_told_beside_the_new_owner(trial, asking):
    release = asyncio.Event()

    async def work(message):
        if message.key == "k":
            await release.wait()

    async with trial.running(trial.discovered("a", work=work), trial.discovered("b", work=work)):
        await asyncio.sleep(30)
        shard = await trial.publish_key("k", 1)
        owner = trial.active()[shard % 4]
        await asyncio.sleep(1)
        trial.sessions[owner].drop_connection(reconnect_after_s=2)
        await asyncio.sleep(5)
        answers, _ = await (await asking()).look_for_key("k", 5)
        heads = {answer.header.member: answer.sight.head for answer in answers}
        assert trial.active()[shard % 4] != owner
        assert {member: head.redelivered for member, head in heads.items()} == {
            owner: False, trial.active()[shard % 4]: True,
        }  # fmt: skip
        release.set()


async def test_a_key_that_the_groups_hash_function_does_not_take_has_no_answer(trial, asking):
    async with trial.at_work(trial.discovered("a", group={"hash_function": "modulo"})):
        answers, _ = await (await asking()).look_for_key("no number", 1)
        assert answers == []
        answers, _ = await (await asking()).look_for_key("6", 1)
        assert [(answer.shard, answer.queue) for answer in answers] == [(6, "orders/2")]
