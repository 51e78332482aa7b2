"""Entry of `lbg`: registers the commands and turns errors into one line and an exit code.

The code is fixed once the command is over: from then on no signal replaces it, and no thread that a handler module has
left running keeps the process alive for longer than `EXIT_GRACE_S`.

Exit codes: 0 done and clean, 1 failed or an invalid verdict, 2 usage or configuration, 3 verdict unknown
or no Spark, 130 interrupted. A command module imports heavy modules inside its function, so that `lbg --help` stays
quick.
"""

import os
import signal
import sys
from contextlib import suppress
from importlib.metadata import version
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from lbg_runtime.cli.advise import advise
from lbg_runtime.cli.asyncapi import asyncapi
from lbg_runtime.cli.bench.acks import acks
from lbg_runtime.cli.bench.broker import broker as bench_broker
from lbg_runtime.cli.bench.dispatch import dispatch
from lbg_runtime.cli.bench.everything import all_
from lbg_runtime.cli.bench.faults import faults
from lbg_runtime.cli.bench.landing import landing as bench_landing
from lbg_runtime.cli.bench.latency import latency
from lbg_runtime.cli.bench.moves import handback, moves, takeover
from lbg_runtime.cli.bench.pipeline import pipeline
from lbg_runtime.cli.bench.poison import poison
from lbg_runtime.cli.bench.publish import publish as bench_publish
from lbg_runtime.cli.bench.receive import receive
from lbg_runtime.cli.bench.restripe import restripe
from lbg_runtime.cli.bench.scale import scale
from lbg_runtime.cli.bench.siblings import processes
from lbg_runtime.cli.bench.sidecar import sidecar
from lbg_runtime.cli.bench.soak import soak
from lbg_runtime.cli.broker import broker
from lbg_runtime.cli.check import check
from lbg_runtime.cli.compare import compare
from lbg_runtime.cli.dashboard import dashboard
from lbg_runtime.cli.demo.stage import demo
from lbg_runtime.cli.group.commands import group
from lbg_runtime.cli.importing import missing_extra
from lbg_runtime.cli.land import land
from lbg_runtime.cli.landing import landing
from lbg_runtime.cli.parked import parked
from lbg_runtime.cli.publish import publish
from lbg_runtime.cli.replay import replay
from lbg_runtime.cli.run import run
from lbg_runtime.cli.simulate import simulate
from lbg_runtime.cli.spark import spark
from lbg_runtime.cli.validate import validate
from lbg_runtime.cli.why import why
from lbg_runtime.model.errors import LbgError, UserError
from lbg_runtime.model.printable import printable
from lbg_runtime.runtime.shutdown import EXIT_GRACE_S, ExitGuard
from lbg_runtime.runtime.stop import ignore_requests

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Ordered, elastic consumption on Solace PubSub+.",
    epilog="Settings are read from config.yaml here, or from --config FILE; first steps are in docs/start.md. "
    "Exit codes: 0 done, 1 failed or invalid, 2 usage or settings, 3 verdict unknown or no Spark, 130 interrupted.",
)
bench = typer.Typer(no_args_is_help=True, help="Measure on this machine. The documents quote these figures.")
bench.command()(acks)
bench.command("all")(all_)
bench.command("broker")(bench_broker)
bench.command()(dispatch)
bench.command()(faults)
bench.command()(handback)
bench.command("landing")(bench_landing)
bench.command()(latency)
bench.command()(moves)
bench.command()(pipeline)
bench.command()(poison)
bench.command("publish")(bench_publish)
bench.command()(processes)
bench.command()(receive)
bench.command()(restripe)
bench.command()(scale)
bench.command()(sidecar)
bench.command()(soak)
bench.command()(takeover)


# In the order in which they are needed; `lbg --help` shows groups of commands last in their panel.
_START = "Start"
app.command(rich_help_panel=_START)(check)
app.command(rich_help_panel=_START)(run)
app.command(rich_help_panel=_START)(publish)
app.command(rich_help_panel=_START)(broker)
app.command(rich_help_panel=_START)(demo)
app.command(rich_help_panel=_START)(asyncapi)
_LOOK = "Look at a group, and administer it"
app.command(rich_help_panel=_LOOK)(why)
app.command(rich_help_panel=_LOOK)(dashboard)
app.add_typer(group, name="group", rich_help_panel=_LOOK)
app.add_typer(parked, name="parked", rich_help_panel=_LOOK)
_PROVE = "Prove and measure"
app.command(rich_help_panel=_PROVE)(validate)
app.command(rich_help_panel=_PROVE)(simulate)
app.command(rich_help_panel=_PROVE)(advise)
app.command(rich_help_panel=_PROVE)(compare)
app.add_typer(bench, name="bench", rich_help_panel=_PROVE)
_LAND = "Land and replay"
app.command(rich_help_panel=_LAND)(land)
app.command(rich_help_panel=_LAND)(replay)
app.add_typer(landing, name="landing", rich_help_panel=_LAND)
app.add_typer(spark, name="spark", rich_help_panel=_LAND)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"lbg_runtime {version('lbg-runtime')}")
        raise typer.Exit


