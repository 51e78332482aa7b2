"""What may happen to a group from one moment to the next."""

import random

from lbg_runtime.testing import LifeState
from lbg_runtime.testing.group import Group


async def trouble(chance: random.Random, group: Group) -> None:
    """Do something to a member or to the broker, or undo it; one member is left at work."""
    name, state = chance.choice(list(group.members.items()))
    at_work = [each for each, other in group.members.items() if other is LifeState.RUNNING]
    if not group.broker.is_reachable:
        group.broker.restore()
    elif state in (LifeState.KILLED, LifeState.STOPPED):
        group.start(name)
    elif state is LifeState.PAUSED:
        group.resume(name)
    elif state is LifeState.PARTITIONED:
        group.heal(name)
    elif len(at_work) > 1:
        what = chance.choice((group.kill, group.pause, group.partition, group.stop, None))
        if what is None:
            group.broker.fail()
        elif what == group.stop:
            await group.stop(name)
        else:
            what(name)


def mend(group: Group) -> None:
    """Undo what has been done, but for the members that have ended."""
    group.broker.restore()
    for name, state in group.members.items():
        if state is LifeState.PAUSED:
            group.resume(name)
        elif state is LifeState.PARTITIONED:
            group.heal(name)
