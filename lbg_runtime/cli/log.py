"""The log of a command: on standard error, as lines for people if that is a terminal, otherwise as JSON.

All of it has one form, whoever writes it: a log collector of containers reads line by line, and a traceback in pieces
tells it nothing. Several processes may share one stream, so each line says whose it is. The one line at the end that
reports a user's mistake is not part of the log, nor is the line in which a server says where it listens.
"""

import logging
import os
import sys
import threading
from io import StringIO
from types import TracebackType
from typing import TYPE_CHECKING, TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from lbg_runtime.cli.log_output import LogOutput

if TYPE_CHECKING:
    # Missing in the oldest version that we support.
    from structlog.typing import ProcessorReturnValue

    from lbg_runtime.runtime.handlers.unawaited import Unawaited

LONGEST_TEXT = 2_000
"""Most characters of a key, and of one line or text of a traceback: an error may quote a whole payload."""

WIDEST_GROUP, DEEPEST_GROUP = 15, 10
"""Most errors of one group that are logged, and most groups within groups: a task group may fail with thousands. The
limits are those of the tracebacks that Python writes itself."""

_log = structlog.get_logger(__name__)

# Without the local variables of each frame: they hold payloads and may hold secrets.
_frames_of = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


class _Whose:
    """A structlog processor: adds whose each line is, unless the line has a field of that name.

    One per process, not per task: that covers threads, libraries and callbacks as well, and a process of ours is one
    member at most. A program that runs an `App` itself has a log of its own, to which this adds nothing.
    """

    def __init__(self) -> None:
        self.member: str | None = None
        self.is_silent = False

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        if self.is_silent:
            return event
        if self.member is None:
            # Looked up each time, as the process may be a fork.
            event.setdefault("process", os.getpid())
        else:
            event.setdefault("member", self.member)
        return event


_whose = _Whose()


def configure_log(*, as_json: bool | None = None) -> LogOutput:
    """Set up the log of this process: structlog, `logging`, warnings, and uncaught exceptions. Returns its stream.

    A coroutine that is never awaited is an error of the log, and no warning of Python's: an effect may be missing.

    With `as_json` None it is JSON unless standard error is a terminal. If `logging` has already been set up, that
    setup stays. Lines of JSON have the id of the process until `name_member` has been called.
    """
    from lbg_runtime.runtime.handlers.unawaited import tell_of_unawaited
    from lbg_runtime.runtime.log_facts import add_handling

    output = LogOutput(sys.stderr)
    if as_json is None:
        as_json = not sys.stderr.isatty()
    _whose.member, _whose.is_silent = None, not as_json
    facts: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        add_handling,
        _cut_key,
        _whose,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[Processor] = (
        [
            _failing_nobody(
                structlog.processors.ExceptionRenderer(_as_items), _in_order, structlog.processors.JSONRenderer()
            )
        ]
        if as_json
        # Names chosen by a peer may hold line breaks; written as literals, they stay on one line.
        else [_failing_nobody(structlog.dev.ConsoleRenderer(repr_native_str=True, exception_formatter=_write_plainly))]
    )
    structlog.configure(
        processors=[*facts, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: output,
    )
    handler = _ForeignLines(cast(TextIO, output))  # it needs only `write` and `flush`
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*facts, structlog.stdlib.add_logger_name, _cut_event],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    # The client repeats at length what our transport says in one line.
    logging.getLogger("solace").setLevel(logging.CRITICAL)
    # What a stranger sends to an HTTP port is not an event of this process.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    logging.captureWarnings(True)
    # What the event loop catches goes to `logging`.
    sys.excepthook = _tell_of_end
    threading.excepthook = _tell_of_thread
    sys.unraisablehook = _tell_of_ignored
    tell_of_unawaited(_tell_of_unawaited)
    return output


def quiet_log(level: int = logging.WARNING) -> None:
    """Log as configured, but no normal events: a bench binds and releases all the time."""
    configure_log()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))


def name_member(member: str, *, is_alone: bool) -> None:
    """From now on, say in every line of this process that it is the member's.

    Lines for people are left as they are if it `is_alone`, which is whether nobody else writes to its terminal.
    """
    _whose.member = member
    _whose.is_silent &= is_alone


