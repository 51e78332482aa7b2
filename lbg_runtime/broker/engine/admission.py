"""Decides who may bind to a queue."""

from lbg_runtime.broker.engine.answers import BindCounts
from lbg_runtime.broker.engine.settings import Permission, QueueSettings
from lbg_runtime.model.errors import BrokerRefusal


class Admission:
    """Part of one queue; counts how binds ended."""

    def __init__(self) -> None:
        self.counts = BindCounts()

    def check(self, settings: QueueSettings, username: str, *, browser: bool, bound_count: int) -> None:
        """Count a bind, and refuse it: 403 `Permission Not Allowed`, 503 `Queue Shutdown`, 503 `Max clients exceeded
        for queue`."""
        self.counts.requested += 1
        if not allows(settings, username, Permission.READ_ONLY if browser else Permission.CONSUME):
            self.counts.other += 1
            raise BrokerRefusal(403, "Permission Not Allowed")
        if not settings.egress_enabled:
            self.counts.disabled += 1
            raise BrokerRefusal(503, "Queue Shutdown")
        if not browser and bound_count >= settings.max_bind_count:
            self.counts.max_exceeded += 1
            raise BrokerRefusal(503, "Max clients exceeded for queue")
        self.counts.succeeded += 1

    def take_back(self) -> None:
        """Take back an admission: the bind was refused for another reason."""
        self.counts.succeeded -= 1
        self.counts.other += 1


def granted(settings: QueueSettings, username: str) -> Permission:
    """What a client username may do with a queue."""
    return Permission.DELETE if settings.owner == username else settings.permission


def allows(settings: QueueSettings, username: str, wanted: Permission) -> bool:
    """Whether a client username may do this with a queue."""
    return granted(settings, username).includes(wanted)
