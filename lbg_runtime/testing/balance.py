"""Checks whether every queue is with the member that it belongs to."""

from collections.abc import Iterator, Sequence

from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.model.ids import QueueName
from lbg_runtime.testing.group_broker import GroupBroker
from lbg_runtime.testing.life import Life


def beginnings(at_work: Sequence[Life]) -> list[str]:
    """A line for each member that has not joined, as one of its lifespans has not reached its `yield`."""
    return [
        f"{life.member} waits for the lifespan {lifespan} to reach its yield; if it waits for a socket, give what it"
        " yields with `states=`"
        for life in at_work
        if life.supervisor is not None and (lifespan := life.supervisor.awaited_lifespan) is not None
    ]


def imbalances(queues: Sequence[QueueName], at_work: Sequence[Life], broker: GroupBroker) -> list[str]:
    """A line for each queue that is with another member, and for each member that does not know all others.

    Members that are not at work are left out; if counted members are missing, their queues may be with anybody.
    """
    homes = _homes(at_work)
    # The more expensive check comes last: this is called whenever something happens.
    return [*_strays(queues, at_work, homes, broker)] or [*_strangers(at_work)]


def uneven(at_work: Sequence[Life], owners: Sequence[str | None]) -> list[str]:
    """The same for a partitioned queue: a line for each partition without an owner, and for shares that differ."""
    lines = [f"partition {number} is with nobody" for number, owner in enumerate(owners) if owner is None]
    shares = [sum(owner == life.client_name for owner in owners) for life in at_work]
    # With more members than partitions, some have none.
    active = sorted(shares, reverse=True)[: len(owners)]
    if not lines and (sum(shares) != len(owners) or (active and active[0] - active[-1] > 1)):
        said = ", ".join(f"{life.member} {share}" for life, share in zip(at_work, shares, strict=True))
        lines.append(f"of {len(owners)} partitions these have: {said}")
    return lines


def _homes(at_work: Sequence[Life]) -> dict[QueueName, Life]:
    return {
        runner.machine.queue: life
        for life in at_work
        if life.supervisor is not None
        for runner in life.supervisor.runners
        if runner.machine.place.rank == 0
    }


def _strays(
    queues: Sequence[QueueName], at_work: Sequence[Life], homes: dict[QueueName, Life], broker: GroupBroker
) -> Iterator[str]:
    clients = {life.client_name: life for life in at_work}
    are_counted = any(life.is_counted for life in at_work)
    for queue in queues:
        client, home = broker.fed(queue), homes.get(queue)
        owner = clients.get(client or "")
        is_right = owner is home or (home is None and are_counted)
        if owner is None or not is_right or not _is_active(owner, queue):
            belongs = "nobody yet" if home is None else home.member
            yield f"{queue} is with {'nobody' if owner is None else owner.member}, and belongs to {belongs}"


def _is_active(life: Life, queue: QueueName) -> bool:
    machines = [] if life.supervisor is None else [runner.machine for runner in life.supervisor.runners]
    return any(machine.queue == queue and machine.state is FlowState.ACTIVE for machine in machines)


def _strangers(at_work: Sequence[Life]) -> Iterator[str]:
    names = sorted(life.member for life in at_work)
    for life in at_work:
        view = None if life.supervisor is None else life.supervisor.status().picture().view
        if view is None:
            continue  # members that do not talk to each other
        if view.placement is None:
            yield f"{life.member} has not learned who is in the group yet"
        else:
            known = sorted({member for ranked in view.placement.ranks.values() for member in ranked})
            if known != names:
                yield f"{life.member} takes {', '.join(known) or 'nobody'} for the group"
