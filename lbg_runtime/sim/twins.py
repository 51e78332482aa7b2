"""An operator's mistake: a second process with the id of a live member, and how it ends.

It happens with two containers with the same host name, or a replacement that is started before the old process is gone.
Both run the same program with the same settings. Cooperative members find out on the control topic, where the larger
life wins; counted members never do, and both stand in the same place.

The client name of a process is derived from host name and process id unless the settings give one, so two containers
with the same host name share it, and each that connects throws the other out; the client that was thrown out comes back
before long. That never ends by itself. (With the real client, a process that is thrown out while it opens its session
ends with an error, so most such twins do not outlive their start; the worse case is modelled.)
"""

from enum import Enum

from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.member import SimMember
from lbg_runtime.sim.world import World

LONGEST_MS = 6_000
"""From the start of a twin until the mistake is undone, if it is."""

FAR_AHEAD = 1_000
"""How many lives ahead a process is whose clock is ahead: more than a run has."""


class Incarnation(Enum):
    """What the second process reports as its life, compared with the first."""

    LATER = "later"
    """As with correct clocks."""
    EQUAL = "equal"
    """Both were started in the same microsecond: chance decides."""
    EARLIER = "earlier"
    """Its host's clock is behind."""
    AHEAD = "ahead"
    """Its host's clock is ahead: later lives of the member on other hosts are below it."""


class Ending(Enum):
    """How the mistake is undone."""

    FIRST_GOES = "first_goes"
    TWIN_GOES = "twin_goes"
    NONE = "none"
    """Not before the run ends, unless something else strikes one of them."""


def add_twin(world: World, member: SimMember, chance: SeededChance) -> None:
    """Start a second process of this member; either may end later, in good order or not, and is not started again."""
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
    # The run waits for its end, to see who is left.
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
