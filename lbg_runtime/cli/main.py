"""Entry of `lbg`: registers the commands and turns errors into one line and an exit code.

The code is decided when the command is over: from then on no signal takes its place, and no thread that a handler
module has left running keeps the process for longer than `EXIT_GRACE_S`.

Exit codes: 0 done and clean, 1 failed or an invalid verdict, 2 usage or configuration, 3 verdict unknown
or no Spark, 130 interrupted. A command module imports what is heavy inside its function, so that `lbg --help` stays
quick.
"""

import os
import signal
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

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

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Ordered, elastic consumption on Solace PubSub+.",
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


@bench.callback()
def _benches() -> None:
    # As below: a single command would take the place of the group.
    pass


app.add_typer(bench, name="bench")
app.add_typer(group, name="group")
app.add_typer(landing, name="landing")
app.add_typer(parked, name="parked")
app.add_typer(spark, name="spark")
app.command()(advise)
app.command()(asyncapi)
app.command()(broker)
app.command()(check)
app.command()(compare)
app.command()(dashboard)
app.command()(demo)
app.command()(land)
app.command()(publish)
app.command()(replay)
app.command()(run)
app.command()(simulate)
app.command()(validate)
app.command()(why)


@app.callback()
def _commands() -> None:
    # Without this, a single registered command would take the place of the whole command line.
    pass


def main() -> None:
    """Run the command line; never shows a traceback for a user's mistake or a broker's refusal."""
    _open_missing_streams()
    # What has no place in the encoding of the output is shown by its number, and is no reason to fail.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if os.getpid() == 1:
        # The kernel drops what the first process of a container has no handler for: asked to leave while it still
        # starts, it would go on until it is killed. A command that can leave in order has a handler of its own, later.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        try:
            app()
        except SystemExit as leaving:
            # As every command ends that does not fail.
            _bind_what_no_signal_ends(leaving)
            sys.stdout.flush()
            raise
    except UserError as error:
        sys.exit(_fail(error, 2))
    except LbgError as error:
        sys.exit(_fail(error, 1))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        # Once more, as where nothing is buffered nothing of it is left to be written.
        if _is_written(sys.stdout, "\n"):
            raise
        # Whoever has gone on purpose, as `head` does, is not told.
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
        # An error may quote what others chose; those that are several lines are several problems.
        print("\n".join(printable(line) for line in f"lbg: {error}".split("\n")), file=sys.stderr)
    return code


def _bind_what_no_signal_ends(leaving: BaseException | None) -> None:
    # What waits for its reader would keep a process that ignores who asks it to leave.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        _leave_within_bound(leaving)


def _leave_within_bound(leaving: BaseException | None) -> None:
    ignore_requests()
    code = leaving.code if isinstance(leaving, SystemExit) else int(leaving is not None)
    # The thread of this ends with the interpreter, which until then waits for all threads that are not like it.
    ExitGuard(code if isinstance(code, int) else int(code is not None)).arm(EXIT_GRACE_S)


def _open_missing_streams() -> None:
    """Open standard input, output and error as /dev/null if whoever started us gave none.

    Else the first sockets get their numbers: uvloop aborts the process when it finds one of its own there, and what
    something prints would go to a peer.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one, as those below are there.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="backslashreplace"))  # noqa: SIM115


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
