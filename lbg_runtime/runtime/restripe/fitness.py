"""Checks for a restriper whether a group and its queues can carry a re-striping; no function changes anything."""

from dataclasses import replace

from lbg_runtime.admin.queues import SMALL_MESSAGE_BYTES, QueueAdmin
from lbg_runtime.config.broker_names import LARGEST_QUEUE_NAME_BYTES
from lbg_runtime.config.settings import GroupBackend, Provision, RebindMode, Settings
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.parking.records import SHOWN_UNSETTLED, parking_queue
from lbg_runtime.core.restripe.layout import SeenQueues, ensure_target
from lbg_runtime.core.restripe.records import StripePlan, record_topic
from lbg_runtime.model.errors import ConfigError, PublishRefused, SempError, UserError
from lbg_runtime.model.failure import Then
from lbg_runtime.model.group import LARGEST_QUEUE_NAME, GroupShape
from lbg_runtime.model.topic import LARGEST_TOPIC_BYTES

_BESIDE_MARKERS = 3
"""How many unsettled messages a queue must show besides its markers: plan, finish and, to go on at all, one message."""

MOST_MOVES = SHOWN_UNSETTLED - _BESIDE_MARKERS
"""How many shards may move in one re-striping. Every heartbeat lists the shards that have left their queues; if it were
too large, it would not be sent, members would take each other for dead, and no further shard could leave. And all the
markers may be in one queue, which shows no more unsettled messages than any new queue does."""


def insist_on_fit_settings(settings: Settings) -> None:
    """Raise `ConfigError` if the settings do not allow a re-striping."""
    group = settings.group
    if group.backend is not GroupBackend.EXCLUSIVE:
        expected = "exclusive: how many partitions a partitioned queue has is a setting of the queue"
        raise ConfigError("group.backend", group.backend.value, expected)
    if settings.rebind.mode is not RebindMode.COOPERATIVE:
        expected = "cooperative: other members do not talk to each other"
        raise ConfigError("rebind.mode", settings.rebind.mode.value, expected)
    if group.provision is not Provision.NONE:
        expected = "none: a member that makes queues by old settings would make the old layout again"
        raise ConfigError("group.provision", group.provision.value, expected)


def insist_on_fit_names(shape: GroupShape, queue_count: int) -> None:
    """Raise `UserError` if broker or client would refuse the name of the last of so many queues: the re-striping could
    not end."""
    name = shape.queue_name(queue_count - 1)
    for length, most, what in (
        (len(name), LARGEST_QUEUE_NAME, "characters"),
        (len(name.encode()), LARGEST_QUEUE_NAME_BYTES, "bytes"),
    ):
        if length > most:
            found = f"{queue_count}, with which the name of the last queue has {length} {what}"
            expected = f"names of at most {most}: fewer queues, or a new group with a shorter name"
            raise UserError("--queues", found, expected)


def insist_on_fit_topic(plan: StripePlan, control_topic: str) -> None:
    """Raise `ConfigError` if the topic of the plan's records, below the control topic, would be too long for a
    broker."""
    size = len(control_topic.encode())
    if (over := len(record_topic(control_topic, plan).encode()) - LARGEST_TOPIC_BYTES) > 0:
        expected = f"at most {size - over}, as the topic of a re-striping's records is below it, and no longer than"
        raise ConfigError("group.control_topic", f"{size} bytes", f"{expected} {LARGEST_TOPIC_BYTES}")


def insist_on_few_moves(plan: StripePlan, shape: GroupShape) -> None:
    """Raise `UserError` if more shards move than members can tell each other of."""
    moves = len(plan.moving(shape.hash_count))
    if moves > MOST_MOVES:
        found = f"{plan.to_count} instead of {plan.from_count}, so that {moves} of {shape.hash_count} shards move"
        raise UserError("--queues", found, f"a number for which at most {MOST_MOVES} do, or a new group")


