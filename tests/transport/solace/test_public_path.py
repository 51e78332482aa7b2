"""What the public path shows of what the client's dispatching thread brings; on a client that only brings it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.transport.solace import public_path
from lbg_runtime.transport.solace.inbound import UnreadableMessage
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.public_path import PublicPath


class Owner:
    """In place of the flow, which still takes what arrives: it waits for settlements."""

    queue, epoch = QueueName("q"), Epoch(1)

    def __init__(self) -> None:
        self.told: list[object] = []

    def arrived(self, delivery: Delivery) -> None:
        self.told.append(delivery.delivery_id)

    def refuse(self, error: UnreadableMessage) -> None:
        self.told.append(error.reason)

    def give_up(self, reason: str) -> None:
        self.told.append(reason)


def read_or_refuse(queue: QueueName, epoch: Epoch, message: int, _: object) -> Delivery:
    if message == 2:
        raise UnreadableMessage("for a test", DeliveryId(message))
    if message == 3:
        raise ZeroDivisionError
    return Delivery(queue, epoch, DeliveryId(message), Message("t", b""), False, 0)


@pytest.mark.parametrize(("bad", "reason"), [(2, "for a test"), (3, "a message could not be read")])
async def test_nothing_is_shown_behind_a_message_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, bad: int, reason: str
) -> None:
    monkeypatch.setattr(public_path, "read_delivery", read_or_refuse)
    owner, listeners = Owner(), list[Any]()
    PublicPath(Inbox(asyncio.get_running_loop()), owner).begin(SimpleNamespace(receive_async=listeners.append))
    [listener] = listeners
    for message in (1, bad, 4, 5):
        try:
            listener.on_message(message)
        except ZeroDivisionError:
            # The client logs it, and goes on.
            assert message == bad
    await asyncio.sleep(0)
    assert owner.told == [1, reason]
