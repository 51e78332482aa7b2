"""What becomes of a message whose attempts have ended: the choices, and the names by which a moved message says so."""

from enum import Enum

ERROR_TOPIC_PREFIX = "lbg-errors/"
"""The topic of a message that was moved to the error queue is this and the name of its group."""

QUEUE_ADDRESS_PREFIX = "#P2P/QUE/"
"""The topic of a message for one durable queue is this and the name of the queue."""

DEAD_MESSAGE_QUEUE = "#DEAD_MSG_QUEUE"
"""A broker's own queue for dead messages; its name is the only reserved one that users may give to a queue."""

ERROR_TOPIC_PROPERTY = "lbg_error_topic"
"""User property of a moved message, as are all below: the full topic that it had."""

ERROR_KEY_PROPERTY = "lbg_error_key"
"""The key in whose lane it was; missing if it had none."""

ERROR_ATTEMPTS_PROPERTY = "lbg_error_attempts"
"""The number of attempts made by the member that moved it."""

ERROR_PROPERTY = "lbg_error"
"""The last error: its type, and its text."""

ERROR_STACK_PROPERTY = "lbg_error_stack"
"""A digest that is the same for failures of the same type at the same place of the code, and that place."""

ERROR_QUEUE_PROPERTY = "lbg_error_queue"
"""The queue that it came from."""

ERROR_MEMBER_PROPERTY = "lbg_error_member"
"""The member that moved it."""

ERROR_PUBLISHER_PROPERTY = "lbg_error_publisher"
"""What its `lbg_publisher` was. A copy has no stamps: if it were published again with them, guards would take it for
handled."""

ERROR_KEY_SEQUENCE_PROPERTY = "lbg_error_key_sequence"
"""What its `lbg_key_sequence` was."""


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
