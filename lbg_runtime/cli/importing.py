"""What can go wrong while a command imports its modules: an interrupt, or an extra that is not installed."""

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType

from lbg_runtime.model.errors import UserError

_DISTRIBUTIONS = {"opentelemetry": "opentelemetry-api"}
"""The distributions of modules whose name differs from theirs."""

_OF_EXTRA = re.compile(r"""([\w-]+).*; extra == ['"](\w+)['"]""")
"""A requirement of an extra, as the package's metadata write it."""


def end_when_asked() -> None:
    """Have SIGTERM end the process at once, as it does unless this is the first process of a container. Main thread.

    The kernel drops signals for which the first process has no handler: asked to leave while it still imports, it would
    go on until it is killed. Commands that can leave in order replace the handler once they can.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end_at_once)


def _end_at_once(number: int, _frame: FrameType | None) -> None:
    # Not sys.exit: it would pass through whatever runs, such as modules that are imported, those of handlers among
    # them, and be taken for their error.
    os._exit(128 + number)


@contextmanager
def importing() -> Iterator[None]:
    """While the context lasts, SIGINT ends the process at once, which a shell shows as 130. Main thread only.

    `KeyboardInterrupt` would give a traceback of whatever is being imported, and some modules turn it into another
    error.

    Nor is garbage looked for: importing leaves hardly any, and the looks take a tenth of a command's start.
    """
    with _no_looks_for_garbage(), _interrupts_at_once():
        yield


@contextmanager
def _no_looks_for_garbage() -> Iterator[None]:
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _interrupts_at_once() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        # SIGINT is ignored, as in what a shell has started in the background, or the handler is somebody else's.
        yield
        return
    # The default does nothing in the first process of a container.
    signal.signal(signal.SIGINT, _end_at_once if os.getpid() == 1 else signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def current_folder() -> Path:
    """Where handler modules are looked up; raises `UserError` if it was removed, for instance by a deployment."""
    try:
        return Path.cwd()
    except OSError as error:
        found, expected = str(error.strerror), "a folder that is there, as handler modules are looked up in it"
        raise UserError("the current folder", found, expected) from None


@contextmanager
def users_modules() -> Iterator[None]:
    """Modules are found in the current folder first, from now on. While the context lasts, what is printed, as by
    modules that are imported, goes to standard error: standard output is the command's. Raises as `current_folder`."""
    sys.path.insert(0, str(current_folder()))
    with redirect_stdout(sys.stderr):
        yield


def missing_extra(error: ModuleNotFoundError) -> UserError | None:
    """The error that says what to install to get the module; None if none of our extras brings it."""
    from importlib import metadata

    module = (error.name or "").partition(".")[0]
    wanted = _DISTRIBUTIONS.get(module, module)
    for requirement in metadata.requires("lbg-runtime") or ():
        found = _OF_EXTRA.fullmatch(requirement)
        # The first extra that has it, as the extras below are made of that one.
        if found is not None and found[1] == wanted:
            return UserError(module, "not installed", f"pip install 'lbg-runtime[{found[2]}]'")
    return None
