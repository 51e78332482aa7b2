"""A queue's settings as clients wish them and are told of them."""

from dataclasses import replace

from lbg_runtime.broker.engine.settings import (
    BYTES_PER_MEGABYTE,
    LARGEST_MESSAGE_BYTES,
    LARGEST_QUOTA_MEGABYTES,
    AccessType,
    Permission,
    QueueSettings,
    RejectOnDiscard,
)
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.smf.endpoint import Endpoint, EndpointWishes

_BITS = {
    Permission.NO_ACCESS: 0,
    Permission.READ_ONLY: 0b1,
    Permission.CONSUME: 0b11,
    Permission.MODIFY_TOPIC: 0b111,
    Permission.DELETE: 0b1111,
}


def wished_settings(wishes: EndpointWishes, *, durable: bool) -> QueueSettings:
    """The settings of a queue that is made as its client wishes; the rest is as the broker has it.

    400 `Quota Out Of Range`, also for 0, which makes a last value queue elsewhere, and 400 `Message Size Out Of Range`.
    """
    settings = QueueSettings(
        access_type=AccessType.EXCLUSIVE if wishes.exclusive else AccessType.NON_EXCLUSIVE, durable=durable
    )
    if wishes.others_permissions is not None:
        settings = replace(settings, permission=_permission(wishes.others_permissions))
    elif not durable:
        settings = replace(settings, permission=Permission.NO_ACCESS)
    if wishes.quota_megabytes is not None:
        if not 0 < wishes.quota_megabytes <= LARGEST_QUOTA_MEGABYTES:
            raise BrokerRefusal(400, "Quota Out Of Range")
        settings = replace(settings, quota_bytes=wishes.quota_megabytes * BYTES_PER_MEGABYTE)
    if wishes.max_message_bytes is not None:
        if wishes.max_message_bytes > LARGEST_MESSAGE_BYTES:
            raise BrokerRefusal(400, "Message Size Out Of Range")
        settings = replace(settings, max_message_bytes=wishes.max_message_bytes)
    if wishes.respects_ttl is not None:
        settings = replace(settings, respect_time_to_live=wishes.respects_ttl)
    if wishes.tells_publishers is not None:
        tells = RejectOnDiscard.WHEN_QUEUE_ENABLED if wishes.tells_publishers else RejectOnDiscard.NEVER
        settings = replace(settings, reject_on_discard=tells)
    if wishes.max_redeliveries is not None:
        settings = replace(settings, max_redelivery_count=wishes.max_redeliveries)
    return settings


def told_of(queue: str, settings: QueueSettings, permission: Permission) -> Endpoint:
    """What a client that may do so much with a queue is told of it."""
    return Endpoint(
        queue,
        exclusive=settings.access_type is AccessType.EXCLUSIVE,
        permissions=_BITS[permission],
        others_permissions=_BITS[settings.permission],
        quota_megabytes=settings.quota_bytes // BYTES_PER_MEGABYTE,
        max_message_bytes=settings.max_message_bytes,
        respects_ttl=settings.respect_time_to_live,
    )


def _permission(bits: int) -> Permission:
    """The widest permission whose bits are all there."""
    return max((each for each in _BITS if _BITS[each] & ~bits == 0), key=_BITS.__getitem__)
