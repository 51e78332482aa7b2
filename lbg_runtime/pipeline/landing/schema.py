"""The row of the landing log, and the id that identifies copies of one message.

A row's id begins with the time at which the message was sent: 13 hexadecimal digits, milliseconds since the epoch, then
a dot. So ids sort by time, and the index of a segment can say in two numbers which ids a flush may hold.

Every copy of a message has the same id, whichever member lands it from whichever flow: for messages that our publisher
stamped, it is made of the time, the publisher, its number of the message within the key, and the key. Other publishers
stamp nothing that is certain to differ from message to message, even if they stamp a part of that. Their messages get
an id of the single delivery, so that no two rows are ever taken for copies of each other: nothing is lost, and what is
delivered twice is there twice.
"""

from pathlib import Path

import pyarrow as pa

from lbg_runtime.model.errors import LandingVersionUnknown

FORMAT = 1
"""Version of the folder, of segments and of their indices; raised with any change that an older reader would
misread."""

LANDING_SCHEMA = pa.schema(
    [
        pa.field("queue", pa.int32(), nullable=False, metadata={"doc": "index of the queue in the group"}),
        pa.field("shard", pa.int32(), metadata={"doc": "null for a topic that is none of the group's"}),
        pa.field("key", pa.string(), metadata={"doc": "by the rule of group.key; null where there is none"}),
        pa.field("topic", pa.string(), nullable=False, metadata={"doc": "in full, hash prefix and shard included"}),
        pa.field("seq", pa.int64(), metadata={"doc": "the publisher's number of the message within the key, from 1"}),
        pa.field("broker_id", pa.string(), nullable=False, metadata={"doc": "the same in every copy of a message"}),
        pa.field("redelivered", pa.bool_(), nullable=False),
        pa.field("t_enqueue", pa.timestamp("us", "UTC"), metadata={"doc": "when its sender sent it"}),
        pa.field("t_land", pa.timestamp("us", "UTC"), nullable=False, metadata={"doc": "when its flush began"}),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), metadata={"doc": "user properties, as text"}),
    ]
)

TIME_DIGITS = 13
"""Digits of the time that an id begins with."""

FOREIGN_MARK = "!"
"""Follows the dot in the id of a single delivery, as opposed to that of a message."""

LARGEST_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999: Python has no later time."""


def check_format(path: Path | str, found: object) -> None:
    """Raises `LandingVersionUnknown` for a file of another format."""
    if found != FORMAT:
        raise LandingVersionUnknown(
            str(path), f"format {found}", f"this version reads format {FORMAT}: use the one that wrote it"
        )


def may_have_copies(row_id: str) -> bool:
    """Whether another row may have the same id; False for those of a single delivery."""
    return row_id[TIME_DIGITS + 1 : TIME_DIGITS + 2] != FOREIGN_MARK


def time_of_id(row_id: str) -> int:
    """The time that an id begins with, milliseconds since the epoch; raises `ValueError` for what is not an id."""
    if row_id[TIME_DIGITS : TIME_DIGITS + 1] != ".":
        raise ValueError(f"{row_id[:40]!r} is no id of a landing row")
    return int(row_id[:TIME_DIGITS], 16)
