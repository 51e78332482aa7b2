"""Decides which messages a queue takes."""

from lbg_runtime.broker.engine.answers import DiscardCounts
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import BrokerRefusal


class Intake:
    """Part of one queue; counts the messages that it could not take."""

    def __init__(self) -> None:
        self.counts = DiscardCounts()

    def count(self, refusal: BrokerRefusal) -> None:
        """Count a message that the queue did not take because of this, found by `refusal_of`."""
        match refusal.text:
            case "Queue Shutdown":
                self.counts.disabled += 1
            case "Document Is Too Large":
                self.counts.too_large += 1
            case _:
                self.counts.over_quota += 1


def refusal_of(message: Published, settings: QueueSettings, spooled_bytes: int) -> BrokerRefusal | None:
    """Why a queue that holds this much cannot take the message; None if it can."""
    if not settings.ingress_enabled:
        return BrokerRefusal(503, "Queue Shutdown")
    if message.size_bytes > settings.max_message_bytes:
        return BrokerRefusal(400, "Document Is Too Large")
    if spooled_bytes + message.size_bytes > settings.quota_bytes:
        return BrokerRefusal(503, "Spool Over Quota")
    return None
