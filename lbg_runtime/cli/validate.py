"""`lbg validate`: the verdict on a run's journals, or order errors and moves as they happen."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.model.errors import UserError
from lbg_runtime.runtime.stop import StopCause, stop_requests

if TYPE_CHECKING:
    from lbg_runtime.config.connection_settings import ConnectionSettings
    from lbg_runtime.validator.live import LiveValidator


def validate(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory with the journals and ledgers of one run, which is over.")
    ] = None,
    ack_window: Annotated[
        str, typer.Option(help="How long before a fault a settlement may have been sent in vain.")
    ] = "1.5s",
    live: Annotated[bool, typer.Option("--live", help="Listen to the notes that members republish.")] = False,
    config: Annotated[Path, typer.Option(help="Settings file, for --live.")] = Path("config.yaml"),
    topic: Annotated[
        str | None, typer.Option(help="Where members republish, instead of the settings' ops.journal.republish_topic.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--for", help="How long to listen, such as 30s; until SIGINT or SIGTERM without it.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge a run: exit code 0 for valid, 1 for invalid, 3 where the records do not suffice to say.

    With --live: 1 where a number came after a higher one or was missing, 3 where no member was heard.
    """
    if live == (directory is not None):
        raise UserError("lbg validate", "both" if live else "neither", "either a directory or --live")
    code = _listen(config, topic, duration, as_json=json) if directory is None else _judge(directory, ack_window, json)
    raise typer.Exit(code)


def _judge(directory: Path, ack_window: str, as_json: bool) -> int:
    import orjson

    try:
        import pyarrow as _  # noqa: F401
    except ImportError:
        raise UserError("lbg validate", "pyarrow is not installed", "pip install 'lbg-runtime[validate]'") from None

    from lbg_runtime.journal.reader import read_run
    from lbg_runtime.validator.judge import validate as validate_run
    from lbg_runtime.validator.report import as_object, as_text

    verdict = validate_run(read_run(directory), _duration_ms("--ack-window", ack_window))
    print(orjson.dumps(as_object(verdict)).decode() if as_json else as_text(verdict))
    return verdict.kind.exit_code


def _listen(config: Path, topic: str | None, duration: str | None, *, as_json: bool) -> int:
    import orjson
    import uvloop

    from lbg_runtime.admin.stored import load_group_settings
    from lbg_runtime.cli.log import configure_log
    from lbg_runtime.validator.live import LiveValidator, SequenceErrorKind

    configure_log()
    settings = load_group_settings(config)
    topic = topic or settings.ops.journal.republish_topic
    if topic is None:
        raise UserError("--topic", "missing", "a topic here, or ops.journal.republish_topic in the settings")
    limit_s = None if duration is None else _duration_ms("--for", duration) / 1000
    # A group with the embedded broker has it in a member's process. The client name of the settings is the member's: a
    # second client of that name would end its session.
    connection = settings.outside_connection
    validator = LiveValidator()
    # With --json standard output is for the one object.
    uvloop.run(_follow(validator, connection, topic, limit_s, findings_to_stderr=as_json))
    summary = validator.summary()
    if as_json:
        print(orjson.dumps(summary).decode())
    else:
        print(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in summary.items()))
    if validator.notes == 0:
        return 3
    errors = validator.sequence_errors
    return 1 if errors[SequenceErrorKind.GAP] or errors[SequenceErrorKind.REPEAT_UNFLAGGED] else 0


async def _follow(
    validator: "LiveValidator",
    connection: "ConnectionSettings",
    topic: str,
    limit_s: float | None,
    *,
    findings_to_stderr: bool,
) -> None:
    """Feed the validator until the limit or a signal, and print what it finds at once."""
    import os

    from lbg_runtime.model.message import Message
    from lbg_runtime.runtime.session import open_session

    stopped = asyncio.Event()

    def stop(_: StopCause) -> None:
        stopped.set()

    def take(message: Message) -> None:
        for finding in validator.feed(message.payload):
            print(finding, file=sys.stderr if findings_to_stderr else sys.stdout, flush=True)

    with stop_requests(stop):
        async with open_session(connection, f"lbg-validate-{os.getpid()}") as session:
            await session.subscribe(topic, take)
            print(f"lbg validate: listening to {topic}", file=sys.stderr, flush=True)
            try:
                async with asyncio.timeout(limit_s):
                    # No bound without --for: the user ends it with a signal.
                    await stopped.wait()
            except TimeoutError:
                pass


def _duration_ms(option: str, text: str) -> int:
    from lbg_runtime.config.duration import DURATION_FORM, parse_duration_ms

    try:
        return parse_duration_ms(text)
    except ValueError:
        raise UserError(option, repr(text), DURATION_FORM) from None
