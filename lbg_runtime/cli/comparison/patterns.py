"""The patterns: what each creates on the broker, and what its members are."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from lbg_runtime.broker.engine.settings import AccessType, Grouping, QueueSettings
from lbg_runtime.cli.comparison.members import DirectMember, Member, QueueMember, RuntimeMember, Watch
from lbg_runtime.cli.comparison.stages import Stage
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName

QUEUES = 8
"""Queues of the group; the partitioned queue has as many partitions."""

SHAPE = GroupShape(GroupName("compare"), "compare-hash", hash_count=64, queue_count=QUEUES)

TOPIC = "orders"
"""A message's topic ends in this and its key, so that a sticky share can be told where the key is."""

REBALANCE_DELAY_MS = 1_000
MAX_HANDOFF_MS = 3_000

_EVERYTHING = f"{SHAPE.hash_prefix}/>"
_KEY_LEVEL = 3

_GROUP_SECTIONS: dict[str, dict[str, object]] = {
    "group": asdict(SHAPE),
    "membership": {"heartbeat": "200ms", "settle": f"{REBALANCE_DELAY_MS}ms"},
    "rebind": {"min_tenure": "500ms", "drain_timeout": "5s"},
}

MakeMember = Callable[[str, Stage, Watch], Member]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way to spread a keyed stream."""

    name: str
    prepare: Callable[[Stage], None]
    make_member: MakeMember
    keeps_messages: bool = True
    """Whether a message waits until a member takes it, so that none may be lost."""


def _shared_queue(name: str, settings: QueueSettings) -> tuple[Callable[[Stage], None], MakeMember]:
    def prepare(stage: Stage) -> None:
        stage.create_queue(name, [_EVERYTHING], settings)

    def make(member: str, stage: Stage, watch: Watch) -> Member:
        return QueueMember(member, stage.make_session(member), watch, name)

    return prepare, make


def _exclusive_queues(stage: Stage) -> None:
    for index, name in enumerate(SHAPE.queue_names()):
        stage.create_queue(name, SHAPE.subscriptions(index), QueueSettings())


def _runtime_member(name: str, stage: Stage, watch: Watch) -> Member:
    return RuntimeMember(name, stage.make_session(name), watch, _GROUP_SECTIONS)


def _sticky_member(name: str, stage: Stage, watch: Watch) -> Member:
    return DirectMember(name, stage.make_session(name), watch, f"#share/by_key:{_KEY_LEVEL}:1/{_EVERYTHING}")


def _nothing(_: Stage) -> None:
    """A subscription needs nothing on the broker."""


_PARTITIONED = QueueSettings(
    AccessType.NON_EXCLUSIVE,
    partition_count=QUEUES,
    partition_rebalance_delay_ms=REBALANCE_DELAY_MS,
    partition_max_handoff_ms=MAX_HANDOFF_MS,
)

PATTERNS = (
    Pattern("round robin", *_shared_queue("shared", QueueSettings(AccessType.NON_EXCLUSIVE))),
    Pattern("exclusive queues", _exclusive_queues, _runtime_member),
    Pattern("partitioned queue", *_shared_queue("partitioned", _PARTITIONED)),
    Pattern(
        "message groups",
        *_shared_queue("grouped", QueueSettings(AccessType.NON_EXCLUSIVE, grouping=Grouping(is_enabled=True))),
    ),
    Pattern("sticky shares", _nothing, _sticky_member, keeps_messages=False),
)
