"""What a handler looks like: orders of one customer are handled one after another, those of others meanwhile."""

import json

import structlog

from lbg_runtime import Handlers, Message

handlers = Handlers()
_log = structlog.get_logger(__name__)


@handlers.handler("orders/>")
async def on_order(message: Message) -> None:
    """Return to settle the message; raise to have it tried again, while its key waits."""
    order = json.loads(message.payload or b"{}")
    _log.info("order_handled", topic=message.topic, key=message.key, fields=len(order))
