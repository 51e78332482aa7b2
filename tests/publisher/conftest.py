"""A messenger whose answers the test gives, and the publisher of a small group on it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import orjson
import pytest

from lbg_runtime.journal.writer import RecordWriter
from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName
from lbg_runtime.model.keys import KeySource
from lbg_runtime.model.message import Message
from lbg_runtime.model.record import LedgerHeader
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.ledger import Ledger
from lbg_runtime.transport.base import DirectSink


async def settled() -> None:
    """Let every task and callback run until all wait: a timer comes only after all that is ready."""
    await asyncio.sleep(0.001)


class ScriptedMessenger:
    """Keeps what was sent; the test answers, oldest first."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.answers: list[asyncio.Future[None]] = []
        self.answered = 0
        self.most_unanswered = 0
        self.failing_send: Exception | None = None
        self.confirm_after_s: float | None = None
        self._more = asyncio.Event()

    def send(self, message: Message) -> "asyncio.Future[None]":
        if self.failing_send is not None:
            raise self.failing_send
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        self.sent.append(message)
        self.answers.append(answer)
        self._more.set()
        self.most_unanswered = max(self.most_unanswered, len(self.answers) - self.answered)
        if self.confirm_after_s is not None:
            loop.call_later(self.confirm_after_s, self.confirm)
        return answer

    def send_direct(self, message: Message) -> None:
        raise NotImplementedError

    async def subscribe(self, subscription: str, sink: DirectSink) -> None:
        raise NotImplementedError

    async def has_sent(self, count: int) -> None:
        while len(self.sent) < count:
            self._more.clear()
            await self._more.wait()

    def confirm(self, count: int = 1) -> None:
        for _ in range(count):
            self._next().set_result(None)

    def refuse(self, reason: str = "Spool Over Quota") -> None:
        self._next().set_exception(PublishRefused(self.sent[self.answered - 1].topic, reason))

    def fail(self, reason: str = "session down") -> None:
        self._next().set_exception(PublishFailed(self.sent[self.answered - 1].topic, reason))

    def _next(self) -> "asyncio.Future[None]":
        self.answered += 1
        return self.answers[self.answered - 1]

    def payloads(self) -> Sequence[bytes]:
        return [message.payload for message in self.sent]


@pytest.fixture
def shape() -> GroupShape:
    return GroupShape(GroupName("orders"), hash_prefix="o", hash_count=100, queue_count=8)


@pytest.fixture
def messenger() -> ScriptedMessenger:
    return ScriptedMessenger()


MakePublisher = Callable[..., HashedPublisher]


@pytest.fixture
def make_publisher(shape: GroupShape, messenger: ScriptedMessenger) -> MakePublisher:
    def make(
        hash_function: HashFunction = HashFunction.CRC32,
        *,
        key_source: KeySource | None = None,
        ledger: Ledger | None = None,
        max_unconfirmed: int = 10,
        max_unconfirmed_bytes: int = 1000,
    ) -> HashedPublisher:
        return HashedPublisher(
            messenger,
            shape,
            hash_function,
            publisher_id="p",
            key_source=key_source,
            ledger=ledger,
            max_unconfirmed=max_unconfirmed,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
            clock_us=lambda: 1_700_000_000_000_000,
        )

    return make


class LedgerFile:
    """A ledger on disk and what stands in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = LedgerHeader("run", "orders", "o", 100, "crc32", "p", "host", 1, 0)
        self.ledger = Ledger(RecordWriter(path, first=header))

    def lines(self, kind: str) -> list[dict[str, object]]:
        records = [orjson.loads(line) for line in self.path.read_bytes().splitlines()]
        return [record for record in records if record["kind"] == kind]

    def ranges(self) -> list[tuple[object, object, object]]:
        return [(line["key"], line["first_seq"], line["last_seq"]) for line in self.lines("confirmed")]


@pytest.fixture
def ledger_file(tmp_path: Path) -> Iterator[LedgerFile]:
    file = LedgerFile(tmp_path / "p.ledger.jsonl")
    yield file
    file.ledger.close(clean=False)
