"""The ledger of a publisher, and its end: every message is accounted for exactly once."""

import asyncio
from collections import Counter

import pytest
from structlog.testing import capture_logs

from lbg_runtime.metrics.reading import PublisherCounts
from lbg_runtime.model.errors import PublisherClosed, PublishFailed, PublishRefused
from lbg_runtime.model.message import NO_PROPERTIES
from lbg_runtime.publisher import hashed
from lbg_runtime.publisher.hashed import HashedPublisher
from tests.publisher.conftest import LedgerFile, MakePublisher, ScriptedMessenger, settled


async def test_a_range_is_written_only_after_the_confirm(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    publisher = make_publisher(ledger=ledger_file.ledger)
    await publisher.submit("t", b"1", key="k")
    await publisher.submit("t", b"2", key="k")
    messenger.confirm()
    await asyncio.sleep(1)
    assert ledger_file.ranges() == [("k", 1, 1)]


async def test_confirms_reach_the_file_within_the_flush_interval_although_nothing_else_is_published(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    publisher = make_publisher(ledger=ledger_file.ledger)
    for _ in range(2):
        await publisher.submit("t", b"", key="k")
        messenger.confirm()
        await asyncio.sleep(hashed.LEDGER_FLUSH_MS / 1000 + 0.01)
    assert ledger_file.ranges() == [("k", 1, 1), ("k", 2, 2)]


async def test_what_is_confirmed_within_one_flush_interval_is_one_line(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    publisher = make_publisher(ledger=ledger_file.ledger)
    for _ in range(3):
        await publisher.submit("t", b"", key="k")
        messenger.confirm()
        await asyncio.sleep(0.6 * hashed.LEDGER_FLUSH_MS / 1000)
    await asyncio.sleep(0.3 * hashed.LEDGER_FLUSH_MS / 1000)
    assert ledger_file.ranges() == [("k", 1, 2)]


async def test_close_waits_for_all_confirms_and_ends_the_ledger(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    messenger.confirm_after_s = 5
    async with make_publisher(ledger=ledger_file.ledger) as publisher:
        for _ in range(3):
            await publisher.submit("t", b"", key="k")
    assert publisher.counts == PublisherCounts(sent=3, confirmed=3, refused=0, unknown=0)
    assert ledger_file.ranges() == [("k", 1, 3)]
    assert ledger_file.lines("close")[0]["clean"] is True


async def test_close_gives_up_at_its_deadline_and_says_what_is_unknown(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    publisher = make_publisher(ledger=ledger_file.ledger)
    first = await publisher.submit("t", b"", key="k")
    second = await publisher.submit("t", b"", key="k")
    messenger.confirm()
    began = asyncio.get_running_loop().time()
    counts = await publisher.close(timeout_ms=3000)
    assert asyncio.get_running_loop().time() - began == pytest.approx(3)
    assert counts == PublisherCounts(sent=2, confirmed=1, refused=0, unknown=1)
    assert first.result().key_sequence == 1
    assert isinstance(second.exception(), PublishFailed)
    assert [(line["seq"], line["fate"]) for line in ledger_file.lines("unconfirmed")] == [(2, "unknown")]
    assert ledger_file.lines("close")[0]["clean"] is False


async def test_an_answer_after_the_deadline_changes_nothing_any_more(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    publisher = make_publisher(ledger=ledger_file.ledger)
    await publisher.submit("t", b"", key="k")
    await publisher.close(timeout_ms=10)
    before = ledger_file.path.read_bytes()
    messenger.confirm()
    await settled()
    assert publisher.counts == PublisherCounts(sent=1, confirmed=0, refused=0, unknown=1)
    assert ledger_file.path.read_bytes() == before


async def test_a_cancelled_close_still_ends_the_ledger(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    publisher = make_publisher(ledger=ledger_file.ledger)
    await publisher.submit("t", b"", key="k")
    closing = asyncio.create_task(publisher.close())
    await settled()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert ledger_file.lines("close")[0]["clean"] is False
    assert publisher.counts.unknown == 1


async def test_a_log_that_raises_leaves_nobody_waiting_and_no_message_off_the_ledger(
    make_publisher: MakePublisher,
    messenger: ScriptedMessenger,
    ledger_file: LedgerFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program's own log may write to a pipe that is closed, or in a character set without the key's letters."""

    class Log:
        def error(self, event: str, **_: object) -> None:
            raise BrokenPipeError(event)

    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))
    monkeypatch.setattr(hashed, "_log", Log())
    publisher = make_publisher(ledger=ledger_file.ledger)
    answers = [await publisher.submit("t", b"", key="k") for _ in range(4)]
    messenger.refuse()
    await settled()
    assert isinstance(answers[0].exception(), PublishRefused)
    with pytest.raises(BrokenPipeError):
        await publisher.close(timeout_ms=10)
    assert [type(answer.exception()) for answer in answers[1:]] == 3 * [PublishFailed]
    assert publisher.counts == PublisherCounts(sent=4, confirmed=0, refused=1, unknown=3)
    assert [(line["seq"], line["fate"]) for line in ledger_file.lines("unconfirmed")] == [
        (1, "refused"),
        *((number, "unknown") for number in (2, 3, 4)),
    ]
    assert ledger_file.lines("close")[0]["clean"] is False
    assert [type(error) for error in complaints] == [BrokenPipeError]


async def test_a_log_that_raises_at_the_last_answer_does_not_hold_up_the_end(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Log:
        def error(self, event: str, **_: object) -> None:
            raise BrokenPipeError(event)

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    monkeypatch.setattr(hashed, "_log", Log())
    publisher = make_publisher()
    await publisher.submit("t", b"", key="k")
    messenger.refuse()
    began = asyncio.get_running_loop().time()
    await publisher.close()
    assert asyncio.get_running_loop().time() - began < 1


async def test_closing_twice_is_closing_once(make_publisher: MakePublisher, ledger_file: LedgerFile) -> None:
    publisher = make_publisher(ledger=ledger_file.ledger)
    await asyncio.gather(publisher.close(), publisher.close())
    await publisher.close()
    assert len(ledger_file.lines("close")) == 1
    assert asyncio.get_running_loop().time() == 0, "nothing was sent"


async def test_nobody_waits_for_answers_that_were_given_up(make_publisher: MakePublisher) -> None:
    publisher = make_publisher()
    await publisher.submit("t", b"", key="k")
    await asyncio.gather(publisher.close(timeout_ms=10), publisher.close())
    await publisher.close()
    assert asyncio.get_running_loop().time() == pytest.approx(0.01)


async def test_a_closed_publisher_turns_messages_away(make_publisher: MakePublisher) -> None:
    publisher = make_publisher()
    await publisher.close()
    with pytest.raises(PublisherClosed):
        await publisher.publish("t", b"", key="k")


async def test_callers_waiting_for_room_learn_that_the_publisher_closes(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher(max_unconfirmed=1)
    await publisher.submit("t", b"1", key="k")
    waiting = [asyncio.create_task(publisher.submit("t", b"2", key="k")) for _ in range(2)]
    await settled()
    closing = asyncio.create_task(publisher.close())
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [PublisherClosed, PublisherClosed]
    messenger.confirm()
    assert await closing == PublisherCounts(sent=1, confirmed=1, refused=0, unknown=0)


async def test_every_message_of_a_mixed_run_is_accounted_for_exactly_once(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    publisher: HashedPublisher = make_publisher(ledger=ledger_file.ledger, max_unconfirmed=7)

    async def answer() -> None:
        for number in range(300):
            await messenger.has_sent(number + 1)
            (messenger.refuse, messenger.fail, messenger.confirm, messenger.confirm)[number % 4]()

    async with asyncio.TaskGroup() as group:
        group.create_task(answer())
        with capture_logs():
            for number in range(300):
                await publisher.submit("t", b"", key=str(number % 5), properties=NO_PROPERTIES)
            await publisher.close()
    assert publisher.counts == PublisherCounts(sent=300, confirmed=150, refused=75, unknown=75)
    seen: Counter[tuple[object, int]] = Counter()
    for line in ledger_file.lines("confirmed"):
        first, last = line["first_seq"], line["last_seq"]
        assert isinstance(first, int)
        assert isinstance(last, int)
        seen.update((line["key"], sequence) for sequence in range(first, last + 1))
    for line in ledger_file.lines("unconfirmed"):
        assert isinstance(line["seq"], int)
        seen[line["key"], line["seq"]] += 1
    assert seen == {(str(key), sequence): 1 for key in range(5) for sequence in range(1, 61)}


async def test_a_context_does_not_end_as_if_all_were_well_while_confirms_are_missing(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher()

    async def publish() -> None:
        async with publisher:
            for number in range(3):
                await publisher.submit(f"t{number}", b"", key="k")
            messenger.confirm()

    with pytest.raises(PublishFailed, match="the publisher has ended; messages of unknown fate: 2") as failure:
        await publish()
    assert failure.value.topic.endswith("/t2")
    assert publisher.counts == PublisherCounts(sent=3, confirmed=1, refused=0, unknown=2)


async def test_a_context_tells_only_of_what_became_unknown_at_its_end(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    async with make_publisher() as publisher:
        answer = await publisher.submit("t", b"", key="k")
        messenger.fail()
        with pytest.raises(PublishFailed, match="session down"):
            await answer
    assert publisher.counts.unknown == 1


async def test_an_error_of_the_programs_own_is_what_ends_the_context(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher()

    async def publish() -> None:
        async with publisher:
            await publisher.submit("t", b"", key="k")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await publish()
    assert publisher.counts.unknown == 1
