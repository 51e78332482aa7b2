"""Decides which messages a queue takes."""

from lbg_runtime.broker.engine.answers import DiscardCounts
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import BrokerRefusal


class Intake:
    """Part of one queue; counts the messages that it could not take."""

    def __init__(self) -> None:
        self.counts = DiscardCounts()

    def refusal_of(self, message: Published, settings: QueueSettings, spooled_bytes: int) -> BrokerRefusal | None:
        """Why a queue that holds this much cannot take the message, which is then counted; None if it can."""
        if not settings.ingress_enabled:
            self.counts.disabled += 1
            return BrokerRefusal(503, "Queue Shutdown")
        if message.size_bytes > settings.max_message_bytes:
            self.counts.too_large += 1
            return BrokerRefusal(400, "Document Is Too Large")
        if spooled_bytes + message.size_bytes > settings.quota_bytes:
            self.counts.over_quota += 1
            return BrokerRefusal(503, "Spool Over Quota")
        return None