@app.callback()
def _commands(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    # Without this, a single registered command would take the place of the whole command line.
    pass


def main() -> None:
    """Run the command line; never shows a traceback for a user's mistake or a broker's refusal."""
    _open_missing_streams()
    if sys.__stderr__ is sys.stderr and isinstance(sys.stderr, TextIOWrapper):
        sys.stderr = _unfailing(sys.stderr)
    # A character that the output's encoding lacks is shown by its number, and is no reason to fail.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if os.getpid() == 1:
        # The kernel drops signals for which the first process of a container has no handler: asked to leave while it
        # still starts, it would go on until it is killed. A command that can leave in order sets its own handler later.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        try:
            app()
        except SystemExit as leaving:
            # Every command that does not fail ends this way.
            _bind_what_no_signal_ends(leaving)
            sys.stdout.flush()
            raise
    except UserError as error:
        sys.exit(_fail(error, 2))
    except LbgError as error:
        sys.exit(_fail(error, 1))
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        sys.exit(_fail(missing, 2))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        # Write again to see whether it was standard output: an unbuffered one has nothing left of the failed write.
        if _is_written(sys.stdout, "\n"):
            raise
        # A reader that left on purpose, as `head` does, needs no message.
        told = "standard output", str(error.strerror), "room for what is printed"
        sys.exit(1 if isinstance(error, BrokenPipeError) else _fail(UserError(*told), 1))
    finally:
        _bind_what_no_signal_ends(sys.exception())
        _leave_written()
        _leave_within_bound(sys.exception())


def _fail(error: LbgError, code: int) -> int:
    # Whoever reads the line may send a signal at once, as `lbg run --processes` does.
    ignore_requests()
    ExitGuard(code).arm(EXIT_GRACE_S)
    with suppress(OSError):  # nobody reads it, or there is no room: the code still says it
        # An error may quote what others chose; an error of several lines is several problems.
        print("\n".join(f"lbg: {printable(line)}" for line in str(error).split("\n")), file=sys.stderr)
    return code


def _bind_what_no_signal_ends(leaving: BaseException | None) -> None:
    # Output that waits for its reader would keep alive a process that ignores requests to leave.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        _leave_within_bound(leaving)


def _leave_within_bound(leaving: BaseException | None) -> None:
    ignore_requests()
    code = leaving.code if isinstance(leaving, SystemExit) else int(leaving is not None)
    # The guard's thread is a daemon and ends with the interpreter, which first waits for all that are not daemons.
    ExitGuard(code if isinstance(code, int) else int(code is not None)).arm(EXIT_GRACE_S)


def _open_missing_streams() -> None:
    """Open standard input, output and error as /dev/null if whoever started us gave none.

    Otherwise the first sockets would get their numbers: uvloop aborts the process when it finds one of its own there,
    and printed text would go to a peer.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # This opens the lowest free number, which is this one, as those below it are open.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="backslashreplace"))  # noqa: SIM115


class _Unfailing(FileIO):
    """A file that takes what the system refuses, and drops it."""

    def write(self, data: "ReadableBuffer") -> int:
        # One that does not wait answers None.
        with suppress(OSError):
            if (written := super().write(data)) is not None:
                return written
        return memoryview(data).nbytes


def _unfailing(stream: TextIOWrapper) -> TextIOWrapper:
    """The same stream, but what is said there raises nothing: a disk that is full, or a reader that went away, ends no
    command and changes no exit code."""
    file = _Unfailing(stream.fileno(), "wb", closefd=False)
    return TextIOWrapper(BufferedWriter(file), stream.encoding, stream.errors, line_buffering=True)


def _is_written(stream: TextIO, more: str = "") -> bool:
    try:
        stream.write(more)
        stream.flush()
    except OSError:
        return False
    return True


def _leave_written() -> None:
    """Keep our exit code: the interpreter ends with 120 if its last flush of a standard stream fails."""
    for stream in (sys.stdout, sys.stderr):
        if not _is_written(stream):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
