"""The page docs/settings.md, made from the shape of config.yaml: every setting with its kind, default and meaning.

The meaning of a setting is the docstring below it in the code.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import annotated_types
from pydantic import BaseModel, BeforeValidator, SecretStr
from pydantic.fields import FieldInfo

from lbg_runtime.cli.reference.commands import REQUIRED, as_row
from lbg_runtime.config.duration import duration_text, parse_duration_ms
from lbg_runtime.config.fields import NoneFor, off_is_none, split_hosts
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.config.secret import read_secret
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.keys import KeySource

_HEAD = """# Settings

Made from `lbg_runtime/config/`; do not edit. `make docs` writes it anew. The file as shipped is
[config.yaml](../config.yaml); `lbg check` reports what is wrong with a file.

- A *duration* is a number with its unit: `500ms`, `30s`, `2m`, `1h`.
- A *secret* is the text itself, or `file:PATH` for a file that holds it, which may not be empty. It is never shown.
- In every text, `${NAME}` and `${NAME:default}` are replaced from the environment. A default ends at the first `}`.
  Defaults and values from the environment are taken as they are: references in them are not replaced. A variable that
  is set to the empty text counts as set. Anything of another form is plain text; for a literal `${NAME}`, write
  `${DOLLAR:$}{NAME}`.
- The file is UTF-8, may be a pipe, and has at most 1,000,000 bytes.
- A wrong or unknown setting stops the start, with a line that names its place, what was found, and what was expected.
- For [membership](#membership), the command line takes precedence over the environment (`LBG_MEMBER_ID`,
  `LBG_MEMBER_INDEX`, `LBG_MEMBER_COUNT`), and the environment over the file.
"""

_NONE_IN_CODE = re.compile(r"None, in the file (`\w+`)")

_RULE = "`property:NAME`, `json:/POINTER`, `topic` or `topic_level:N`"


@dataclass(frozen=True, slots=True)
class _Kind:
    """The kind of a setting, taken apart: the type without None, and all its annotations."""

    type: object
    marks: tuple[object, ...]

    def is_made_by(self, function: object) -> bool:
        return any(isinstance(mark, BeforeValidator) and mark.func is function for mark in self.marks)

    @property
    def word_for_none(self) -> str | None:
        """The word that stands for None in the file."""
        validators = (mark.func for mark in self.marks if isinstance(mark, BeforeValidator))
        return next((each.word for each in validators if isinstance(each, NoneFor)), None)

    @property
    def is_duration(self) -> bool:
        return self.is_made_by(parse_duration_ms) or self.is_made_by(off_is_none)


def settings_page() -> str:
    """The whole page: a section for each section of the file."""
    return "\n".join([_HEAD, *_sections("", Settings)])


def _sections(path: str, model: type[BaseModel]) -> Iterator[str]:
    fields = {field.alias or name: (name, field, _taken_apart(field)) for name, field in model.model_fields.items()}
    plain = {written: each for written, each in fields.items() if _section_in(each[2]) is None}
    if path:
        yield from ("## " + path, "", _one_line(model.__doc__), "")
    if plain:
        yield from (as_row("setting", "kind", "default", "meaning"), "|---|---|---|---|")
        for written, (name, field, kind) in plain.items():
            where = f"{path}.{written}" if path else written
            yield as_row(f"`{where}`", _kind_text(kind), _default_text(field, kind), _meaning(model, name, kind))
        yield ""
    for written, (_, _, kind) in fields.items():
        below = _section_in(kind)
        if below is not None:
            is_list = get_origin(kind.type) is tuple
            inner = f"{path}.{written}" if path else written
            yield from _sections(inner + ("[]" if is_list else ""), below)


def _taken_apart(field: FieldInfo) -> _Kind:
    marks = list(field.metadata)
    kinds: list[object] = []

    def take(annotation: object) -> None:
        if get_origin(annotation) is Annotated:
            inner, *extras = get_args(annotation)
            marks.extend(extras)
            take(inner)
        elif get_origin(annotation) is not tuple and get_args(annotation):
            for each in get_args(annotation):
                take(each)
        else:
            kinds.append(annotation)

    take(field.annotation)
    # A `Field(...)` inside `Annotated` holds the limits given there.
    marks = [part for mark in marks for part in (mark.metadata if isinstance(mark, FieldInfo) else (mark,))]
    (kind,) = (each for each in kinds if each is not NoneType)
    return _Kind(kind, tuple(marks))


def _section_in(kind: _Kind) -> type[BaseModel] | None:
    candidates = (kind.type, *get_args(kind.type))
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)), None)


def _kind_text(kind: _Kind) -> str:
    text = _plain_kind_text(kind)
    if (word := kind.word_for_none) is not None:
        text += f", or `{word}`"
    return text


def _plain_kind_text(kind: _Kind) -> str:
    one = kind.type
    if kind.is_duration:
        return "duration" + _limits(kind, duration_text)
    if kind.is_made_by(read_secret) or one is SecretStr:
        return "secret"
    if kind.is_made_by(split_hosts):
        return "addresses, as a list or separated by commas"
    if one is KeySource:
        return _RULE
    if one is ListenAddress:
        return "HOST:PORT"
    if get_origin(one) is tuple:
        return "list of texts"
    if one is bool:
        return "`true` or `false`"
    if one is int:
        return "whole number" + _limits(kind, str)
    if one is float:
        return "number" + _limits(kind, str)
    if isinstance(one, type) and issubclass(one, Enum):
        return " or ".join(f"`{member.value}`" for member in one)
    return "text"


def _limits(kind: _Kind, show: Callable[[Any], str]) -> str:
    least = next((mark.ge for mark in kind.marks if isinstance(mark, annotated_types.Ge)), None)
    above = next((mark.gt for mark in kind.marks if isinstance(mark, annotated_types.Gt)), None)
    most = next((mark.le for mark in kind.marks if isinstance(mark, annotated_types.Le)), None)
    text = f" from {show(least)}" if least is not None else f" above {show(above)}" if above is not None else ""
    return text + (f" to {show(most)}" if most is not None else "")


def _default_text(field: FieldInfo, kind: _Kind) -> str:
    if field.is_required():
        return REQUIRED
    default = field.default
    if default is None:
        word = kind.word_for_none
        return f"`{word}`" if word else "none"
    if isinstance(default, SecretStr):
        return "empty"
    if isinstance(default, tuple):
        return ", ".join(f"`{each}`" for each in default) or "none"
    if kind.is_duration:
        return f"`{duration_text(default)}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default.value if isinstance(default, Enum) else default}`"


def _meaning(model: type[BaseModel], name: str, kind: _Kind) -> str:
    parts = [_NONE_IN_CODE.sub(r"\1", _texts_under(model).get(name, ""))]
    if isinstance(kind.type, type) and issubclass(kind.type, Enum):
        parts[0] = parts[0] or _one_line(kind.type.__doc__)
        under = _texts_under(kind.type)
        parts += [f"`{member.value}`: {under[member.name]}" for member in kind.type if member.name in under]
    return " ".join(part for part in parts if part)


@cache
def _texts_under(owner: type) -> dict[str, str]:
    """The text below each of a class's names, its own or else that of the nearest base class that has one."""
    found: dict[str, str] = {}
    for each in reversed(owner.__mro__[:-1]):
        if each not in (BaseModel, Enum):
            found |= _texts_in(each)
    return found


def _texts_in(owner: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    if not isinstance(definition, ast.ClassDef):
        return {}
    found: dict[str, str] = {}
    for before, after in zip(definition.body, definition.body[1:], strict=False):
        match before, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = _one_line(text)
    return found


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
