"""Makes the AsyncAPI 3 document of an application: what its handlers take, by their annotations, from which topics."""

import re
from collections.abc import Iterable, Mapping
from itertools import chain, count
from typing import Any, Literal

from pydantic import TypeAdapter

from lbg_runtime.config.settings import GroupBackend, Settings
from lbg_runtime.model.keys import KeyOrigin
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY
from lbg_runtime.runtime.handlers.aliases import stands_for
from lbg_runtime.runtime.handlers.registry import Handler, Handlers

VERSION = "3.0.0"
"""The version of the specification."""

BINDING_VERSION = "0.4.0"
"""The version of the specification's binding for Solace."""

JsonObject = dict[str, Any]

_JSON, _TEXT, _BYTES = "application/json", "text/plain", "application/octet-stream"

_PLAIN_BODIES: Mapping[object, tuple[str, JsonObject]] = {
    bytes: (_BYTES, {"type": "string", "format": "binary"}),
    str: (_TEXT, {"type": "string"}),
    dict: (_JSON, {"type": "object"}),
    list: (_JSON, {"type": "array"}),
}
"""Annotations that say nothing about the payload but its kind."""


def asyncapi_document(handlers: Handlers, settings: Settings, *, version: str) -> JsonObject:
    """The whole document, as a JSON object. `version` is that of the application."""
    group = settings.group
    schemas, definitions = _schemas(handlers)
    channels: JsonObject = {}
    operations: JsonObject = {}
    for name, handler in _named(handlers).items():
        content_type, payload = _body_of(handler, schemas)
        address, parameters = _address(f"{group.hash_prefix}/{{shard}}/", handler.subscription)
        message: JsonObject = {"name": name, "contentType": content_type, "headers": _headers(settings)}
        if payload is not None:
            message["payload"] = payload
        channels[name] = {
            "address": address,
            "description": f"Topics that {handler.subscription!r} attracts, below the hash of their key.",
            "messages": {name: message},
            "parameters": {"shard": {"description": f"0 to {group.hash_count - 1}, by the key."}, **parameters},
        }
        operations[name] = {"action": "receive", "channel": {"$ref": f"#/channels/{name}"}, **_said(handler)}
        operations[name]["messages"] = [{"$ref": f"#/channels/{name}/messages/{name}"}]
        operations[name]["bindings"] = {"solace": _binding(settings)}
    document: JsonObject = {
        "asyncapi": VERSION,
        "info": {
            "title": group.name,
            "version": version,
            "description": f"What members of the load-balanced group {group.name} handle, in the order of each key.",
        },
        "defaultContentType": _JSON,
        "servers": _servers(settings),
        "channels": channels,
        "operations": operations,
    }
    if definitions:
        document["components"] = {"schemas": definitions}
    return document


def _named(handlers: Iterable[Handler]) -> dict[str, Handler]:
    """The handlers by unique names, of characters that references may contain."""
    found: dict[str, Handler] = {}
    for handler in handlers:
        function = handler.where.partition(" (")[0].rpartition(":")[2].rpartition(".")[2]
        name = re.sub(r"[^A-Za-z0-9_\-]", "_", function)
        names = chain((name,), (f"{name}_{number}" for number in count(2)))
        found[next(each for each in names if each not in found)] = handler
    return found


def _said(handler: Handler) -> JsonObject:
    """Title and text of the operation, from the function's docstring."""
    first, _, rest = handler.text.partition("\n")
    said = {"summary": first.strip(), "description": rest.strip()}
    if handler.publishes:
        said["description"] = f"{said['description']}\n\nPublishes messages in answer.".strip()
    return {name: text for name, text in said.items() if text}


def _address(prefix: str, subscription: str) -> tuple[str, JsonObject]:
    """The subscription as an address with parameters for its wildcards, and what they stand for."""
    levels: list[str] = []
    parameters: JsonObject = {}
    for number, level in enumerate(subscription.split("/")):
        if level == ">":
            levels.append("{rest}")
            parameters["rest"] = {"description": "One level or more."}
        elif level.endswith("*"):
            name = f"level{number}"
            # Braces in a topic would count as a parameter, as they cannot be quoted.
            levels.append(f"{level[:-1]}{{{name}}}")
            parameters[name] = {"description": "One level, or its end."}
        else:
            levels.append(level)
    return prefix + "/".join(levels), parameters


