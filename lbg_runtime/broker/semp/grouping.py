"""Message groups of a queue as attributes. PubSub+ has none, so the names are ours and begin with what they are."""

from typing import cast

from lbg_runtime.broker.engine.settings import Grouping
from lbg_runtime.broker.semp.schema import Attribute, Flag, Number, Row, Text

GROUPING_QUEUE_ATTRIBUTES: tuple[Attribute, ...] = (
    Flag("messageGroupsEnabled"),
    Number("messageGroupsBucketCount", 0, 0, 1_000_000),
    Number("messageGroupsTimeout", 0, 0, 2**32 - 1),
    Flag("messageGroupsRebalanceEnabled"),
    Flag("messageGroupsRebalancePauseEnabled"),
    Text("messageGroupsFirstProperty", "", 255),
)
"""0 buckets: each group by itself; the timeout is in seconds, 0 for never."""


def grouping_row(grouping: Grouping) -> Row:
    """A queue's grouping as attributes."""
    return {
        "messageGroupsEnabled": grouping.is_enabled,
        "messageGroupsBucketCount": grouping.buckets or 0,
        "messageGroupsTimeout": (grouping.timeout_ms or 0) // 1_000,
        "messageGroupsRebalanceEnabled": grouping.rebalances,
        "messageGroupsRebalancePauseEnabled": grouping.pauses,
        "messageGroupsFirstProperty": grouping.first_property or "",
    }


def changed_grouping(grouping: Grouping, row: Row) -> Grouping:
    """The grouping given by a row; precision that the row lacks is kept from `grouping`."""
    if all(row[name] == value for name, value in grouping_row(grouping).items()):
        return grouping
    return Grouping(
        is_enabled=cast(bool, row["messageGroupsEnabled"]),
        buckets=cast(int, row["messageGroupsBucketCount"]) or None,
        timeout_ms=cast(int, row["messageGroupsTimeout"]) * 1_000 or None,
        rebalances=cast(bool, row["messageGroupsRebalanceEnabled"]),
        pauses=cast(bool, row["messageGroupsRebalancePauseEnabled"]),
        first_property=cast(str, row["messageGroupsFirstProperty"]) or None,
    )
