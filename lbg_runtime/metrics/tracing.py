"""Decides once whether spans are made: if not, nothing of OpenTelemetry is imported."""

from typing import TYPE_CHECKING

from lbg_runtime.config.settings import Settings, Tracing
from lbg_runtime.model.errors import ConfigError

if TYPE_CHECKING:
    from lbg_runtime.metrics.spans import MessageSpans


def open_spans(settings: Settings) -> "MessageSpans | None":
    """The object that makes the spans that the settings ask for; None if they ask for none.

    Raises `ConfigError` if OpenTelemetry is not installed.
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
    return MessageSpans(settings.group.shape(), has_keys=tracing is Tracing.SPANS_WITH_KEYS)
