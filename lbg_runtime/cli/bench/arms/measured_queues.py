"""Names and topics of the queues of `lbg bench broker`, shared by the broker and its clients.

A module of its own, as a client that also imported the broker would take five times as long to start.
"""

PAYLOAD_BYTES = 256


def topic_of(queue: int) -> str:
    """The topic to which only the queue with this number subscribes."""
    return f"bench/{queue}/orders"


def queue_name(queue: int) -> str:
    return f"bench/{queue}"
