"""From a settings file to `Settings`, or to one line per problem."""

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from lbg_runtime.config.document import read_document
from lbg_runtime.config.duration import duration_text, parse_duration_ms
from lbg_runtime.config.environment import UnsetVariable, interpolate
from lbg_runtime.config.fields import SettingProblem
from lbg_runtime.config.settings import STORED_IN_SEMP, GroupSource, Settings
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.keys import KEY_RULES

_NAME_END = re.compile(r"[\s:=]")
"""Ends a key in messages: no setting's name has one, and a secret may follow if the space after a colon is missing."""

MAX_DEPTH = 6
"""Levels of nested sections; the deepest setting is three deep."""

MAX_VALUES = 10_000
"""Values in a file. With aliases of aliases, a few lines of YAML can expand to more than any memory holds."""

_EXPECTED_TYPES = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "model_type": "a section with keys",
    "string_too_short": "a text that is not empty",
    "too_short": "at least one entry",
    "float_parsing": "a number",
    "float_type": "a number",
    "dataclass_type": KEY_RULES,
}


class ConfigErrors(ConfigError):
    """Several settings are wrong; the text has one line for each."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        first = problems[0]
        super().__init__(first.where, first.found, first.expected)
        self.problems: tuple[ConfigError, ...] = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def problems_of(error: ConfigError) -> tuple[ConfigError, ...]:
    """The single problems in an error that `load_settings` raised."""
    return error.problems if isinstance(error, ConfigErrors) else (error,)


AskBroker = Callable[[Settings], Mapping[str, object]]
"""What is stored of the group on the broker, by the names of `STORED_IN_SEMP`. In the settings that are passed to it,
these are placeholders. Raises `ConfigError`."""


def load_settings(path: Path, environ: Mapping[str, str] = os.environ, ask: AskBroker | None = None) -> Settings:
    """The settings of a file, every one of them checked. Raises `ConfigError`; `ConfigErrors` for more than one.

    `ask` is called if the file says `group.from: semp`; without `ask`, that is an error.
    """
    return parse_settings(read_document(path), str(path), environ, ask)


def parse_settings(
    document: Mapping[str, object],
    source: str,
    environ: Mapping[str, str] = os.environ,
    ask: AskBroker | None = None,
) -> Settings:
    """The same for sections already read; `source` is their name in messages. Raises `ConfigError`."""
    problems: list[ConfigError] = []
    values = _Interpolation(source, environ, problems).of(document)
    if problems:
        raise problems[0] if len(problems) == 1 else ConfigErrors(problems)
    if isinstance(values, Mapping):
        group = values.get("group")
        if isinstance(group, Mapping) and group.get("from") == GroupSource.SEMP.value:
            values = _with_stored(values, group, source, ask)
    return _validated(values, source)


def _validated(values: object, source: str) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        problems = [_as_config_error(source, details) for details in error.errors(include_url=False)]
    raise problems[0] if len(problems) == 1 else ConfigErrors(problems)


def _with_stored(
    values: Mapping[str, object], group: Mapping[str, object], source: str, ask: AskBroker | None
) -> Mapping[str, object]:
    """The values, completed with the group's stored settings."""
    for name in STORED_IN_SEMP:
        if name in group:
            raise ConfigError(_where(source, ("group", name)), "given with from: semp", "it on the broker only")
    if ask is None:
        raise ConfigError(_where(source, ("group", "from")), "semp", "file, with all settings of the group in it")
    # Everything else is checked before the broker is asked.
    placeholders = {"hash_prefix": "unknown", "hash_count": 1, "queue_count": 1}
    draft = _validated({**values, "group": {**group, **placeholders}}, source)
    if draft.semp is None:
        expected = "an account that may read the stored settings"
        raise ConfigError(_where(source, ("semp",)), "not set, with group.from: semp", expected)
    return {**values, "group": {**group, **ask(draft)}}


class _Interpolation:
    """Replaces references to the environment in the texts of one document; adds mistakes to `problems`."""

    def __init__(self, source: str, environ: Mapping[str, str], problems: list[ConfigError]) -> None:
        self._source = source
        self._environ = environ
        self._problems = problems
        self._value_count = 0

    def of(self, value: object, path: tuple[str, ...] = ()) -> object:
        """The value with its texts replaced; raises `ConfigError` for more than `MAX_VALUES`."""
        self._value_count += 1
        if self._value_count > MAX_VALUES:
            raise ConfigError(self._source, f"more than {MAX_VALUES} values, with aliases", f"at most {MAX_VALUES}")
        if len(path) > MAX_DEPTH:  # YAML can hold a section that contains itself
            self._add(path, "nested too deep", f"at most {MAX_DEPTH} levels")
            return None
        match value:
            case str():
                return self._of_text(value, path)
            case Mapping():
                return {str(key): self.of(item, (*path, str(key))) for key, item in value.items()}
            case list():
                return [self.of(item, (*path, str(position))) for position, item in enumerate(value)]
            case _:
                return value

    def _of_text(self, value: str, path: tuple[str, ...]) -> str:
        try:
            text = interpolate(value, self._environ)
            text.encode()
        except UnicodeEncodeError:  # bytes of the environment that are not UTF-8 become lone surrogates
            self._add(path, "bytes that are not UTF-8", "a text in UTF-8")
        except UnsetVariable as unset:
            name = unset.name
            expected = f"the variable {name} set, or a default: ${{{name}:default}}"
            self._add(path, f"the environment has no {name}", expected)
        else:
            return text
        return value

    def _add(self, path: tuple[str, ...], found: str, expected: str) -> None:
        self._problems.append(ConfigError(_where(self._source, path), found, expected))


