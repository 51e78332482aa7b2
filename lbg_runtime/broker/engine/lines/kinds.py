"""Chooses the kind of bind line for a queue's settings."""

from lbg_runtime.broker.engine.lines.bind_line import BindLine, ExclusiveLine, RoundRobinLine
from lbg_runtime.broker.engine.lines.group_line import GroupLine
from lbg_runtime.broker.engine.lines.message_groups import by_group
from lbg_runtime.broker.engine.lines.parted_line import PartedLine
from lbg_runtime.broker.engine.lines.partition_line import PartitionLine, by_partition
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.broker.engine.surroundings import Surroundings


def make_line(settings: QueueSettings, spool: Spool, surroundings: Surroundings) -> BindLine | PartedLine:
    """Make a line without flows; if it has parts, the messages in the spool belong to them from now on."""
    if settings.is_partitioned:
        parts = spool.divide(by_partition(settings.partition_count, surroundings))
        return PartitionLine(spool, parts, settings, surroundings)
    if settings.groups_messages:
        parts = spool.divide(by_group(settings.grouping.buckets, surroundings))
        return GroupLine(spool, parts, settings.grouping, surroundings)
    spool.undivide()
    return ExclusiveLine() if settings.access_type is AccessType.EXCLUSIVE else RoundRobinLine()


def kind_of(settings: QueueSettings) -> tuple[object, ...]:
    """The settings that a queue's line depends on; if they change, flows cannot stay."""
    partitions = settings.partition_count if settings.is_partitioned else 0
    return settings.access_type, partitions, settings.grouping if settings.groups_messages else None
