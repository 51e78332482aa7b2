"""Makes the machine of a member's part in its group's conversation from the settings: who the member is, which settings
all members must have alike, how long is waited for what, and which queues have a home from the beginning."""

import secrets
from collections.abc import Mapping, Sequence

from lbg_runtime.config.settings import Settings
from lbg_runtime.core.chance import RandomSource, nonce
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.group.control_messages import Life
from lbg_runtime.core.group.control_plane import ControlPlaneMachine
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership import MembershipMachine
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.rebalance import RebalanceMachine
from lbg_runtime.core.group.rebalance_settings import RebalanceSettings
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.connection import LONGEST_SILENCE_MS
from lbg_runtime.model.failure import Then
from lbg_runtime.model.ids import GroupName, MemberId, QueueName
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.membership import Membership, counted_homes

PARKS = "failure.then"
"""Under this name a member that parks says so to the others, whether this setting or the `then` of a handler makes it
park."""

MOST_LEFT_OUT = 1 << 32
"""How many sequence numbers are skipped, less one, at most before a heartbeat that carries a probe; a life has room for
millions of such gaps."""

STEP_ASIDE_MARGIN_MS = 5_000
"""An offer is remembered for the longest drain, plus this much for its messages to arrive."""


def make_control_machine(
    settings: Settings,
    membership: Membership,
    incarnation: int,
    flows: Sequence[FlowMachine],
    chance: RandomSource,
    striping: StripingBook,
    alike: Mapping[str, str],
) -> ControlPlaneMachine:
    """The machine of one life of a member. `alike`: see `settings_alike`."""
    own, rebind = settings.membership, settings.rebind
    life = Life(incarnation, nonce(chance))
    identity = Identity(GroupName(settings.group.name), membership.member, life, own.weight, alike)
    timing = MembershipTiming(heartbeat_ms=own.heartbeat_ms, settle_ms=own.settle_ms)
    view = MembershipMachine(identity, timing, chance, now_ms(), striping)
    rebalance = RebalanceMachine(
        membership.member,
        [flow.queue for flow in flows],
        pins(settings, membership, len(flows)),
        RebalanceSettings(
            standbys=rebind.standbys,
            min_tenure_ms=rebind.min_tenure_ms,
            max_moves=rebind.max_moves,
            step_aside_ms=rebind.drain_timeout_ms + STEP_ASIDE_MARGIN_MS,
        ),
        view.stamp,
    )
    # Not less: for so long, a silent topic may mean that our own connection has died unnoticed. A queue that is given
    # up on that reaches nobody.
    silence_ms = max(timing.dead_ms, LONGEST_SILENCE_MS)
    return ControlPlaneMachine(view, rebalance, flows, silence_ms, lambda: secrets.randbelow(MOST_LEFT_OUT))


def settings_alike(
    settings: Settings, membership: Membership, *, parks: bool, of_companion: Mapping[str, str]
) -> dict[str, str]:
    """The settings that all members of a group must have alike. `parks`: whether a handler of this member may park."""
    place = membership.place
    alike = {**settings.group.shared(), "membership.count": str(place.count if place else ""), **of_companion}
    if parks:
        # A member that did not know what is parked would handle later messages of the parked keys.
        alike[PARKS] = Then.PARK.value
    return alike


def pins(settings: Settings, membership: Membership, queue_total: int) -> dict[QueueName, MemberId]:
    """The homes of so many queues, if members are counted: each keeps its own as long as it lives. Empty if members
    discover each other."""
    if membership.place is None:
        return {}
    return counted_homes(map(settings.group.shape().queue_name, range(queue_total)), membership.place.count)
