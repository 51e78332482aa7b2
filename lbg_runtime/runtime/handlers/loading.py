"""Imports the modules of handlers that the settings name, and joins what they register."""

import importlib
import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.runners.failure_report import error_text

_MISUSED = re.compile(r"^Handlers\.|'_registering'$")
"""Python's errors for a decorator of the class instead of an object, and for one that has `()` and must not have it."""

_MODULE_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")


def load_handlers(module_names: Iterable[str]) -> Handlers:
    """Import the modules and join their `Handlers`, in order. Raises `HandlerError` with one line for the user."""
    found: dict[Handlers, None] = {}
    for name in module_names:
        module = _import(name)
        here = [value for value in vars(module).values() if isinstance(value, Handlers)]
        if not here:
            # Say which file it is: another module may have the same name, such as `queue` of the standard library.
            folder = "a folder without __init__.py" if hasattr(module, "__path__") else "built in"
            found_in = f"no Handlers object in the module ({getattr(module, '__file__', None) or folder})"
            raise HandlerError(f"handlers: {name}", found_in, "`handlers = Handlers()` there")
        # Modules may share an object by importing it from each other, and a module may have two names for one.
        found |= dict.fromkeys(here)
    joined = Handlers()
    for handlers in found:
        # A module that includes another module's object may have a name for that object, too.
        if not any(other.has_included(handlers) for other in found):
            joined.include(handlers)
    joined.check_bodies()
    return joined


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (HandlerError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the handler boundary: importing runs the user's code, which may also want to exit
        found = f"{error_text(error)}{_place_of(error, name)}"
        expected = "a module that can be imported"
        if name.endswith(".py") or not _MODULE_NAME.fullmatch(name):
            expected = "the name of a module, such as `shop` or `shop.orders`, and not of a file or an object"
        elif isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            expected = f"a module in the current folder, {Path.cwd()} (wherever config.yaml is), or an installed one"
        elif isinstance(error, TypeError) and str(error).startswith("Handlers.batch_handler() missing"):
            expected = '@handlers.batch_handler("views/>", max_count=100, max_wait="50ms")'
        elif isinstance(error, TypeError | AttributeError) and _MISUSED.search(str(error)):
            expected = "`handlers = Handlers()`, with parentheses, and e.g. `@handlers.lifespan`, without them"
        raise HandlerError(f"handlers: {name}", found, expected) from error


def _place_of(error: BaseException, name: str) -> str:
    """Where in the user's module the error happened, if it did: ` (file:line)`."""
    if isinstance(error, SyntaxError):
        return ""  # its text has the place
    frames = traceback.extract_tb(error.__traceback__)
    tail = name.replace(".", "/")
    mine = [frame for frame in frames if frame.filename.removesuffix(".py").removesuffix("/__init__").endswith(tail)]
    return f" ({mine[-1].filename}:{mine[-1].lineno})" if mine else ""
