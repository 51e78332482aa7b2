"""The queues of a group, made by those who start before anybody else has made them."""

from contextlib import suppress

from lbg_runtime.config.settings import GroupSettings, Provision
from lbg_runtime.model.errors import ConfigError, RequestRefused, TransportError
from lbg_runtime.runtime.session import Session


async def provision_queues(session: Session, group: GroupSettings) -> None:
    """Create the group's missing queues and subscriptions, if members may; before `Supervisor.run`.

    The first queue, which every layout has, comes last: where it is there, all others are whole. Raises `ConfigError`.
    """
    if group.provision is not Provision.CREATE_MISSING:
        return
    shape = group.shape()
    try:
        for index in reversed(range(shape.queue_count)):
            await session.provision(shape.queue_name(index), shape.subscriptions(index))
    except TransportError as error:
        raise _not_provisioned(error) from error


async def provision_new_group(session: Session, group: GroupSettings) -> None:
    """As `provision_queues`, but only if the group has no queues yet, or just this layout; before anything is sent.

    An older number of queues would bring that layout back, beside the present one. Raises `ConfigError`.
    """
    if group.provision is not Provision.CREATE_MISSING:
        return
    shape = group.shape()
    first, last, next_one = (shape.queue_name(index) for index in (0, shape.queue_count - 1, shape.queue_count))
    try:
        if not await session.has_queue(first):
            await provision_queues(session, group)
        elif await session.has_queue(last) and not await session.has_queue(next_one):
            # Somebody may be making it in this moment, and what it does not subscribe to yet would be lost. Who may not
            # subscribe it is no worse off than with `none`; but whoever may, must know that it has done so.
            with suppress(RequestRefused):
                await session.provision(first, shape.subscriptions(0))
    except TransportError as error:
        raise _not_provisioned(error) from error


def _not_provisioned(error: TransportError) -> ConfigError:
    expected = "a user who may create and browse queues, or `none` and queues made beforehand"
    return ConfigError("group.provision", str(error), expected)
