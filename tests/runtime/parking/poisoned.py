"""A group with one poisoned key and one parking queue, and what lies in that."""

import asyncio

from lbg_runtime.core.parking.records import ParkedMessage, decode_entry, parking_queue
from lbg_runtime.runtime.handlers.registry import Handlers


class Poisoned:
    """Handlers that refuse the first message of key a until it is mended."""

    def __init__(self):
        self.is_mended = False
        self.handlers = Handlers()
        self.handlers.handler("orders/>")(self._handle)

    async def _handle(self, message):
        await asyncio.sleep(0.01)
        if message.key == "a" and message.key_sequence == 1 and not self.is_mended:
            raise ValueError("poison")


def parking(group):
    return parking_queue(group.shape.name, 0)


def entries(group):
    return [decode_entry(message) for message in group.broker.left_on(parking(group))]


def parked(group):
    return [entry for entry in entries(group) if isinstance(entry, ParkedMessage)]
