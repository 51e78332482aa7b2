"""Whether the queues of a re-striping can carry it; each function only looks."""

from lbg_runtime.admin.queues import QueueAdmin
from lbg_runtime.core.restripe.layout import Subscriptions, ensure_unclaimed
from lbg_runtime.core.restripe.records import StripePlan
from lbg_runtime.model.group import GroupShape


async def insist_on_fit_queues(
    queues: QueueAdmin, plan: StripePlan, shape: GroupShape, subscriptions: Subscriptions
) -> None:
    """Raise `QueueUnfit` if a queue could miss a record silently, and leave the copies behind it to another."""
    for index, topics in subscriptions.items():
        # One that has lost all its topics is about to be deleted, and may be closed for that.
        if index < plan.to_count or (index < plan.from_count and topics):
            await queues.ensure_fit(shape.queue_name(index))


async def insist_on_unclaimed_queues(
    queues: QueueAdmin, plan: StripePlan, shape: GroupShape, subscriptions: Subscriptions, control_topic: str
) -> None:
    """Raise `QueueUnfit` if a queue that the plan adds to the group may be somebody else's.

    Members would handle what is in it, a later shrink would delete it, or nobody could bind it. An empty one that is
    as we make them may be left by a plan that never began. Only for a plan that has not begun: later, records and
    copies are there.
    """
    ensure_unclaimed(plan, shape, subscriptions, control_topic)
    for index in subscriptions:
        if plan.from_count <= index < plan.to_count:
            await queues.ensure_like_new(shape.queue_name(index))
