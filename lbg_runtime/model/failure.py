"""What becomes of a message whose attempts have ended."""

from enum import Enum

ERROR_TOPIC_PREFIX = "lbg-errors/"
"""Topics of messages that were moved away: this, and the name of their group."""

QUEUE_ADDRESS_PREFIX = "#P2P/QUE/"
"""Topic of a message for one durable queue: this, and the name of the queue."""

DEAD_MESSAGE_QUEUE = "#DEAD_MSG_QUEUE"
"""A broker's own queue for dead messages, and the one reserved name that others may give to a queue."""

ERROR_TOPIC_PROPERTY = "lbg_error_topic"
"""User property of a moved message: its full topic before."""

ERROR_KEY_PROPERTY = "lbg_error_key"
"""The key in whose lane it was; missing where it had none."""

ERROR_ATTEMPTS_PROPERTY = "lbg_error_attempts"
"""Attempts of the member that moved it."""

ERROR_PROPERTY = "lbg_error"
"""The last error: its type, and its text."""

ERROR_STACK_PROPERTY = "lbg_error_stack"
"""A digest, the same for failures of the same type at the same place of the code, and that place."""

ERROR_QUEUE_PROPERTY = "lbg_error_queue"
"""The queue that it came from."""

ERROR_MEMBER_PROPERTY = "lbg_error_member"
"""The member that moved it."""

ERROR_PUBLISHER_PROPERTY = "lbg_error_publisher"
"""What was its `lbg_publisher`. A copy has no stamps: published again with them, guards would take it for handled."""

ERROR_KEY_SEQUENCE_PROPERTY = "lbg_error_key_sequence"
"""What was its `lbg_key_sequence`."""


class Then(Enum):
    """The ends that a user can choose; the values are what settings and decorators say."""

    ERROR_QUEUE = "error_queue"
    """The message is published to the error queue, and accepted once the broker has confirmed that."""
    DMQ = "dmq"
    """The message is published to the dead message queue itself, and accepted once the broker has confirmed that."""
    PARK = "park"
    """The message and all later ones of its key go to the parking queue, in order, until somebody has them replayed."""
    STOP = "stop"
    """The message stays where it is, and the member that has its queue starts nothing more of it."""
