"""The page docs/cli.md, made from the functions that are the commands: their texts, arguments and options."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from lbg_runtime.cli.main import command_line

_HEAD = """# Commands

Made from `lbg_runtime/cli/`; do not edit. `make docs` writes it anew.

Exit codes: 0 done and clean, 1 failed or an invalid verdict, 2 usage or configuration, 3 verdict unknown or no Spark,
130 interrupted; section 8 of [architecture.md](architecture.md) lists them by command. Logs go to standard error,
whoever writes them: as JSON, unless standard error is a terminal. `lbg COMMAND --help` says the same as this page, and
`lbg --version` the version that is installed. A DURATION is a number with a unit, as in the settings: `250ms`, `30s`,
`5m`, `24h`. A SIZE is one too: `500M`, `20G`, in powers of 1024.
"""

REQUIRED = "required"

_KINDS: dict[object, str] = {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH"}


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One argument or option."""

    name: str
    """The name as it is written: `--rate`, or `KEY`."""
    value: str
    """What follows the name; empty for a switch."""
    default: str
    meaning: str
    is_option: bool

    @property
    def as_argument(self) -> str:
        """The argument as a usage line shows it."""
        return self.name if self.default == REQUIRED else f"[{self.name}]"


def commands_page() -> str:
    """The whole page: a section for each command, in alphabetical order."""
    sections = (line for path, function in _commands("lbg", command_line()) for line in _section(path, function))
    return "\n".join([_HEAD, *sections])


def as_row(*cells: str) -> str:
    """One row of a table; whatever would end a cell early is escaped, and an empty cell has one space."""
    return "|" + "|".join(f" {cell} " if cell else " " for cell in (each.replace("|", "\\|") for each in cells)) + "|"


def _commands(path: str, app: typer.Typer) -> Iterator[tuple[str, Callable[..., object]]]:
    found: dict[str, Callable[..., object] | typer.Typer] = {}
    for command in app.registered_commands:
        if command.callback is not None:
            found[command.name or command.callback.__name__.replace("_", "-")] = command.callback
    for group in app.registered_groups:
        if group.typer_instance is not None and isinstance(group.name, str):
            found[group.name] = group.typer_instance
    for name, below in sorted(found.items()):
        if isinstance(below, typer.Typer):
            yield from _commands(f"{path} {name}", below)
        else:
            yield f"{path} {name}", below


def _section(path: str, function: Callable[..., object]) -> Iterator[str]:
    parameters = sorted(_parameters(function), key=lambda each: each.is_option)
    arguments = [each.as_argument for each in parameters if not each.is_option]
    usage = [path, *(["[OPTIONS]"] if len(parameters) > len(arguments) else []), *arguments]
    yield from (f"## {path}", "", f"    {' '.join(usage)}", "")
    for paragraph in (inspect.getdoc(function) or "").split("\n\n"):
        yield from (" ".join(paragraph.split()), "")
    if parameters:
        yield "| | value | default | meaning |"
        yield "|---|---|---|---|"
        for each in parameters:
            default = each.default if each.default == REQUIRED else _as_code(each.default)
            yield as_row(f"`{each.name}`", _as_code(each.value), default, each.meaning)
        yield ""


def _parameters(function: Callable[..., object]) -> Iterator[_Parameter]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        if get_origin(hint) is not Annotated:
            continue
        kind, *extras = get_args(hint)
        info = next(each for each in extras if isinstance(each, OptionInfo | ArgumentInfo))
        is_option = isinstance(info, OptionInfo)
        # typer keeps the first declaration in the place of the default, as the default is in the signature.
        declared = (str(each) for each in (info.default, *(info.param_decls or ())) if str(each).startswith("--"))
        written = next(declared, f"--{name.replace('_', '-')}")
        yield _Parameter(
            name=written if is_option else name.upper(),
            value=_value(kind, info) if is_option else "",
            default=_default(parameter.default),
            meaning=" ".join((info.help or "").split()),
            is_option=is_option,
        )


def _value(kind: object, info: OptionInfo | ArgumentInfo) -> str:
    if get_origin(kind) in (Union, UnionType):
        # A union of something and None.
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    is_repeatable = get_origin(kind) is list
    if is_repeatable:
        (kind,) = get_args(kind)
    if kind is bool:
        return ""
    if info.metavar:
        text = info.metavar
    elif isinstance(kind, type) and issubclass(kind, Enum):
        text = " or ".join(str(member.value) for member in kind)
    else:
        text = _KINDS[kind]
        text += f" from {info.min:g}" if info.min is not None else ""
        text += f" to {info.max:g}" if info.max is not None else ""
    return f"{text}, repeatable" if is_repeatable else text


def _default(default: object) -> str:
    if default is inspect.Parameter.empty:
        return REQUIRED
    if default is None or default is False:
        return ""
    return str(default.value if isinstance(default, Enum) else default)


def _as_code(text: str) -> str:
    return f"`{text}`" if text else ""
