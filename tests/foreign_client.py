"""The official client as other applications use it, with nothing of ours."""

from typing import Any

from lbg_runtime.transport.solace.library import MessagingService, Queue, Topic
from lbg_runtime.transport.solace.settings import SolaceSettings
from tests.patience import PATIENCE_MS

Context = tuple[bytes, bytes, bool, str | None]
"""A trace context as the client's messages take and give it: trace id, span id, whether it is sampled, state."""


class ForeignClient:
    """One service. Its methods block; those that talk to the broker are called between `connect` and `disconnect`."""

    def __init__(self, host: str) -> None:
        settings = SolaceSettings(hosts=(host,), client_name="foreign")
        self.service: Any = MessagingService.builder().from_properties(settings.properties()).build()

    def message(
        self,
        creation: Context | None = None,
        transport: Context | None = None,
        properties: dict[str, str] | None = None,
        payload: bytes = b"x",
    ) -> Any:
        """A message with these contexts, set by its own methods."""
        message = self.service.message_builder().build(bytearray(payload), properties or {})
        if creation is not None:
            message.set_creation_trace_context(*creation)
        if transport is not None:
            message.set_transport_trace_context(*transport)
        return message

    def publish(self, topic: str, message: Any) -> None:
        """Return when the broker has it."""
        publisher = self.service.create_persistent_message_publisher_builder().build()
        publisher.start()
        publisher.publish_await_acknowledgement(message, Topic.of(topic), PATIENCE_MS)
        publisher.terminate()

    def take(self, queue: str, count: int = 1) -> Any:
        """The last of so many next messages of a queue, which are acknowledged; None if they do not come for long."""
        receiver = self.service.create_persistent_message_receiver_builder().build(Queue.durable_exclusive_queue(queue))
        receiver.start()
        for _ in range(count):
            message = receiver.receive_message(PATIENCE_MS)
            if message is not None:
                receiver.ack(message)
        receiver.terminate()
        return message
