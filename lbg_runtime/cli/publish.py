"""`lbg publish`: keyed messages from standard input, or a steady load of generated ones."""

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.lines import read_lines
from lbg_runtime.cli.options import (
    DURATION,
    Config,
    ExitWithParent,
    Json,
    Ledger,
    complain,
    duration_ms,
    insist_on_finite,
    print_json,
)
from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.keys import KeySource
from lbg_runtime.model.message import NO_PROPERTIES, PARTITION_KEY_PROPERTY
from lbg_runtime.model.sendable import is_sendable
from lbg_runtime.runtime.stop import StopCause, starting_parent

if TYPE_CHECKING:
    from lbg_runtime.cli.log_output import LogOutput
    from lbg_runtime.config.settings import Settings
    from lbg_runtime.publisher.hashed import HashedPublisher
    from lbg_runtime.publisher.load import LoadPlan

_CONFIRM_TIMEOUT_MS = 10_000
"""How long to wait for the last confirms; less than most senders of SIGTERM wait before they send SIGKILL."""
_PROGRESS_S = 0.2


@dataclass(frozen=True, slots=True)
class PublishSummary:
    """What `--json` prints. A message that was sent is confirmed, refused, or of unknown fate."""

    publisher: str
    sent: int
    confirmed: int
    refused: int
    unknown: int
    seconds: float
    per_second: int
    ledger: str | None
    ledger_dropped: int
    """Lines of the ledger that the disk refused."""
    stopped_by: str | None
    """SIGTERM, SIGINT or `parent gone`; null if everything asked for was sent."""
    failure: str | None
    """Why the sending ended early: a line that cannot be sent, or settings of the group that have changed."""

    @property
    def exit_code(self) -> int:
        """0 if every message that was sent is confirmed and on the ledger; else 1, or 2 if the sending ended early."""
        if self.confirmed != self.sent or self.ledger_dropped:
            return 1
        if self.failure is not None:
            return 2
        return 130 if self.stopped_by == StopCause.SIGINT.value else 0

    def as_text(self) -> str:
        """One line for people."""
        text = f"{self.confirmed} of {counted(self.sent, 'message')} confirmed in {self.seconds:.1f} s"
        if self.seconds >= 1 and self.per_second:
            # For less time it says little: the first message waits for more than the others.
            text += f", {self.per_second} a second"
        if self.refused:
            text += f"; {self.refused} refused"
        if self.unknown:
            text += f"; {self.unknown} may or may not be on the broker"
        if self.ledger_dropped:
            text += f"; {self.ledger_dropped} lines of the ledger lost"
        return text


def publish(
    *,
    topic: Annotated[str, typer.Option(help="Topic without hash prefix and shard, such as orders/created.")],
    config: Config = Path("config.yaml"),
    key: Annotated[str | None, typer.Option(help="One key for all messages.")] = None,
    key_from: Annotated[
        str | None,
        typer.Option(
            metavar="RULE", help="Rule by which each line gets its key: json:/POINTER, topic or topic_level:N."
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Generate this many messages.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Generate this many messages per second.")] = None,
    keys: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Generate messages for this many keys.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar=DURATION, help="Generate messages for this long, such as 30s.")
    ] = None,
    ledger: Ledger = None,
    json: Json = False,
    exit_with_parent: ExitWithParent = False,
) -> None:
    """Publish to a load-balanced group, in order per key, each message confirmed by the broker.

    Without --count, --rate, --keys and --duration, each line of standard input is the payload of a message. Messages
    are generated without end unless --count or --duration says otherwise, and without --rate as fast as the broker
    confirms them. SIGTERM and SIGINT stop the sending; confirms of what was sent are still awaited, until a second
    signal. A line that cannot be sent stops it, too, with exit code 2. Exit code 1 if a message was refused, or may be
    lost.
    """
    # Before the imports, which take their time.
    parent_pid = starting_parent() if exit_with_parent else None
    import uvloop

    from lbg_runtime.admin.stored import load_group_settings
    from lbg_runtime.cli.log import configure_log
    from lbg_runtime.publisher.load import LoadPlan, numbered_keys

    log = configure_log()
    is_load = any(option is not None for option in (count, rate, keys, duration))
    if key is not None and key_from is not None:
        raise UserError("--key-from", f"given with --key {key}", "one of the two")
    if is_load and key_from is not None:
        raise UserError("--key-from", "given for generated messages", "--key or --keys, or lines on standard input")
    if key == "":
        # Mostly a variable that was not set. All such messages would be one key.
        raise UserError("--key", "an empty one", "the key of all messages")
    if key is not None and not is_sendable(key):
        raise UserError("--key", ascii(key), "text that UTF-8 can carry")
    if key is not None and keys is not None:
        raise UserError("--keys", f"given with --key {key}", "one of the two")
    insist_on_finite("--rate", rate)
    duration_s = None if duration is None else duration_ms("--duration", duration, least_ms=1) / 1_000
    settings = load_group_settings(config)
    plan = None
    if is_load:
        plan = LoadPlan(topic, numbered_keys(keys or 1) if key is None else (key,), count, rate, duration_s)
    elif sys.stdin.isatty():
        print("lbg publish: each line that you type is a message; Ctrl-D ends", file=sys.stderr)
    lines = _Lines(topic, key, settings.group.key if key_from is None else _parse_rule(key_from))
    summary = uvloop.run(_publish(settings, plan or lines, ledger, log, parent_pid=parent_pid))
    if json:
        print_json(asdict(summary))
    else:
        print(summary.as_text())
    if not is_load and not summary.sent and summary.stopped_by is None:
        complain("standard input was empty; --count, --rate, --keys or --duration generate messages")
    if summary.failure is not None:
        complain(summary.failure)
    raise typer.Exit(summary.exit_code)


