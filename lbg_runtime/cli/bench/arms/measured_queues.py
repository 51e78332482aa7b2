"""What the queues of `lbg bench broker` are called and get; the broker and its clients agree on it.

On its own, as a client that also imported the broker would take five times as long to start.
"""

PAYLOAD_BYTES = 256


def topic_of(queue: int) -> str:
    """What the queue of this number subscribes to, and nobody else."""
    return f"bench/{queue}/orders"


def queue_name(queue: int) -> str:
    """The queue of this number."""
    return f"bench/{queue}"