async def look_again(queues: QueueAdmin, seen: SeenQueues, queue_count: int) -> SeenQueues:
    """The queues with the group's names that exist now. Looks for as many of the first ones as `queue_count`, the
    settings or `seen` have, whichever is most, and for those that follow these without a gap. The last ones may be
    somebody else's: only their subscriptions say how many queues the group has."""
    count = max(queue_count, seen.shape.queue_count, *(index + 1 for index in seen.subscriptions))
    index, read = 0, dict[int, frozenset[str]]()
    while True:
        found = await queues.subscriptions(seen.shape.queue_name(index))
        if found is None and index >= count:
            return replace(seen, subscriptions=read)
        if found is not None:
            read[index] = found
        index += 1


async def insist_on_target(queues: QueueAdmin, settings: Settings, queue_count: int) -> None:
    """Raise `UserError` if the group is being brought to another number of queues, perhaps by somebody at this
    moment."""
    unseen = SeenQueues(settings.group.shape(), settings.group.control_topic_name, {})
    seen = await look_again(queues, unseen, queue_count)
    if plans := seen.plans() - seen.leftover_plans(queue_count):
        ensure_target(max(plans, key=lambda plan: plan.generation), queue_count)


async def insist_on_fit_queues(queues: QueueAdmin, plan: StripePlan, seen: SeenQueues) -> None:
    """Raise `QueueUnfit` if a queue could silently miss a record, so that it would leave copies to another queue which
    leaves them to it; or if it shows too few unsettled messages: its records are settled last, and what follows them
    would never be shown."""
    markers = plan.marker_counts(seen.shape.hash_count)
    for index, topics in seen.subscriptions.items():
        # A queue that has lost all its topics is about to be deleted, and may have been closed for that.
        if index < plan.to_count or (index < plan.from_count and topics):
            await queues.ensure_fit(seen.shape.queue_name(index), markers[index] + _BESIDE_MARKERS)


async def insist_on_unclaimed_queues(queues: QueueAdmin, plan: StripePlan, seen: SeenQueues) -> None:
    """Raise `QueueUnfit` if a queue that the plan adds to the group may be somebody else's.

    Members would handle what is in it, a later re-striping would delete it, or nobody could bind it. An empty queue
    that is as we make them passes, as a plan that never began may have left it. Only for a plan that has not begun:
    later, such a queue has records and copies.
    """
    seen.ensure_unclaimed(plan)
    for index in seen.subscriptions:
        if plan.from_count <= index < plan.to_count:
            await queues.ensure_like_new(seen.shape.queue_name(index))


async def insist_on_no_parking(queues: QueueAdmin, plan: StripePlan, seen: SeenQueues, picture: GroupPicture) -> None:
    """Raise `UserError` if the group parks: what is parked belongs to a queue, and would stay behind its shard.

    Also if it parked in the past, when it had more queues: a queue that is made now would get what is parked there.
    """
    expected = (
        "a group without parking queues: what is parked is replayed, members run without `park`, and the parking "
        "queues are deleted first"
    )
    if plan.from_count == plan.to_count:
        # Nothing moves. But members park nothing meanwhile, and a message that waits to be parked would keep the
        # re-striping from ending.
        expected = f"all members stopped and then started with group.queue_count: {plan.to_count}, to tell them that"
    for index in sorted({*seen.subscriptions, *range(plan.queue_total)}):
        queue = parking_queue(seen.shape.name, index)
        if await queues.subscriptions(queue) is not None:
            raise UserError("failure.then: park", f"parking queue {queue}", expected)
    for member, beat in picture.members.items():
        if beat.settings.get("failure.then") == Then.PARK.value:
            raise UserError("failure.then: park", f"member {member} runs with it", expected)


async def with_refusing_queues(refusal: PublishRefused, queues: QueueAdmin, seen: SeenQueues) -> PublishRefused:
    """The same error, naming the queues that take no record: the broker does not say which queue refused it.

    Unchanged if no queue shows a reason: one may have got room since, or the broker does not answer.
    """
    found = []
    try:
        for index, topics in seen.subscriptions.items():
            if refusal.topic in topics:
                queue = seen.shape.queue_name(index)
                if reason := await queues.refusal(queue, SMALL_MESSAGE_BYTES):
                    found.append(f"queue {queue} has {reason}")
    except SempError:
        # The refusal itself matters more than the failure to explain it.
        pass
    return PublishRefused(refusal.topic, f"{refusal.reason}: {'; '.join(found)}") if found else refusal
