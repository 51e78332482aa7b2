"""Where the log of a command goes: standard error, in lines for people on a terminal and in JSON for all else."""

import logging
import sys

import structlog

# Without the local variables of each frame: they hold payloads and may hold secrets.
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def configure_log(*, as_json: bool | None = None) -> None:
    """Set structlog up for this process. `as_json` None: unless standard error is a terminal."""
    from lbg_runtime.runtime.log_facts import add_handling

    if as_json is None:
        as_json = not sys.stderr.isatty()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # The client repeats at length what its transport tells in one line.
    logging.getLogger("solace").setLevel(logging.CRITICAL)
    # What a stranger sends to an HTTP port is no event of this process.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    renderers: list[structlog.typing.Processor] = (
        [_TRACEBACKS, structlog.processors.JSONRenderer()]
        if as_json
        # Names that a peer chose may hold line breaks; written as literals they stay in one line.
        else [structlog.dev.ConsoleRenderer(repr_native_str=True, exception_formatter=structlog.dev.plain_traceback)]
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