class _ForeignLines(logging.StreamHandler[TextIO]):
    """Lines from code that uses `logging`."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Do what the base class does, but without a lock: making a line may wait for a thread that writes one."""
        # Since Python 3.12 a filter may give another record.
        passed: object = self.filter(record)
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return bool(passed)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - named by the base class
        """Report a line that cannot be made, e.g. as its arguments do not fit; `logging` would print at length."""
        _log.error("log_line_failed", logger=record.name, place=f"{record.filename}:{record.lineno}", exc_info=True)


def _tell_of_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _log.error("process_failed", exc_info=(kind, error, trace))


def _tell_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        name = args.thread.name if args.thread is not None else None
        _log.error("thread_failed", thread=name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback))


def _tell_of_ignored(args: "sys.UnraisableHookArgs") -> None:
    # Its name, not its text, which may hold anything.
    where = getattr(args.object, "__qualname__", type(args.object).__qualname__)
    exc_info = (args.exc_type, args.exc_value, args.exc_traceback)
    reason = {"reason": args.err_msg} if args.err_msg else {}
    _log.error("exception_ignored", **reason, where=where, exc_info=exc_info)


def _tell_of_unawaited(seen: "Unawaited") -> None:
    _log.error("coroutine_never_awaited", coroutine=seen.coroutine, place=seen.place)


def _in_order(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Put first what every line has, as in the lines for people."""
    first = {name: event[name] for name in ("timestamp", "level", "event", "member", "process") if name in event}
    return {**first, **event}


def _cut_event(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {**event, "event": _cut_text(event["event"])}


def _cut_key(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    # Publishers choose it, and a failing message is told of at each attempt.
    key = event.get("key")
    return {**event, "key": _cut_text(key)} if isinstance(key, str) else event


def _failing_nobody(*steps: Processor) -> Processor:
    """Render, or report that it failed, but never raise: the caller may be handling a message."""

    def render(logger: WrappedLogger, name: str, event: EventDict) -> "ProcessorReturnValue":
        rendered: ProcessorReturnValue = dict(event)
        for step in steps:
            rendered = step(logger, name, cast(EventDict, rendered))
        return rendered

    def rendered(logger: WrappedLogger, name: str, event: EventDict) -> "ProcessorReturnValue":
        if event.get("exc_info"):
            try:
                return render(logger, name, event)
            except Exception as error:  # noqa: BLE001 - whatever is logged may raise anything
                # What a handler raises may be nested too deeply to be written, or be malformed.
                event = {key: value for key, value in event.items() if key != "exc_info"}
                event["exception"] = f"it cannot be told: {type(error).__name__}"
        try:
            return render(logger, name, event)
        except Exception as error:  # noqa: BLE001 - as above
            known = {key: event[key] for key in ("level", "timestamp") if key in event}
            line = event["event"] if isinstance(event.get("event"), str) else None
            # Whose it is is ours to say once more: a field of that name may be what failed.
            told = _whose(logger, name, {**known, "line": line, "reason": type(error).__name__})
            return render(logger, name, {"event": "log_line_failed", **told})

    return rendered


def _as_items(exc_info: ExcInfo) -> object:
    kind, error, trace = exc_info
    if isinstance(error, BaseExceptionGroup):
        error = _shortened(error, DEEPEST_GROUP)
    return _cut(_frames_of((kind, error, trace)))


class _LeftOut(Exception):
    """Stands for the errors of a group that are not logged."""


def _shortened(group: BaseExceptionGroup[BaseException], depth: int) -> BaseExceptionGroup[BaseException]:
    errors = group.exceptions if depth else ()
    kept = [
        _shortened(each, depth - 1) if isinstance(each, BaseExceptionGroup) else each for each in errors[:WIDEST_GROUP]
    ]
    if left_out := len(group.exceptions) - len(kept):
        kept.append(_LeftOut(f"{left_out} more"))
    shortened = BaseExceptionGroup(group.message, kept)
    shortened.__cause__, shortened.__context__ = group.__cause__, group.__context__
    shortened.__suppress_context__ = group.__suppress_context__
    if (notes := getattr(group, "__notes__", None)) is not None:
        shortened.__notes__ = notes
    return shortened.with_traceback(group.__traceback__)


def _write_plainly(out: TextIO, exc_info: ExcInfo) -> None:
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
