"""The shape of a load-balanced group: which shard is in which queue, and how topics are built."""

from dataclasses import dataclass

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.ids import GroupName, QueueName
from lbg_runtime.model.whole import whole_number

LARGEST_HASH_COUNT = 100_000
"""Limit on the number of shards: each is a subscription of its queue, and these are added one by one."""
LARGEST_QUEUE_NAME = 200
"""The most characters that a broker takes in the name of a queue."""
NOT_IN_QUEUE_NAMES = "*>?'<&;"
"""Characters that a broker does not take in the name of a durable queue."""


@dataclass(frozen=True, slots=True)
class GroupShape:
    """The numbers that publishers, members and admins of one group must agree on.

    Source: "sticky load balancing" as Solace describes it: topic `<hash prefix>/<shard>/<topic>`, queue `<group>/<n>`
    subscribes to every shard s with s mod queue count = n.
    Raises `UserError` if hash count < queue count, and for names that a broker refuses or takes for something else.
    """

    name: GroupName
    hash_prefix: str
    hash_count: int
    queue_count: int

    def __post_init__(self) -> None:
        if (expected := queue_name_fault(self.name)) is not None:
            raise UserError("group.name", repr(self.name), expected)
        if " " in self.name:
            raise UserError("group.name", repr(self.name), "no spaces, as `lbg group` makes a JNDI name of it")
        if not self.hash_prefix.isprintable():
            raise UserError("group.hash_prefix", repr(self.hash_prefix), "printable characters")
        if not self.hash_prefix or "/" in self.hash_prefix or any(c in self.hash_prefix for c in "*>"):
            raise UserError("group.hash_prefix", repr(self.hash_prefix), "one topic level without wildcards")
        if is_reserved(self.hash_prefix):
            # `#share/0/>` would be a shared subscription to everything, and `!h/0/>` an exception.
            expected = "a first character other than # and !, which are reserved by the broker"
            raise UserError("group.hash_prefix", repr(self.hash_prefix), expected)
        if self.queue_count < 1:
            raise UserError("group.queue_count", str(self.queue_count), "at least 1")
        if self.hash_count < self.queue_count:
            raise UserError(
                "group.hash_count",
                f"{self.hash_count} shards for {self.queue_count} queues",
                "hash count >= queue count, or some queues stay empty",
            )
        if self.hash_count > LARGEST_HASH_COUNT:
            raise UserError("group.hash_count", str(self.hash_count), f"at most {LARGEST_HASH_COUNT}")

    @property
    def is_even(self) -> bool:
        """Whether every queue has the same number of shards."""
        return self.hash_count % self.queue_count == 0

    def queue_name(self, index: int) -> QueueName:
        """Name of queue `index`, in every layout that has it."""
        return QueueName(f"{self.name}/{index}")

    def queue_names(self) -> tuple[QueueName, ...]:
        """Names of all queues, by index."""
        return tuple(self.queue_name(index) for index in range(self.queue_count))

    def queue_index_of_shard(self, shard: int) -> int:
        """Index of the queue whose stripe holds `shard`."""
        return shard % self.queue_count

    def shards_of_queue(self, index: int) -> range:
        """The stripe of queue `index`."""
        return range(index, self.hash_count, self.queue_count)

    def subscriptions(self, index: int) -> tuple[str, ...]:
        """Topic subscriptions of queue `index`, one per shard of its stripe."""
        return tuple(self.subscription(shard) for shard in self.shards_of_queue(index))

    def subscription(self, shard: int) -> str:
        """The topic that a queue subscribes to for one of its shards."""
        return f"{self.hash_prefix}/{shard}/>"

    def hashed_topic(self, shard: int, topic: str) -> str:
        """The topic that a publisher uses for `topic` if the key hashes to `shard`."""
        return f"{self.hash_prefix}/{shard}/{topic}"

    def split_topic(self, hashed: str) -> tuple[int, str] | None:
        """Shard and original topic of a hashed topic, or None if it is not one of this group."""
        prefix, _, rest = hashed.partition("/")
        shard, _, topic = rest.partition("/")
        number = whole_number(shard, 19) if topic and prefix == self.hash_prefix else None
        # Only as a publisher writes it: no leading zero.
        if number is None or number >= self.hash_count or str(number) != shard:
            return None
        return number, topic


def queue_index(group: str, queue: str) -> int | None:
    """The index of a queue that is named as `GroupShape.queue_name` does; None for any other queue."""
    start, _, index = queue.rpartition("/")
    number = whole_number(index, 9) if start == group else None
    # Only as `queue_name` writes it.
    return number if str(number) == index else None


def queue_name_fault(name: str) -> str | None:
    """What the name of a queue, or its beginning, should have been, if a broker refuses it; None if it is right.

    Does not look at its length.
    """
    if not name or any(letter in name for letter in NOT_IN_QUEUE_NAMES):
        return f"a queue name without any of {' '.join(NOT_IN_QUEUE_NAMES)}"
    if "" in name.split("/"):
        return "levels that are not empty, as a broker asks of queue names"
    if name.startswith("#"):
        return "a first character other than #, which is reserved by the broker"
    return None if name.isprintable() else "printable characters"


def is_reserved(topic: str) -> bool:
    """Whether the topic begins with something special to a broker: a shared subscription, an inbox, an exception."""
    return topic.startswith(("#", "!"))
