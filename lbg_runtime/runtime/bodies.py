"""From a payload to what a handler's annotation says."""

from collections.abc import Callable
from typing import Any, get_origin

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from lbg_runtime.model.errors import BodyRefused

Decoder = Callable[[bytes], object]
"""Raises `BodyRefused`, which is terminal: no further attempt would read it in another way."""


class NoBody(ValueError):
    """No payload can be read as this; the text says why, where there is more to say than that."""


_JSON_CONTAINERS = (dict, list, dict[str, Any], dict[str, object], list[Any], list[object])
"""Read by orjson alone: there is nothing to be checked within."""


def make_decoder(annotation: object) -> Decoder:
    """The decoder for an annotation; raises `NoBody` where there is none for it.

    `bytes` is the payload as it is, `str` its UTF-8 text, `dict` and `list` are JSON; everything else that pydantic has
    a schema for (models, dataclasses, typed dictionaries, unions, `list[Order]`) is JSON that fits it.
    """
    if annotation is bytes:
        return _as_it_is
    if annotation is str:
        return _as_text
    if annotation in _JSON_CONTAINERS:
        return _as_container(get_origin(annotation) or annotation)
    try:
        adapter: TypeAdapter[object] = TypeAdapter(annotation)  # type: ignore[arg-type]  # known at run time only
    except PydanticSchemaGenerationError:
        raise NoBody("") from None
    except PydanticUserError as error:
        raise NoBody(error.message) from None
    return _as_fitting(adapter, type_name(annotation))


def type_name(annotation: object) -> str:
    """What messages to the user call a type."""
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

    def decode(payload: bytes) -> object:
        try:
            return validate(payload)
        except ValidationError as error:
            raise BodyRefused(name, _first_problem(error)) from None

    return decode


def _first_problem(error: ValidationError) -> str:
    # Without the input, which is the sender's and perhaps a person's.
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    path = ".".join(str(step) for step in problems[0]["loc"])
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{path}: {problems[0]['msg']}{more}" if path else f"{problems[0]['msg']}{more}"


def _parsed(payload: bytes, name: str) -> object:
    try:
        value: object = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise BodyRefused(name, f"no JSON at character {error.pos}") from None
    return value
