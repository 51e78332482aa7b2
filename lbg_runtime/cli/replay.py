"""`lbg replay`: publishes what a landing log holds again, under another topic."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.landing import Directory, readable, time_text
from lbg_runtime.cli.options import Config, Json, Ledger, complain, insist_on_finite, print_json
from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import LbgError, UserError
from lbg_runtime.model.sendable import is_sendable
from lbg_runtime.model.topic import is_valid_topic
from lbg_runtime.runtime.stop import StopCause

if TYPE_CHECKING:
    from lbg_runtime.config.settings import Settings
    from lbg_runtime.model.group import GroupShape
    from lbg_runtime.pipeline.landing.log import LandingLog
    from lbg_runtime.pipeline.replay import LandedMessage, Replayed, Selection

_CONFIRM_TIMEOUT_MS = 30_000
_TIME_FORM = "a time such as 2026-11-21T10:00:00Z; UTC without an offset"


def replay(
    *,
    directory: Directory,
    to_topic: Annotated[
        str, typer.Option(help="Topic to publish to, in the group of the settings, without hash prefix and shard.")
    ],
    from_: Annotated[
        str | None,
        typer.Option("--from", help="Only messages that landed at this time or later, such as 2026-11-21T10:00:00Z."),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="Only messages that landed before this time.")] = None,
    key: Annotated[str | None, typer.Option(help="Only this key.")] = None,
    shard: Annotated[int | None, typer.Option(min=0, help="Only this shard.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Highest number of messages per second.")] = None,
    ledger: Ledger = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be published, and publish nothing.")
    ] = False,
    config: Config = Path("config.yaml"),
    json: Json = False,
) -> None:
    """Publish landed messages again, each confirmed, in the order of each key, up to the present end of the log.

    The messages keep their headers and, as text, their user properties, and get `lbg_replay_of` with the id of the row.
    The replay stops at the first message that is refused or may be lost; it reports how far it came. A signal stops it,
    too, when what was sent is confirmed; a second one does not wait for that. Of a log with damage nothing is
    published, or, if it has one queue, what lies before the damage. Exit code 1 in these cases, if messages had no key
    and were left out, if the disk refused lines of the ledger, and if --key matches nothing; 130 if stopped.
    """
    selection = _selection(from_, to, key, shard)
    if dry_run and ledger is not None:
        raise UserError("--ledger", "given with --dry-run", "one of the two: a dry run confirms nothing")
    # Checked here too, so that a dry run refuses it as well.
    if not is_valid_topic(to_topic):
        raise UserError("--to-topic", ascii(to_topic), "1 to 250 bytes, hash prefix and shard included")
    insist_on_finite("--rate", rate)
    import uvloop

    from lbg_runtime.admin.stored import load_group_settings
    from lbg_runtime.cli.log import configure_log
    from lbg_runtime.pipeline.landing.log import LandingLog
    from lbg_runtime.pipeline.replay import Replayed, count

    configure_log()
    with readable(directory):
        log = LandingLog(directory)
    shards = log.group.hash_count
    if shard is not None and shard >= shards:
        raise UserError("--shard", str(shard), f"0 to {shards - 1}, as the group of {directory} has {shards} shards")
    # A dry run says yes to nothing that the replay itself would refuse.
    settings = load_group_settings(config)
    _insist_on_topic(to_topic, settings.group.shape())
    is_stopped = False
    if dry_run:
        replayed, seconds = count(_messages(log, selection)), 0.0
    else:
        replayed = Replayed()
        began_s = time.monotonic()
        try:
            is_stopped = uvloop.run(_replay(log, selection, settings, to_topic, rate, ledger, replayed))
        except LbgError as error:
            if not replayed.selected:
                raise
            # What was published stays published: whoever goes on from here must know how far it came.
            replayed.failure = replayed.failure or error
        seconds = time.monotonic() - began_s
    is_left = replayed.without_key > 0 if dry_run else replayed.confirmed < replayed.selected
    if json:
        print_json(_as_object(replayed, dry_run=dry_run, seconds=seconds))
    else:
        _tell(replayed, to_topic, dry_run=dry_run)
    if is_stopped:
        raise typer.Exit(130)
    if not replayed.selected:
        asked = [("--from", from_), ("--to", to), ("--key", key), ("--shard", shard)]
        given = ", ".join(f"{option} {value}" for option, value in asked if value is not None)
        found = f"nothing in the log matches {given}" if given else "the log is empty"
        complain(f"{found}: looked in {directory}, of group {log.group.group}")
    # A time without messages is nothing wrong, a key that is nowhere is a wrong one.
    is_mistaken = key is not None and not replayed.selected
    is_faulty = replayed.failure is not None or replayed.ledger_dropped > 0
    raise typer.Exit(1 if is_left or is_mistaken or is_faulty else 0)


def _selection(from_: str | None, to: str | None, key: str | None, shard: int | None) -> "Selection":
    """What the options ask for; raises `UserError`."""
    if key is not None and shard is not None:
        raise UserError("--shard", f"given with --key {key}", "one of the two")
    # Checked here too, so that a dry run refuses it as well.
    if key is not None and not is_sendable(key):
        raise UserError("--key", ascii(key), "text that UTF-8 can carry")
    from_us, until_us = _time_us("--from", from_), _time_us("--to", to)
    if from_us is not None and until_us is not None and from_us >= until_us:
        raise UserError("--to", f"{to} is not after --from {from_}", "a later time")
    from lbg_runtime.pipeline.replay import Selection

    return Selection(from_us, until_us, key, shard)


def _insist_on_topic(topic: str, group: "GroupShape") -> None:
    """As the publisher does for each message, with the longest shard."""
    if group.split_topic(topic) is not None or not is_valid_topic(group.hashed_topic(group.hash_count - 1, topic)):
        from lbg_runtime.publisher.arguments import topic_refused

        refused = topic_refused(topic, group)
        raise UserError("--to-topic", refused.found, refused.expected)


async def _replay(
    log: "LandingLog",
    selection: "Selection",
    settings: "Settings",
    topic: str,
    rate: float | None,
    ledger_folder: Path | None,
    replayed: "Replayed",
) -> bool:
    """Replay; return whether it was asked to stop before its end."""
    import anyio

    from lbg_runtime.admin.stored import stopped_by_changes
    from lbg_runtime.cli.connecting import connected_unless_stopped
    from lbg_runtime.pipeline.replay import replay as replay_messages
    from lbg_runtime.publisher.opening import new_publisher_id, publisher_of
    from lbg_runtime.publishing import open_publishing_session

    publisher_id = new_publisher_id()
    sending, waiting = anyio.CancelScope(), anyio.CancelScope()
    # For the thread on which the log is read, which no cancellation ends.
    stopped = threading.Event()

    def stop(*causes: StopCause) -> None:
        if stopped.is_set() and any(cause.hurries for cause in causes):
            waiting.cancel()
        stopped.set()
        sending.cancel()

    async with connected_unless_stopped(open_publishing_session(settings, publisher_id), stop) as session:
        if session is None:
            return True
        publisher = publisher_of(settings.group, session, ledger_folder, publisher_id=publisher_id)
        with _progress(replayed) as show:
            try:
                # Outside the scope, whose cancellation would cut short the end of this context.
                async with stopped_by_changes(settings, stop):
                    with sending:
                        messages = _messages(log, selection, stopped.is_set)
                        await replay_messages(messages, publisher, topic, rate, replayed, show)
            finally:
                with waiting:
                    await publisher.close(_CONFIRM_TIMEOUT_MS)
                replayed.ledger_dropped = 0 if publisher.ledger is None else publisher.ledger.dropped
    return sending.cancelled_caught


def _messages(
    log: "LandingLog", selection: "Selection", is_stopped: Callable[[], bool] = lambda: False
) -> "Iterator[LandedMessage]":
    """See `selected`; raises `UserError` if the system refuses to read them, and `LandingError`."""
    from lbg_runtime.pipeline.replay import selected

    with readable(log.path):
        yield from selected(log, selection, is_stopped)


@contextmanager
def _progress(replayed: "Replayed") -> Iterator[Callable[[], None]]:
    """Show how many are confirmed while the context lasts, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task("reading")

        def show() -> None:
            bar.update(task, description=f"{replayed.sent} sent, {replayed.confirmed} confirmed")

        yield show


