"""How to test a program that uses the official client: a broker on a port, sockets, real time."""

from solace.messaging.messaging_service import MessagingService
from solace.messaging.resources.queue import Queue
from solace.messaging.resources.topic import Topic

from lbg_runtime.testing import BrokerOnPort


def test_a_receiver_goes_on_after_the_broker_was_away(lbg_broker: BrokerOnPort) -> None:
    lbg_broker.create_queue("invoices", "invoices/>")
    service = MessagingService.builder().from_properties(lbg_broker.client_properties()).build()
    service.connect()
    try:
        publisher = service.create_persistent_message_publisher_builder().build().start()
        queue = Queue.durable_exclusive_queue("invoices")
        receiver = service.create_persistent_message_receiver_builder().build(queue)
        receiver.start()
        lbg_broker.fail()
        lbg_broker.restore()
        lbg_broker.wait_until("invoices", lambda status: len(status.flows) == 1)
        publisher.publish_await_acknowledgement("an invoice", Topic.of("invoices/new"), 5_000)
        message = receiver.receive_message(10_000)
        assert message is not None
        assert message.get_payload_as_string() == "an invoice"
        receiver.ack(message)
        lbg_broker.wait_until("invoices", lambda status: status.depth == 0)
    finally:
        service.disconnect()
