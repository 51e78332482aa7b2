"""Reads a payload as what a handler's annotation says."""

import json
import re
from collections.abc import Callable, Container, Iterator, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core.core_schema import ErrorType

from lbg_runtime.model.errors import BodyRefused
from lbg_runtime.model.nesting import MAX_NESTING, is_nested_too_deep
from lbg_runtime.runtime.handlers.aliases import stands_for

Decoder = Callable[[bytes], object]
"""Raises `BodyRefused`, which is terminal: a further attempt would not read it differently."""


class NoBody(ValueError):
    """No payload can be read as this; the text says why, if there is more to say."""


_JSON_CONTAINERS = (dict, list, dict[str, Any], dict[str, object], list[Any], list[object])
"""Read without pydantic: there is nothing to check inside."""

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
"""A number that may exceed 64 bits."""

_QUOTING = frozenset({"assertion_error", "bytes_invalid_encoding", "union_tag_invalid", "uuid_parsing", "value_error"})
"""Kinds of pydantic's problems whose text quotes the input, or comes from a validator of the user and may do so."""

_TOLD = frozenset(get_args(ErrorType)) - _QUOTING
"""Kinds of problems whose text is reported. Kinds that pydantic does not know come from validators of the user."""


def make_decoder(annotation: object) -> Decoder:
    """The decoder for an annotation; raises `NoBody` if there is none.

    `bytes` is the payload as it is, `str` its UTF-8 text, `dict` and `list` are JSON; everything else that pydantic has
    a schema for (models, dataclasses, typed dictionaries, unions, `list[Order]`) is JSON that fits it.
    """
    found = stands_for(annotation)
    if found is bytes:
        return _as_it_is
    if found is str:
        return _as_text
    if found in _JSON_CONTAINERS:
        return _as_container(get_origin(found) or found)
    if get_origin(found) in (Union, UnionType) and bytes in map(stands_for, get_args(found)):
        # As JSON, which has no bytes, hardly any payload would fit.
        raise NoBody("`bytes` alone, for the payload as it is, or a type that JSON can be read as")
    try:
        # By its name, as that may be part of what it stands for, which pydantic then finds where the name is.
        adapter: TypeAdapter[object] = TypeAdapter(annotation)  # type: ignore[arg-type]  # known at run time only
    except PydanticSchemaGenerationError:
        raise NoBody("") from None
    except PydanticUserError as error:
        raise NoBody(error.message) from None
    return _as_fitting(adapter, type_name(annotation))


def refuse_undefined(annotation: object) -> None:
    """Raise `NoBody` if a type in the annotation uses a name that is not defined.

    Call it when all modules are loaded: when `make_decoder` is called, the name may not be defined yet.
    """
    if stands_for(annotation) in (bytes, str, *_JSON_CONTAINERS):
        return
    adapter: TypeAdapter[object] = TypeAdapter(annotation)  # type: ignore[arg-type]  # known at run time only
    try:
        adapter.rebuild(raise_errors=True)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise NoBody(error.message) from None


def type_name(annotation: object) -> str:
    """The name of a type in messages to the user."""
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def _as_it_is(payload: bytes) -> object:
    return payload


def _as_text(payload: bytes) -> object:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise BodyRefused("str", f"no UTF-8 at byte {error.start}") from None


def _as_container(container: object) -> Decoder:
    name = type_name(container)

    def decode(payload: bytes) -> object:
        value = _parsed(payload, name)
        if type(value) is not container:
            raise BodyRefused(name, f"JSON of another type, {type(value).__name__}")
        return value

    return decode


def _as_fitting(adapter: TypeAdapter[object], name: str) -> Decoder:
    validate = adapter.validate_json
    names: set[str] = set()

    def decode(payload: bytes) -> object:
        try:
            return validate(payload)
        except ValidationError as error:
            # Not earlier: pydantic may have deferred building the schema.
            names.update(() if names else _names_in(adapter.core_schema))
            raise BodyRefused(name, _first_problem(error, names)) from None

    return decode


def _first_problem(error: ValidationError, names: Container[str]) -> str:
    # Without the input, which is the sender's and may be personal data; so may be the names and tags in it.
    problems = error.errors(include_url=False, include_input=False)
    first = problems[0]
    path = ".".join(str(step) if isinstance(step, int) or step in names else "*" for step in first["loc"])
    what = first["msg"] if first["type"] in _TOLD else f"not accepted ({first['type']})"
    if first["type"] == "union_tag_invalid":
        what = f"the tag is none of {first['ctx']['expected_tags']}"
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{path}: {what}{more}" if path else f"{what}{more}"


def _names_in(schema: object) -> Iterator[str]:
    """Every text in the schema: names of fields and types, aliases, tags. None of it comes from an input."""
    if isinstance(schema, str):
        yield schema
    elif isinstance(schema, type):
        yield schema.__name__
    elif isinstance(schema, Mapping):
        for name, value in schema.items():
            yield from _names_in(name)
            yield from _names_in(value)
    elif isinstance(schema, list | tuple):
        for each in schema:
            yield from _names_in(each)


def _parsed(payload: bytes, name: str) -> object:
    try:
        value: object = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise BodyRefused(name, f"no JSON at character {error.pos}") from None
    if _LONG_NUMBER.search(payload) is not None:
        text = payload.decode()
        # Checked only here, to save other texts a pass: orjson has a limit of its own.
        if is_nested_too_deep(text):
            raise BodyRefused(name, f"JSON that is nested more than {MAX_NESTING} levels deep")
        # This keeps whole numbers of any length; orjson makes floats of those beyond 64 bits, and an id loses digits.
        value = json.loads(text)
    return value
