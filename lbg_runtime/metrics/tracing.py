"""Decides once whether spans are made: if not, nothing of OpenTelemetry is imported."""

import re
from typing import TYPE_CHECKING

from lbg_runtime.config.settings import Settings, Tracing
from lbg_runtime.model.errors import ConfigError

if TYPE_CHECKING:
    from lbg_runtime.metrics.spans import MessageSpans


_ADDRESS = re.compile(r"(?:\w+://)?(?:\[(?P<number>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[0-9]+))?")


def open_spans(settings: Settings, client_id: str) -> "MessageSpans | None":
    """The object that makes the spans that the settings ask for; None if they ask for none.

    `client_id`: the client's name on the broker. Raises `ConfigError` if OpenTelemetry is not installed.
    """
    tracing = settings.ops.tracing
    if tracing is Tracing.OFF:
        return None
    try:
        from lbg_runtime.metrics.spans import MessageSpans
    except ImportError as error:
        raise ConfigError(
            "ops.tracing", f"{tracing.value}, and {error.name} is not installed", "pip install 'lbg-runtime[otel]'"
        ) from None
    client: dict[str, str | int] = {"messaging.client.id": client_id, **_server(settings.connection.host)}
    return MessageSpans(settings.group.shape(), has_keys=tracing is Tracing.SPANS_WITH_KEYS, client=client)


def _server(hosts: tuple[str, ...]) -> dict[str, str | int]:
    """Where the broker is; of several hosts, nobody here knows which one it is."""
    address = _ADDRESS.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if address is None:
        return {}
    found: dict[str, str | int] = {"server.address": address["number"] or address["name"]}
    return found if address["port"] is None else found | {"server.port": int(address["port"])}
