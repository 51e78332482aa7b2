"""Chooses the kind of bind line for a queue's settings."""

from functools import partial

from lbg_runtime.broker.engine.lines.bind_line import BindLine, bind_line
from lbg_runtime.broker.engine.lines.group_line import GroupLine
from lbg_runtime.broker.engine.lines.message_groups import GroupOf
from lbg_runtime.broker.engine.lines.parted_line import PartedLine
from lbg_runtime.broker.engine.lines.partition_line import PartitionLine, partition_for
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.broker.engine.surroundings import Surroundings


def make_line(settings: QueueSettings, spool: Spool, surroundings: Surroundings) -> BindLine | PartedLine:
    """Make a line without flows; if it has parts, the messages in the spool belong to them from now on."""
    if settings.is_partitioned:
        part_of = partial(partition_for, count=settings.partition_count, surroundings=surroundings)
        return PartitionLine(spool, spool.divide(part_of), settings, surroundings)
    if settings.groups_messages:
        group_of = GroupOf(settings.grouping.buckets, surroundings)
        return GroupLine(spool, spool.divide(group_of), settings.grouping, surroundings)
    spool.undivide()
    return bind_line(settings.access_type)


def kind_of(settings: QueueSettings) -> tuple[object, ...]:
    """The settings that a queue's line depends on; if they change, flows cannot stay."""
    partitions = settings.partition_count if settings.is_partitioned else 0
    return settings.access_type, partitions, settings.grouping if settings.groups_messages else None
