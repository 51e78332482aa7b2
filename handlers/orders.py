"""What a handler looks like: the orders of one key are handled one after another, those of other keys meanwhile."""

import structlog

from lbg_runtime import Handlers, Message

handlers = Handlers()
_log = structlog.get_logger(__name__)


@handlers.handler("orders/>")
async def on_order(message: Message) -> None:
    """Return, and the message is settled; raise, and it is tried again while its key waits."""
    _log.info("order_handled", topic=message.topic, key=message.key, number=message.key_sequence)
