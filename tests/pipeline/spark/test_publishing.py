"""What a task of the sink sends and accounts for, without a JVM; and what the sink may be told."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.errors import PublishFailed, PublishRefused, SinkKeySplit, SinkRowRefused, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.ids import GroupName
from lbg_runtime.model.message import Message
from lbg_runtime.pipeline.spark.publishing import Destination, check_rows, fingerprint, send_rows, sorted_rows
from lbg_runtime.pipeline.spark.sink import Published, check_keys
from lbg_runtime.pipeline.spark.sink_options import SinkOptions, read_sink_options
from lbg_runtime.pipeline.spark.task_ledger import task_ledger
from tests.open_files import open_below

SHAPE = GroupShape(GroupName("g"), "hp", 8, 2)
DESTINATION = Destination(SHAPE, HashFunction.CRC32)
COLUMNS = {"key": "string", "payload": "binary", "at": "long", "kind": "string"}

Answer = Callable[[Message], Exception | None]


class Wire:
    """A messenger that answers each message as it is told to, or never."""

    def __init__(self, answer: Answer | None = lambda _: None) -> None:
        self.sent: list[Message] = []
        self.most_under_way = 0
        self._answer = answer
        self._under_way = 0

    def send(self, message: Message) -> "asyncio.Future[None]":
        self.sent.append(message)
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._answer is not None:
            asyncio.get_running_loop().call_soon(self._settle, future, self._answer(message))
        return future

    def _settle(self, future: "asyncio.Future[None]", error: Exception | None) -> None:
        self._under_way -= 1
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def options_of(**given: str) -> SinkOptions:
    return read_sink_options({"topic": "orders/new", **given}, COLUMNS)


def table(count: int) -> pa.Table:
    return pa.table(
        {
            "key": [f"k{number % 3}" for number in range(count)],
            "payload": [str(number).encode() for number in range(count)],
            "at": [count - number for number in range(count)],
            "kind": [f"kind/{number % 2}" for number in range(count)],
        }
    )


async def test_rows_are_sent_in_order_with_ids_of_their_place() -> None:
    wire = Wire()
    await send_rows(wire, table(9), options_of(maxInFlight="2"), DESTINATION, "spark-q-7-0")
    assert [message.payload for message in wire.sent] == [str(number).encode() for number in range(9)]
    assert [message.message_id for message in wire.sent] == [f"spark-q-7-0-{number}" for number in range(1, 10)]
    assert [message.key_sequence for message in wire.sent] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert wire.sent[0].topic == f"hp/{shard_of(HashFunction.CRC32, 'k0', 8)}/orders/new"
    assert wire.most_under_way == 2


async def test_each_row_may_have_its_own_topic_and_text_for_payload() -> None:
    wire = Wire()
    rows = table(2).set_column(1, "payload", pa.array(["ä", "b"]))
    options = read_sink_options({"topicColumn": "kind"}, COLUMNS)
    await send_rows(wire, rows, options, DESTINATION, "p")
    assert [message.topic.split("/", 2)[2] for message in wire.sent] == ["kind/0", "kind/1"]
    assert wire.sent[0].payload == "ä".encode()


async def test_a_refusal_fails_the_task() -> None:
    wire = Wire(lambda message: PublishRefused(message.topic, "full") if message.payload == b"3" else None)
    with pytest.raises(PublishRefused, match="full"):
        await send_rows(wire, table(9), options_of(), DESTINATION, "p")


async def test_a_topic_that_no_broker_takes_fails_the_task() -> None:
    with pytest.raises(UserError, match="250 bytes"):
        await send_rows(Wire(), table(1), options_of(topic="t" * 300), DESTINATION, "p")


async def test_silence_of_the_broker_fails_the_task() -> None:
    with pytest.raises(PublishFailed, match="no confirm within 30000 ms"):
        await send_rows(Wire(None), table(1), options_of(), DESTINATION, "p")
    with pytest.raises(PublishFailed, match="no confirm within 2000 ms"):
        await send_rows(Wire(None), table(9), options_of(maxInFlight="3", ackTimeout="2s"), DESTINATION, "p")


async def test_silence_is_told_of_the_message_that_waits_for_its_confirm() -> None:
    options = read_sink_options({"topicColumn": "kind", "ackTimeout": "50ms"}, COLUMNS)
    with pytest.raises(PublishFailed) as raised:
        await send_rows(Wire(None), table(2), options, DESTINATION, "p")
    assert raised.value.topic == "kind/0"


def test_rows_are_sorted_by_their_column_and_equal_ones_stay() -> None:
    rows = pa.table({"key": ["a", "b", "c", "d"], "at": [2, 1, 2, 1]})
    assert sorted_rows(rows, options_of(orderColumn="at")).column("key").to_pylist() == ["b", "d", "a", "c"]
    assert sorted_rows(rows, options_of()).column("key").to_pylist() == ["a", "b", "c", "d"]


def test_a_row_without_what_it_needs_is_named_and_nothing_is_sent() -> None:
    rows = table(3).set_column(0, "key", pa.array(["a", None, "c"]))
    with pytest.raises(SinkRowRefused) as raised:
        check_rows(rows, options_of())
    assert (raised.value.column, raised.value.row) == ("key", 1)


def test_a_key_in_two_tasks_is_found() -> None:
    one, other = Published(frozenset({fingerprint("a"), fingerprint("b")})), Published(frozenset({fingerprint("c")}))
    check_keys([one, other, None])
    with pytest.raises(SinkKeySplit) as raised:
        check_keys([one, other, Published(frozenset({fingerprint("b")}))])
    assert raised.value.key_count == 1


async def publish(folder: Path, *, fails: bool = False) -> None:
    """A task that keeps a ledger."""
    options = options_of()
    with task_ledger(folder, SHAPE, HashFunction.CRC32, "spark-q-1-0") as ledger:
        wire = Wire((lambda message: PublishRefused(message.topic, "no")) if fails else (lambda _: None))
        await send_rows(wire, table(4), options, DESTINATION, "spark-q-1-0", ledger)


async def test_a_ledger_appears_with_the_last_confirm(tmp_path: Path) -> None:
    with pytest.raises(PublishRefused):
        await publish(tmp_path, fails=True)
    assert read_run(tmp_path).ledgers.num_rows == 0
    other = tmp_path / "other"
    await publish(other)
    tables = read_run(other)
    assert tables.ledgers.column("publisher").to_pylist() == ["spark-q-1-0"]
    assert sorted(tables.confirmed.column("last_seq").to_pylist()) == [1, 1, 2]
    assert tables.unconfirmed.num_rows == 0
    assert [path.name for path in (other / "drafts").iterdir()] == []


def test_a_ledger_is_closed_also_if_nothing_was_published(tmp_path: Path) -> None:
    with (
        pytest.raises(PublishFailed),
        task_ledger(tmp_path, SHAPE, HashFunction.CRC32, "spark-q-1-0"),
    ):
        raise PublishFailed("t", "no connection")
    assert open_below(tmp_path) == []
    assert read_run(tmp_path).ledgers.num_rows == 0


@pytest.mark.parametrize("first_fails", [True, False])
async def test_the_ledger_of_a_task_that_was_run_again_says_that_copies_may_be_there(
    tmp_path: Path, *, first_fails: bool
) -> None:
    if first_fails:
        with pytest.raises(PublishRefused):
            await publish(tmp_path, fails=True)
    else:
        await publish(tmp_path)
    await publish(tmp_path)
    tables = read_run(tmp_path)
    assert tables.ledgers.num_rows == 1
    assert tables.unconfirmed.column("fate").to_pylist() == ["unknown"] * 4
    assert sorted(tables.confirmed.column("last_seq").to_pylist()) == [1, 1, 2]


@pytest.mark.parametrize(
    ("given", "where", "expected"),
    [
        ({}, "options topic, topicColumn", "one of the two"),
        ({"topic": "t", "topicColumn": "kind"}, "options topic, topicColumn", "one of the two"),
        ({"topicColumn": "at"}, "option topicColumn, column 'at'", "a column of string"),
        ({"topic": "t", "keyColumn": "account"}, "option keyColumn", "one of key, payload, at, kind"),
        ({"topic": "t", "payloadColumn": "at"}, "option payloadColumn, column 'at'", "a column of string or binary"),
        ({"topic": "t", "orderColumn": "when"}, "option orderColumn", "one of key, payload, at, kind"),
        ({"topic": "t", "ackTimeout": "soon"}, "option ackTimeout", "a duration"),
        ({"topic": "t", "ackTimeout": "0s"}, "option ackTimeout", "a duration above 0"),
        ({"topic": "t", "maxInFlight": "0"}, "option maxInFlight", "a number from 1 to 1000"),
        ({"topic": "t", "maxInFlight": "9" * 5_000}, "option maxInFlight", "a number from 1 to 1000"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], where: str, expected: str) -> None:
    with pytest.raises(UserError) as raised:
        read_sink_options(given, COLUMNS)
    assert raised.value.where == where
    assert expected in raised.value.expected