def _parse_rule(text: str) -> KeySource:
    try:
        return KeySource.parse(text)
    except UserError as error:
        raise UserError("--key-from", error.found, error.expected) from None


@dataclass(frozen=True, slots=True)
class _Lines:
    """Standard input as the source of messages."""

    topic: str
    key: str | None
    key_source: KeySource


async def _publish(
    settings: "Settings",
    source: "LoadPlan | _Lines",
    ledger_folder: Path | None,
    log: "LogOutput",
    *,
    parent_pid: int | None,
) -> PublishSummary:
    import anyio

    from lbg_runtime.admin.stored import stopped_by_changes
    from lbg_runtime.cli.connecting import connected_unless_stopped
    from lbg_runtime.metrics.reading import PublisherCounts
    from lbg_runtime.metrics.tracing import open_spans
    from lbg_runtime.publisher.load import LoadPlan
    from lbg_runtime.publisher.opening import new_publisher_id, publisher_of
    from lbg_runtime.publishing import open_publishing_session

    publisher_id = new_publisher_id()
    spans = open_spans(settings, publisher_id)
    causes: list[StopCause] = []
    failure: UserError | None = None
    ledger, counts, began_s = None, PublisherCounts(0, 0, 0, 0), time.monotonic()
    sending, waiting = anyio.CancelScope(), anyio.CancelScope()

    def stop(cause: StopCause) -> None:
        if causes and cause.hurries:
            waiting.cancel()
        causes.append(cause)
        sending.cancel()

    # No bound: the queues may be many, and the broker slow to make them.
    connection = open_publishing_session(settings, publisher_id)
    async with connected_unless_stopped(connection, stop, parent_pid=parent_pid) as session:
        if session is not None:
            publisher = publisher_of(settings.group, session, ledger_folder, publisher_id=publisher_id, spans=spans)
            ledger = publisher.ledger
            began_s = time.monotonic()
            with _progress(publisher, source.count if isinstance(source, LoadPlan) else None, log):
                try:
                    # Outside the scope, whose cancellation would cut short the end of this context.
                    async with stopped_by_changes(settings, sending.cancel):
                        with sending:
                            await _send(publisher, source, settings.group.key)
                except UserError as error:
                    failure = error
                finally:
                    with waiting:
                        await publisher.close(_CONFIRM_TIMEOUT_MS)
                    counts = publisher.counts
    if failure is not None and not counts.sent:
        raise failure
    # Otherwise some was sent: whoever goes on from here must know how far it came.
    seconds = time.monotonic() - began_s
    return PublishSummary(
        publisher=publisher_id,
        sent=counts.sent,
        confirmed=counts.confirmed,
        refused=counts.refused,
        unknown=counts.unknown,
        seconds=round(seconds, 3),
        per_second=round(counts.confirmed / seconds),
        ledger=None if ledger is None else str(ledger.path),
        ledger_dropped=0 if ledger is None else ledger.dropped,
        stopped_by=causes[0].value if causes else None,
        failure=None if failure is None else str(failure),
    )


async def _send(publisher: "HashedPublisher", source: "LoadPlan | _Lines", rule: KeySource) -> None:
    """Send all that there is; raises `UserError` for what cannot be sent."""
    from lbg_runtime.publisher.load import LoadPlan, load_payload, run_load

    if isinstance(source, LoadPlan):
        _tell_other_key(rule, source.topic, load_payload(source.keys[0], 1), source.keys[0])
        await run_load(publisher, source, random.Random())
    else:
        await _publish_lines(publisher, source, rule)


def _tell_other_key(rule: KeySource, topic: str, payload: bytes, key: str) -> None:
    # No error: in a rehearsal it may be known, and what is sent is handled.
    found = rule.extract(topic, {PARTITION_KEY_PROPERTY: key}, payload)
    if found != key:
        told = "none" if found is None else ascii(found)
        complain(
            f"key {key!a} is not the one that members find by group.key ({rule}), which is {told}: they go by"
            " theirs, handlers get no fencing token, and lbg validate reports losses that did not happen"
        )


async def _publish_lines(publisher: "HashedPublisher", lines: _Lines, rule: KeySource) -> None:
    """Send each line up to the first that cannot be sent; raises `UserError` with its number.

    Skipping a line would reorder its key if the user corrects it and sends it again.
    """
    async with aclosing(read_lines(sys.stdin.fileno())) as payloads:
        number = 0
        async for payload in payloads:
            number += 1
            key = lines.key
            if key is None:
                key = lines.key_source.extract(lines.topic, NO_PROPERTIES, payload)
            if key is None:
                expected = "a key in each line by the rule of --key-from or group.key, or one key for all with --key"
                raise UserError(f"standard input, line {number}", "no key", expected)
            if number == 1:
                _tell_other_key(rule, lines.topic, payload, key)
            try:
                await publisher.submit(lines.topic, payload, key=key)
            except UserError as error:
                raise UserError(f"standard input, line {number}: {error.where}", error.found, error.expected) from None


@contextmanager
def _progress(publisher: "HashedPublisher", total: int | None, log: "LogOutput") -> Iterator[None]:
    """Show how many messages are confirmed while the context lasts, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    loop = asyncio.get_running_loop()
    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[text]}"))
    with log.above_row(), Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("confirmed", total=total, text="")
        timer: asyncio.TimerHandle | None = None

        def update() -> None:
            counts = publisher.counts
            text = f"{counts.confirmed} confirmed, {counts.unconfirmed} under way, {counts.refused} refused"
            bar.update(task, completed=counts.confirmed, text=text)

        def show() -> None:
            nonlocal timer
            update()
            timer = loop.call_later(_PROGRESS_S, show)

        show()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            update()
