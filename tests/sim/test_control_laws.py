"""Control planes that are broken on purpose are found out: each mutant breaks a rule, and the laws name it.

The mutants override private methods, because they stand for edits of the machine itself.
"""

from collections.abc import Mapping

import pytest

from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.core.flow.commands import Command
from lbg_runtime.core.flow.events import HandBackRequested, MachineEvent, ReleaseCause, StepAsideCancelled
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.group.control_messages import Offer
from lbg_runtime.core.group.rebalance import RebalanceMachine
from lbg_runtime.core.group.rebalance_events import AskFlow, GroupSeen, RebalanceCommand, Say
from lbg_runtime.core.group.view import GroupView
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.sim.campaign import Scope
from lbg_runtime.sim.parts import Parts
from tests.sim.old_seeds import run_old_seed

MOST_SEEDS = 200

SCOPE = Scope(RebindMode.COOPERATIVE, members=4, queues=3)


def laws_broken_by(parts: Parts, expected: str, first: int = 0) -> set[str]:
    """The laws that the first seed breaks which breaks the expected one; all laws seen where none does.

    `first`: the first to be tried, where one is known that finds it and takes little time.
    """
    seen: set[str] = set()
    for seed in range(first, first + MOST_SEEDS):
        broken = {violation.law for violation in run_old_seed(SCOPE, seed, parts).violations}
        if expected in broken:
            return broken
        seen |= broken
    return seen


class HandsBackWithoutAnAccept(RebalanceMachine):
    """An offer is carried out before anybody has answered it."""

    def _offer_what_is_due(self, now_ms: int) -> list[RebalanceCommand]:
        commands = super()._offer_what_is_due(now_ms)
        offers = [each.message for each in commands if isinstance(each, Say) and isinstance(each.message, Offer)]
        return commands + [AskFlow(offer.queue, HandBackRequested(offer.move_id)) for offer in offers]


class AcceptsWhateverItIsOffered(RebalanceMachine):
    """It takes a queue that it is not bound to."""

    def _reason_to_reject(self, offer: Offer, now_ms: int) -> str | None:
        return None


class OffersAtOnceAndAgain(RebalanceMachine):
    """From the first millisecond on, and right after each failure."""

    def _offer_at_ms(self, queue: QueueName) -> int:
        return 0


class OffersInItsFirstMillisecond(RebalanceMachine):
    """A queue goes on before it has arrived."""

    def _offer_at_ms(self, queue: QueueName) -> int:
        backoff = self._backoffs.get(queue)
        return backoff.until_ms if backoff else 0


class NeverOffers(RebalanceMachine):
    """What it has it keeps."""

    def _target(self, queue: QueueName) -> MemberId | None:
        return None


class FeelsAtHomeEverywhere(RebalanceMachine):
    """Every member wants everything."""

    def _is_home(self, queue: QueueName) -> bool:
        return True

    def _target(self, queue: QueueName) -> MemberId | None:
        others = [one.member for one in self._view.members if one.member != self._member] if self._view else []
        return next((one for one in others if self._has_standby(one, queue, self._view)), None)

    @staticmethod
    def _has_standby(member: MemberId, queue: QueueName, view: GroupView | None) -> bool:
        found = view.find(member) if view else None
        return found is not None and queue in found.flows and not found.flows[queue].is_owner


class PlacesBeforeItHasSeenTheGroup(RebalanceMachine):
    """Cycles as if nobody could be heard, though everybody can."""

    def _set_places(self, places: Mapping[QueueName, Place]) -> list[RebalanceCommand]:
        return super()._set_places(dict.fromkeys(places, Place(1, gives_way=True)))

    def _see(self, seen: GroupSeen) -> list[RebalanceCommand]:
        return super()._see(GroupSeen(seen.view, seen.is_stable, is_silent=False))


class StepsAsideForEver(FlowMachine):
    """Once asked to let somebody else pass, it never takes the queue again, whoever says that it may."""

    def _react(self, event: MachineEvent, now_ms: int) -> list[Command]:
        return [] if isinstance(event, StepAsideCancelled) else super()._react(event, now_ms)

    def _take_activity(self, now_ms: int) -> list[Command]:
        if self._plan._aside_until_ms is not None:
            return self._unbind(ReleaseCause.HOP, now_ms)
        return self._become_active(now_ms)


@pytest.mark.parametrize(
    ("mutant", "law", "first"),
    [
        (HandsBackWithoutAnAccept, "hand_backs_are_accepted", 12),
        (AcceptsWhateverItIsOffered, "only_standbys_accept", 0),
        (OffersAtOnceAndAgain, "offers_are_patient", 17),
        (OffersInItsFirstMillisecond, "offers_are_patient", 9),
        (NeverOffers, "calm_groups_are_settled", 5),
        (FeelsAtHomeEverywhere, "calm_groups_are_settled", 9),
        (PlacesBeforeItHasSeenTheGroup, "calm_groups_are_settled", 4),
    ],
)
def test_a_broken_rebalance_machine_is_found_out(mutant: type[RebalanceMachine], law: str, first: int) -> None:
    assert law in laws_broken_by(Parts(make_rebalance=mutant), law, first)


def test_a_flow_whose_step_aside_never_ends_is_found_out() -> None:
    """Seldom, as a queue must move to who stepped aside for it before: the first seed that finds out is known."""
    law = "calm_groups_are_settled"
    assert law in laws_broken_by(Parts(make_machine=StepsAsideForEver), law, first=107)
