"""An operator's mistake: a second process with the id of a member that lives, and how it ends.

Two containers with one host name, or a replacement that is started before the old process is gone. Both are the same
program with the same settings. Cooperative members find out on the control topic, where the larger life counts; members
that only count never do, and stand both in the same place.

Which client name a process has follows from host name and process id unless the settings give one, so two containers
with one host name share it, and each that connects throws the other out; the client of who was thrown out comes back
before long. That never ends by itself. (On the real client a process that is thrown out while it opens its session ends
with an error, so that most such twins do not outlive their start; the worse is modelled.)
"""

from enum import Enum

from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.member import SimMember
from lbg_runtime.sim.world import World

LONGEST_MS = 6_000
"""From the start of a twin until the mistake is undone, where it is."""

FAR_AHEAD = 1_000
"""Lives that a process is ahead of its time whose clock is: more than a run has."""


class Incarnation(Enum):
    """What the second process says of its life, beside the first."""

    LATER = "later"
    """As the clocks say that are right."""
    EQUAL = "equal"
    """Both were started in one microsecond: chance decides."""
    EARLIER = "earlier"
    """Its host's clock is behind."""
    AHEAD = "ahead"
    """Its host's clock is ahead: later lives of the member, on other hosts, are below it."""


class Ending(Enum):
    """How the mistake is undone."""

    FIRST_GOES = "first_goes"
    TWIN_GOES = "twin_goes"
    NONE = "none"
    """Not before the run ends, unless something else strikes one of them."""


def add_twin(world: World, member: SimMember, chance: SeededChance) -> None:
    """Start a second process of this member; either may go later, in order or not, and is not started again."""
    incarnation = chance.pick(tuple(Incarnation))
    shares_client_name = chance.happens(0.3)
    ending = chance.pick(tuple(Ending))
    after_ms, goes_in_order = chance.between(1, LONGEST_MS), chance.happens(0.5)
    twin = world.start_twin(member, _number_of(incarnation, member), shares_client_name=shares_client_name)
    if twin is None or ending is Ending.NONE:
        return
    leaver = member if ending is Ending.FIRST_GOES else twin
    until_ms = world.schedule.now_ms + after_ms
    world.lasts_until(until_ms)
    world.schedule.at(until_ms, leaver.stop if goes_in_order else leaver.kill)
    # A run waits for its end, to see who is left.
    world.when_ended(leaver, lambda: None)


def _number_of(incarnation: Incarnation, member: SimMember) -> int | None:
    match incarnation:
        case Incarnation.LATER:
            return None
        case Incarnation.EQUAL:
            return member.start.incarnation
        case Incarnation.EARLIER:
            return member.start.incarnation - 1
        case Incarnation.AHEAD:
            return member.start.incarnation + FAR_AHEAD
