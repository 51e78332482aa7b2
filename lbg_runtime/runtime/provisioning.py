"""The queues of a group, made by those who start before anybody else has made them."""

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
"""From a request that an outage has cut off, or a deletion, to the next attempt."""

ROUNDS = 3
"""How often a group is made while somebody deletes its queues."""

_DELETED = "Unknown Queue"
"""What the broker says of a subscription to a queue that was there a moment ago."""

SUBSCRIPTIONS_AT_ONCE = 256
"""Subscriptions asked for in one call, which does not end before the last one is answered, even if it is cancelled."""

_log = structlog.get_logger(__name__)

_Answer = TypeVar("_Answer")


async def provision_queues(session: Session, group: GroupSettings) -> None:
    """Create the group's missing queues and subscriptions, if members may; before `Supervisor.run`.

    The first queue, which every layout has, comes last: where it is there, all others are whole. Outages are waited
    for, without a bound; queues that somebody deletes meanwhile are made again, `ROUNDS` times at most. Raises
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
    """As `provision_queues`, but only for a group that has no first queue; before a publisher sends anything.

    What is there is left as it is: an older number of queues would bring that layout back, beside the present one.
    Outages and deletions are met, and errors raised, as by `provision_queues`.
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
    """Why a queue that is not to be created cannot be bound; None if it can: it was, and is free again."""
    try:
        flow = await session.bind(queue, Epoch(1), lambda _: None)
    except BindFailed as refusal:
        return refusal
    await flow.unbind()
    return None


async def _insist_on_layout(session: Session, shape: GroupShape) -> None:
    """Raise `ConfigError` if the queues that are there are those of another number: with ours beside them, shards would
    be in two queues, and their messages be handled twice."""
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
            # Whoever has deleted this queue may have deleted those before it as well: all of them again.
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
