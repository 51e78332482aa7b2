"""Whatever callers, the broker and the end do, in whatever order: every message is accounted for exactly once."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from lbg_runtime.journal.writer import RecordWriter
from lbg_runtime.metrics.reading import PublisherCounts
from lbg_runtime.model.errors import PublisherClosed, PublishFailed, PublishRefused
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName
from lbg_runtime.model.record import LedgerHeader
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.ledger import Ledger
from lbg_runtime.testing.virtual_time import VirtualTimeLoop
from tests.publisher.conftest import ScriptedMessenger

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["confirm", "confirm", "refuse", "fail", "turn", "flush"]), st.just("")),
        st.tuples(st.just("cancel"), st.integers(0, 30).map(str)),
    ),
    max_size=60,
)


async def _play(steps: list[tuple[str, str]], ledger_path: Path, *, answer_the_rest: bool) -> None:
    messenger = ScriptedMessenger()
    ledger = Ledger(RecordWriter(ledger_path, first=LedgerHeader("", "g", "g", 10, "crc32", "p", "h", 1, 0)))
    publisher = HashedPublisher(
        messenger,
        GroupShape(GroupName("g"), "g", 10, 2),
        HashFunction.CRC32,
        publisher_id="p",
        ledger=ledger,
        max_unconfirmed=3,
    )
    calls: list[asyncio.Task[Confirmation]] = []
    for step, argument in steps:
        match step:
            case "publish":
                calls.append(asyncio.create_task(publisher.publish("t", b"%d" % len(calls), key=argument)))
            case "confirm" | "refuse" | "fail" if messenger.answered < len(messenger.answers):
                getattr(messenger, step)()
            case "turn":
                await asyncio.sleep(0)
            case "flush":
                await asyncio.sleep(1)
            case "cancel" if int(argument) < len(calls):
                calls[int(argument)].cancel()
    await asyncio.sleep(0.001)
    messenger.confirm_after_s = 0.001
    if answer_the_rest:
        messenger.confirm(len(messenger.answers) - messenger.answered)
    counts = await publisher.close(timeout_ms=1000)
    results = await asyncio.gather(*calls, return_exceptions=True)

    _check_calls(messenger, results)
    _check_account(messenger, counts, results, ledger_path)


def _check_calls(messenger: ScriptedMessenger, results: Sequence[Confirmation | BaseException]) -> None:
    """Calls are served in their order within the bound, and the numbers of a key have no gap."""
    assert messenger.most_unanswered <= 3
    assert {type(result) for result in results} <= {
        *(Confirmation, PublisherClosed, asyncio.CancelledError, PublishFailed, PublishRefused),
    }
    numbers = [int(payload) for payload in messenger.payloads()]
    assert numbers == sorted(numbers)
    for key in "abc":
        of_key = [message.key_sequence for message in messenger.sent if message.key == key]
        assert of_key == list(range(1, len(of_key) + 1))


def _check_account(
    messenger: ScriptedMessenger,
    counts: PublisherCounts,
    results: Sequence[Confirmation | BaseException],
    ledger_path: Path,
) -> None:
    """Each message has exactly one place in the ledger, the one it was answered with, and is counted there."""
    assert counts.unconfirmed == 0
    assert counts.sent == len(messenger.sent)
    places: Counter[tuple[str, int, str]] = Counter()
    lines = [orjson.loads(line) for line in ledger_path.read_bytes().splitlines()]
    for line in lines[1:-1]:
        if line["kind"] == "confirmed":
            places.update((line["key"], n, "confirmed") for n in range(line["first_seq"], line["last_seq"] + 1))
        else:
            places[line["key"], line["seq"], line["fate"]] += 1
    fates = Counter({"confirmed": counts.confirmed, "refused": counts.refused, "unknown": counts.unknown})
    assert Counter(fate for _, _, fate in places.elements()) == +fates
    assert {(key, n) for key, n, _ in places} == {(message.key, message.key_sequence) for message in messenger.sent}
    assert max(places.values(), default=1) == 1
    assert all(
        (result.key, result.key_sequence, "confirmed") in places
        for result in results
        if isinstance(result, Confirmation)
    )
    assert lines[-1]["kind"] == "close"


@settings(max_examples=300, deadline=None)
@given(STEPS, st.booleans())
def test_every_message_is_accounted_for_exactly_once(steps: list[tuple[str, str]], answer_the_rest: bool) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        capture_logs(),
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
    ):
        runner.run(_play(steps, Path(folder) / "ledger", answer_the_rest=answer_the_rest))
