"""Decides once whether spans are made: if not, nothing of OpenTelemetry is imported."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lbg_runtime.config.settings import Settings, Tracing
from lbg_runtime.model.errors import ConfigError

if TYPE_CHECKING:
    from lbg_runtime.metrics.spans import MessageSpans


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
    """The attributes that say where the broker is; none if there are several hosts, as the one in use is not known
    here."""
    if len(hosts) != 1:
        return {}
    address = urlsplit(hosts[0] if "://" in hosts[0] else f"//{hosts[0]}")
    try:
        name, port = address.hostname, address.port
    except ValueError:
        # There are several colons, and no brackets.
        return {}
    found: dict[str, str | int] = {} if name is None else {"server.address": name}
    return found if port is None else found | {"server.port": port}