def _where(source: str, path: Sequence[str | int]) -> str:
    return f"{source}: {'.'.join(_told(path))}" if path else source


def _told(path: Sequence[str | int]) -> Iterator[str]:
    """The part of a path that is no secret: nothing below a secret's name, and of a key only what can be a name."""
    for step in path:
        name, *rest = _NAME_END.split(str(step), maxsplit=1)
        yield f"{name}..." if rest else name
        if step in SECRET_KEYS:
            return


def _as_config_error(source: str, details: ErrorDetails) -> ConfigError:
    path: tuple[str | int, ...] = details["loc"]
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, SettingProblem):
        return ConfigError(_where(source, (*path, *cause.path)), _without_credentials(cause.found), cause.expected)
    match details["type"]:
        case "missing":
            return ConfigError(_where(source, path), "not set", "a value, as it has no default")
        case "extra_forbidden":
            return ConfigError(_where(source, path), "unknown setting", _known_keys(path))
    return ConfigError(_where(source, path), _shown(path, details["type"], details["input"]), expected_by(details))


def expected_by(details: ErrorDetails) -> str:
    """What was expected of a value that pydantic refused, in our words."""
    match details["type"]:
        case "value_error":
            return str(details["ctx"]["error"])
        case "enum":
            return f"one of {details['ctx']['expected']}".replace("'", "")
        case "greater_than":
            return f"more than {_bound(details['input'], details['ctx']['gt'])}"
        case "greater_than_equal":
            return f"at least {_bound(details['input'], details['ctx']['ge'])}"
        case "less_than_equal":
            return f"at most {_bound(details['input'], details['ctx']['le'])}"
        case "string_too_long":
            return f"at most {details['ctx']['max_length']} characters"
        case kind:
            return _EXPECTED_TYPES.get(kind) or details["msg"].removeprefix("Input should be ")


def _bound(written: object, limit: float) -> str:
    """A limit in the notation of the value that exceeds it."""
    with suppress(ValueError):
        parse_duration_ms(written)
        return duration_text(round(limit))
    return f"{limit:.15g}"


def _shown(path: Sequence[str | int], kind: str, value: object) -> str:
    if any(step in SECRET_KEYS for step in path):
        return "a value that is not shown"
    if value is None:
        return "nothing"
    if isinstance(value, Mapping | list):
        return "a section" if isinstance(value, Mapping) else "a list"
    if kind == "model_type":
        # It may be a password with its name, if the space after the colon is missing.
        return "a text" if isinstance(value, str) else "a single value"
    return _without_credentials(repr(value))


def _without_credentials(shown: str) -> str:
    # An address should have none, which is no reason to print them. A password may hold any character, so it ends at
    # the last @.
    return re.sub(r"""^(['"]?(?:[A-Za-z][A-Za-z0-9+.-]*://)?).*@""", r"\1***@", shown)


def _known_keys(path: Sequence[str | int]) -> str:
    known = sorted(_keys_of_section(path[:-1]))
    close = difflib.get_close_matches(str(path[-1]), known, n=1)
    return f"{close[0]}, or another of {', '.join(known)}" if close else f"one of {', '.join(known)}"


def _keys_of_section(path: Sequence[str | int]) -> Iterator[str]:
    section: type[BaseModel] = Settings
    for step in path:
        if isinstance(step, int):  # an entry of a list, whose model was found by the list's name
            continue
        section = next(_model_in(field.annotation) for name, field in section.model_fields.items() if name == step)
    for name, field in section.model_fields.items():
        yield field.alias or name


def _model_in(annotation: object) -> type[BaseModel]:
    return next(kind for kind in _parts_of(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel))


def _parts_of(annotation: object) -> Iterator[object]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts_of(part)


def _secret_keys(section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        for kind in _parts_of(field.annotation):
            if kind is SecretStr:
                yield field.alias or name
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _secret_keys(kind)


SECRET_KEYS = frozenset(_secret_keys(Settings))
"""The names of settings whose values no message shows."""
