"""Ordered, elastic consumption on Solace PubSub+: an asyncio runtime for load-balanced groups.

The names below are loaded when they are first used, so that importing a pure room (`lbg_runtime.model`
on a Spark executor, say) pulls in neither an event loop nor the official client.
"""

from importlib import import_module

# Not imported from `typing`, as that takes longer than all our imports before the point from which an interrupt no
# longer ends in a traceback. Type checkers go by the name alone; Jedi, which completes in IPython and many editors,
# goes by the value, unless its type is given.
TYPE_CHECKING: bool = False
if TYPE_CHECKING:
    from lbg_runtime.model.errors import TerminalFailure
    from lbg_runtime.model.message import Delivery, Headers, Message
    from lbg_runtime.publishing import open_publisher
    from lbg_runtime.runtime.app import App
    from lbg_runtime.runtime.handlers.batches import Batch, BatchItem
    from lbg_runtime.runtime.handlers.middleware import Proceed
    from lbg_runtime.runtime.handlers.parameters import State
    from lbg_runtime.runtime.handlers.receipts import Receipt
    from lbg_runtime.runtime.handlers.registry import Handlers

    __version__: str

__all__ = [
    "App",
    "Handlers",
    "Message",
    "Headers",
    "Delivery",
    "State",
    "Receipt",
    "Batch",
    "BatchItem",
    "Proceed",
    "TerminalFailure",
    "open_publisher",
]

_HOMES = {
    "App": "lbg_runtime.runtime.app",
    "Batch": "lbg_runtime.runtime.handlers.batches",
    "BatchItem": "lbg_runtime.runtime.handlers.batches",
    "Delivery": "lbg_runtime.model.message",
    "Headers": "lbg_runtime.model.message",
    "Handlers": "lbg_runtime.runtime.handlers.registry",
    "Message": "lbg_runtime.model.message",
    "Proceed": "lbg_runtime.runtime.handlers.middleware",
    "Receipt": "lbg_runtime.runtime.handlers.receipts",
    "State": "lbg_runtime.runtime.handlers.parameters",
    "TerminalFailure": "lbg_runtime.model.errors",
    "open_publisher": "lbg_runtime.publishing",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":
        from lbg_runtime.model.version import VERSION

        return VERSION
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # For completion in a shell: names that have not been used yet are not among the globals.
    return sorted({*globals(), *__all__})
