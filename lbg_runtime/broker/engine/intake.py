"""Decides which messages a queue takes."""

from enum import Enum

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import BrokerRefusal


class Obstacle(Enum):
    """Why a queue does not take a message: code and text of the refusal."""

    SHUT = (503, "Queue Shutdown")
    TOO_LARGE = (400, "Document Is Too Large")
    OVER_QUOTA = (503, "Spool Over Quota")

    def refusal(self) -> BrokerRefusal:
        """What its publisher is told."""
        return BrokerRefusal(*self.value)


def obstacle_to(message: Published, settings: QueueSettings, spooled_bytes: int) -> Obstacle | None:
    """Why a queue that holds this much cannot take the message; None if it can."""
    if not settings.ingress_enabled:
        return Obstacle.SHUT
    if message.size_bytes > settings.max_message_bytes:
        return Obstacle.TOO_LARGE
    if spooled_bytes + message.size_bytes > settings.quota_bytes:
        return Obstacle.OVER_QUOTA
    return None
