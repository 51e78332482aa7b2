"""Makes the queues of a group when a member or publisher starts, if nobody has made them and the settings allow it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog

from lbg_runtime.config.settings import GroupSettings, Provision
from lbg_runtime.model.errors import BindFailed, ConfigError, RequestRefused, TransportError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.session import Session

AGAIN_S = 5.0
"""The time to the next attempt, after an outage has cut a request off or somebody has deleted a queue."""

ROUNDS = 3
"""How often the queues of a group are made at most, while somebody deletes them."""

_DELETED = "Unknown Queue"
"""The broker's refusal of a subscription if the queue, which was there a moment ago, has been deleted."""

SUBSCRIPTIONS_AT_ONCE = 256
"""How many subscriptions one call asks for. It does not end before all are answered, even if it is cancelled."""

_log = structlog.get_logger(__name__)

_Answer = TypeVar("_Answer")


async def provision_queues(session: Session, group: GroupSettings) -> None:
    """Create the group's missing queues and subscriptions, if members may; before `Supervisor.run`.

    The first queue, which every layout has, is made last: if it exists, all others are complete. Outages are waited
    for, without a bound; queues that somebody deletes meanwhile are made again, in `ROUNDS` rounds at most. Raises
    `ConfigError` if the broker refuses, or if the group has another number of queues; then nothing is changed.
    """
    if group.provision is not Provision.CREATE_MISSING:
        return
    shape = group.shape()
    try:
        await _insist_on_layout(session, shape)
        await _provision(session, shape)
    except RequestRefused as error:
        raise _refused(error) from error


async def provision_new_group(session: Session, group: GroupSettings) -> None:
    """Like `provision_queues`, but only for a group that has no first queue; before a publisher sends anything.

    Queues that exist are left as they are: a publisher whose settings have an older number of queues would bring back
    that layout, beside the present one. For outages, deletions and errors, see `provision_queues`.
    """
    if group.provision is not Provision.CREATE_MISSING:
        return
    shape = group.shape()
    try:
        if not await _answered(partial(session.has_queue, shape.queue_name(0))):
            await _provision(session, shape)
    except RequestRefused as error:
        raise _refused(error) from error


async def provision_queue(session: Session, queue: QueueName, subscriptions: Sequence[str]) -> None:
    """Create one queue and its subscriptions if missing; outages are waited for, without a bound.

    Raises `RequestRefused`.
    """
    for start in range(0, max(1, len(subscriptions)), SUBSCRIPTIONS_AT_ONCE):
        await _answered(partial(session.provision, queue, subscriptions[start : start + SUBSCRIPTIONS_AT_ONCE]))


async def refusal_of(session: Session, queue: QueueName) -> BindFailed | None:
    """Why a queue that is not to be created cannot be bound; None if it can. To find out, it is bound and unbound."""
    try:
        flow = await session.bind(queue, Epoch(1), lambda _: None)
    except BindFailed as refusal:
        return refusal
    await flow.unbind()
    return None


async def _insist_on_layout(session: Session, shape: GroupShape) -> None:
    """Raise `ConfigError` if the queues that exist are those of a layout with another number: with ours beside them,
    shards would be in two queues, and their messages would be handled twice."""
    count = shape.queue_count
    first, last, next_one = (shape.queue_name(index) for index in (0, count - 1, count))
    if await _answered(partial(session.has_queue, next_one)):
        found, otherwise = f"{count}, and there is a queue {next_one}", "delete that queue, if nobody wants it"
    # The first is looked for before the last, as others with the same settings may be making all of them right now.
    elif not await _answered(partial(session.has_queue, first)) or await _answered(partial(session.has_queue, last)):
        return
    else:
        found, otherwise = f"{count}, and there is a queue {first}, but no {last}", f"make {last}, if it was deleted"
    raise ConfigError("group.queue_count", found, f"the number of queues that the group has; or {otherwise}")


async def _provision(session: Session, shape: GroupShape) -> None:
    for rounds_left in reversed(range(ROUNDS)):
        try:
            for index in reversed(range(shape.queue_count)):
                await provision_queue(session, shape.queue_name(index), shape.subscriptions(index))
            return
        except RequestRefused as error:
            if not rounds_left or _DELETED not in error.reason:
                raise
            # Whoever deleted this queue may have deleted those before it as well, so make all of them again.
            _log.warning("queues_not_made_yet", reason=str(error))
            await asyncio.sleep(AGAIN_S)


async def _answered(request: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Ask until the broker answers; raises `RequestRefused`."""
    while True:
        try:
            return await request()
        except RequestRefused:
            raise
        except TransportError as error:
            _log.warning("queues_not_made_yet", reason=str(error))
            await asyncio.sleep(AGAIN_S)


def _refused(error: RequestRefused) -> ConfigError:
    expected = "a user who may create queues and receive, or `none` and queues made beforehand"
    if _DELETED in error.reason:
        expected = "nobody who deletes the group's queues at this moment: start again once that has ended"
    return ConfigError("group.provision", str(error), expected)
