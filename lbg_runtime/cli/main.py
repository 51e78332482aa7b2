"""Entry of `lbg`: registers the commands and turns errors into one line and an exit code.

The code is fixed once the command is over: from then on no signal replaces it, and no thread that a handler module has
left running keeps the process alive for longer than `EXIT_GRACE_S`.

Exit codes: 0 done and clean, 1 failed or an invalid verdict, 2 usage or configuration, 3 verdict unknown
or no Spark, 130 interrupted. Only the module of the command that is wanted is imported, and it imports heavy modules
inside its function, so that `lbg --help` stays quick, too.
"""

import errno
import gc
import os
import resource
import signal
import sys
from contextlib import suppress
from importlib import import_module
from io import BufferedWriter, FileIO, TextIOWrapper
from itertools import chain
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from lbg_runtime.cli.importing import end_when_asked, importing, missing_extra
from lbg_runtime.model.errors import LbgError, UserError
from lbg_runtime.model.printable import printable
from lbg_runtime.runtime.shutdown import EXIT_GRACE_S, ExitGuard
from lbg_runtime.runtime.stop import ignore_requests

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_COMMANDS = {
    "Start": ("check", "run", "publish", "broker", "demo", "asyncapi"),
    "Look at a group, and administer it": ("why", "dashboard", "group", "parked"),
    "Prove and measure": ("validate", "simulate", "advise", "compare", "bench"),
    "Land and replay": ("land", "replay", "landing", "spark"),
}
"""In the order in which they are needed; `lbg --help` shows groups of commands last in their panel."""

_MODULES = {"bench": "bench.commands", "demo": "demo.stage", "group": "group.commands"}
"""Where a command is whose module has not its name."""


def command_line(wanted: str | None = None) -> typer.Typer:
    """All commands; if one of them is wanted, only that one: to import all takes longer than most of them need."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Ordered, elastic consumption on Solace PubSub+.",
        epilog="Settings are read from config.yaml here, or from --config FILE; first steps are in docs/start.md. "
        "Exit codes: 0 done, 1 failed or invalid, 2 usage or settings, 3 verdict unknown or no Spark, 130 interrupted.",
    )
    app.callback()(_commands)
    known = {"--version", *chain.from_iterable(_COMMANDS.values())}
    for panel, names in _COMMANDS.items():
        for name in names:
            if wanted in known and name != wanted:
                continue
            command = getattr(import_module(f"lbg_runtime.cli.{_MODULES.get(name, name)}"), name)
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, rich_help_panel=panel)
            else:
                app.command(rich_help_panel=panel)(command)
    return app


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from lbg_runtime.model.version import VERSION

        print(f"lbg_runtime {VERSION}")
        raise typer.Exit


def _commands(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    # Without this, a single registered command would take the place of the whole command line.
    pass


def main() -> None:
    """Run the command line; never shows a traceback for a user's mistake or a broker's refusal."""
    with importing():
        app = command_line(*sys.argv[1:2])
    # What is imported stays to the end, and need not be looked through for garbage.
    gc.freeze()
    _open_missing_streams()
    if sys.__stderr__ is sys.stderr and isinstance(sys.stderr, TextIOWrapper):
        sys.stderr = _unfailing(sys.stderr)
    # A character that the output's encoding lacks is shown by its number, and is no reason to fail.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # For whoever does not come from `__main__`.
    end_when_asked()
    try:
        try:
            sys.exit(app(standalone_mode=False))
        except SystemExit as leaving:
            # Every command that does not fail ends this way.
            _bind_what_no_signal_ends(leaving)
            sys.stdout.flush()
            raise
    except UserError as error:
        sys.exit(_fail(error, 2))
    except typer.TyperException as error:
        # Without a command there is nothing to say: its help has been printed.
        sys.exit(_fail(_misused(error, app), error.exit_code) if str(error) else error.exit_code)
    except LbgError as error:
        sys.exit(_fail(error, 1))
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        sys.exit(_fail(missing, 2))
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, RuntimeError, ExceptionGroup) as error:
        if lacks_descriptors(error):
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            found, expected = f"no file descriptor is left of {limit}", "a higher limit of open files (`ulimit -n`)"
            sys.exit(_fail(UserError("process", found, expected), 1))
        if not isinstance(error, OSError):
            raise
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


def lacks_descriptors(error: BaseException) -> bool:
    """Whether an error comes from a lack of file descriptors, whatever failed first: a socket, a file, an import."""
    found: list[BaseException | None] = [error]
    looked_at: set[int] = set()
    while found:
        each = found.pop()
        # Some are their own cause.
        if each is None or id(each) in looked_at:
            continue
        looked_at.add(id(each))
        if isinstance(each, OSError) and each.errno in (errno.EMFILE, errno.ENFILE):
            return True
        found += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            found += each.exceptions
    return False


def _misused(error: typer.TyperException, app: typer.Typer) -> UserError:
    # An option that lacks its value, or has one too many, does not say whose it is.
    path: str = getattr(getattr(error, "ctx", None), "command_path", None) or _called(app)
    return UserError(path, error.format_message().rstrip("."), f"what '{path} --help' lists")


def _called(app: typer.Typer) -> str:
    """The command that the first words of the command line name."""
    command: object = typer.main.get_command(app)
    path = "lbg"
    for word in sys.argv[1:]:
        if (command := getattr(command, "commands", {}).get(word)) is None:
            break
        path += f" {word}"
    return path


def _fail(error: LbgError, code: int) -> int:
    # Whoever reads the line may send a signal at once, as `lbg run --processes` does.
    ignore_requests()
    ExitGuard(code).arm(EXIT_GRACE_S)
    with suppress(OSError):  # nobody reads it, or there is no room: the code still says it
        # An error may quote what others chose, line breaks as well.
        problems = getattr(error, "problems", (error,))
        print("\n".join(f"lbg: {printable(str(problem))}" for problem in problems), file=sys.stderr)
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
    """The same stream, but writing to it raises nothing: a full disk, or a reader that went away, ends no command and
    changes no exit code."""
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
