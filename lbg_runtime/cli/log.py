"""Where the log of a command goes: standard error, in lines for people on a terminal and in JSON for all else."""

import logging
import sys
from io import StringIO
from typing import TextIO, cast

import structlog

LONGEST_TEXT = 2_000
"""Characters of one line or text of a traceback: an error may quote a whole payload."""

# Without the local variables of each frame: they hold payloads and may hold secrets.
_frames_of = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


class LogOutput:
    """A stream for a log: what it cannot write raises nothing, and is told of in the log when it can be written again.

    Lines are written in the middle of what handles messages. A reader that went away or a full disk must not end that.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failed_count = 0

    def write(self, text: str) -> None:
        """Write a whole line, at once."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the second where the stream is closed
            self._failed_count += 1
            return
        if self._failed_count:
            failed_count, self._failed_count = self._failed_count, 0
            structlog.get_logger(__name__).error("log_writes_failed", count=failed_count)

    def flush(self) -> None:
        """Nothing is kept back."""


def configure_log(*, as_json: bool | None = None) -> None:
    """Set structlog up for this process. `as_json` None: unless standard error is a terminal."""
    from lbg_runtime.runtime.log_facts import add_handling

    output = LogOutput(sys.stderr)
    if as_json is None:
        as_json = not sys.stderr.isatty()
    logging.basicConfig(stream=output, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # The client repeats at length what its transport tells in one line.
    logging.getLogger("solace").setLevel(logging.CRITICAL)
    # What a stranger sends to an HTTP port is no event of this process.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.ExceptionRenderer(_as_items), structlog.processors.JSONRenderer()]
        if as_json
        # Names that a peer chose may hold line breaks; written as literals they stay in one line.
        else [structlog.dev.ConsoleRenderer(repr_native_str=True, exception_formatter=_write_plainly)]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_handling,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Of a stream it needs no more than `write` and `flush`.
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, output)),
    )


def _as_items(exc_info: structlog.typing.ExcInfo) -> object:
    return _cut(_frames_of(exc_info))


def _write_plainly(out: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    whole = StringIO()
    structlog.dev.plain_traceback(whole, exc_info)
    out.write("\n".join(_cut_text(line) for line in whole.getvalue().split("\n")))


def _cut(found: object) -> object:
    match found:
        case str():
            return _cut_text(found)
        case list():
            return [_cut(each) for each in found]
        case dict():
            return {name: _cut(each) for name, each in found.items()}
        case _:
            return found


def _cut_text(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"