def _time_us(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(option, repr(text), _TIME_FORM) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6)


def _as_object(replayed: "Replayed", *, dry_run: bool, seconds: float) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "selected": replayed.selected,
        "without_key": replayed.without_key,
        "sent": replayed.sent,
        "confirmed": replayed.confirmed,
        "ledger_dropped": replayed.ledger_dropped,
        "from": time_text(replayed.first_us),
        "to": time_text(replayed.last_us),
        "seconds": round(seconds, 3),
        "failure": None if replayed.failure is None else str(replayed.failure),
    }


def _tell(replayed: "Replayed", topic: str, *, dry_run: bool) -> None:
    times = f", landed {time_text(replayed.first_us)} to {time_text(replayed.last_us)}" if replayed.selected else ""
    if dry_run:
        print(f"{counted(replayed.selected - replayed.without_key, 'message')} would be published to {topic}{times}")
    else:
        selected = counted(replayed.selected, "message")
        print(f"{replayed.confirmed} of {selected} published to {topic} and confirmed{times}")
    if replayed.without_key:
        complain(f"left out for lack of a key: {counted(replayed.without_key, 'message')}")
    if replayed.ledger_dropped:
        complain(f"{counted(replayed.ledger_dropped, 'line')} of the ledger lost")
    if replayed.failure is not None:
        complain(replayed.failure)
