"""Ordered, elastic consumption on Solace PubSub+: an asyncio runtime for load-balanced groups.

The names below are loaded when they are first used, so that importing a pure room (`lbg_runtime.model`
on a Spark executor, say) pulls in neither an event loop nor the official client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lbg_runtime.model.message import Message
    from lbg_runtime.runtime.app import App
    from lbg_runtime.runtime.registry import Handlers

__all__ = ["App", "Handlers", "Message"]

_HOMES = {
    "App": "lbg_runtime.runtime.app",
    "Handlers": "lbg_runtime.runtime.registry",
    "Message": "lbg_runtime.model.message",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