def _headers(settings: Settings) -> JsonObject:
    """User properties."""
    properties: JsonObject = {
        PUBLISHER_PROPERTY: {"type": "string", "description": "One life of one hashed publisher."},
        KEY_SEQUENCE_PROPERTY: {"type": "integer", "description": "Its number of the message within the key, from 1."},
    }
    key = settings.group.key
    name = key.argument if key.origin is KeyOrigin.PROPERTY else PARTITION_KEY_PROPERTY
    properties[name] = {"type": "string", "description": "The key, whose messages are handled in their order."}
    return {"type": "object", "properties": properties}


def _body_of(handler: Handler, schemas: Mapping[str, JsonObject]) -> tuple[str, JsonObject | None]:
    """Content type and schema of the payload; no schema if the handler does not say what it takes."""
    body = handler.parameters.body
    if body is None:
        return _BYTES, None
    plain = _plain(body)
    return plain if plain is not None else (_JSON, schemas[handler.subscription])


def _plain(body: object) -> tuple[str, JsonObject] | None:
    meant = stands_for(body)
    return next((found for kind, found in _PLAIN_BODIES.items() if meant is kind), None)


def _schemas(handlers: Iterable[Handler]) -> tuple[dict[str, JsonObject], JsonObject]:
    """The schema of the bodies by subscription, and the definitions they refer to; each name stands for one type."""
    Input = tuple[str, Literal["validation"], TypeAdapter[Any]]  # noqa: N806 - a type
    inputs: list[Input] = []
    for handler in handlers:
        body = handler.parameters.body
        if body is not None and _plain(body) is None:
            adapter: TypeAdapter[Any] = TypeAdapter(body)  # type: ignore[arg-type]  # known at run time only
            inputs.append((handler.subscription, "validation", adapter))
    if not inputs:
        return {}, {}
    made, shared = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    definitions = {name: _as_asyncapi(schema) for name, schema in shared.get("$defs", {}).items()}
    return {name: _as_asyncapi(schema) for (name, _), schema in made.items()}, definitions


_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs")
_VALUES = ("default", "examples", "const", "enum")


def _as_asyncapi(schema: Mapping[str, Any]) -> JsonObject:
    """The schema in AsyncAPI's dialect, which is nearly that of draft 7."""
    written: JsonObject = {}
    for name, value in schema.items():
        match name, value:
            case "discriminator", {"propertyName": tag}:
                written[name] = tag
            case "prefixItems", list():
                written["items"] = [_as_asyncapi(each) for each in value]
                written["additionalItems"] = False
            case "items", bool() if "prefixItems" in schema:
                pass  # said by `additionalItems`
            case _, dict() if name in _SCHEMAS_BY_NAME:
                written[name] = {each: _as_asyncapi(inner) for each, inner in value.items()}
            case _, dict() if name not in _VALUES:
                written[name] = _as_asyncapi(value)
            case _, list() if name not in _VALUES:
                written[name] = [_as_asyncapi(each) if isinstance(each, dict) else each for each in value]
            case _:
                written[name] = value
    return written


def _servers(settings: Settings) -> JsonObject:
    servers: JsonObject = {}
    for number, host in enumerate(settings.connection.host):
        scheme, _, address = host.rpartition("://")
        servers["broker" if not number else f"broker{number + 1}"] = {
            "host": address,
            "protocol": "solace",
            "description": f"Message VPN {settings.connection.vpn}"
            + (", over TLS." if scheme in ("tcps", "wss", "https") else "."),
            "bindings": {"solace": {"msgVpn": settings.connection.vpn, "bindingVersion": BINDING_VERSION}},
        }
    return servers


def _binding(settings: Settings) -> JsonObject:
    """Where the messages wait: the queues of the group, each with its shards, or its one partitioned queue."""
    shape = settings.group.shape()
    access = "exclusive" if settings.group.backend is GroupBackend.EXCLUSIVE else "nonexclusive"
    queues = [
        {
            "destinationType": "queue",
            "deliveryMode": "persistent",
            "queue": {
                "name": shape.queue_name(index),
                "topicSubscriptions": list(shape.subscriptions(index)),
                "accessType": access,
            },
        }
        for index in range(shape.queue_count)
    ]
    return {"destinations": queues, "bindingVersion": BINDING_VERSION}
