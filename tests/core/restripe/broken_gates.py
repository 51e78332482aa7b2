"""Gates that are broken on purpose, for the laws to find out.

The mutants override private methods, because they stand for edits of the gate itself.
"""

from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.core.restripe.gate import Drop, GateOrder, StripeGate, _Verdict
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.core.restripe.records import ShardMarker, StripeFinish, StripePlan
from lbg_runtime.model.message import Delivery


class TellsAtOnce(StripeGate):
    """It does not wait until the broker has taken the settlements."""

    def _probe(self, told: StripesNews) -> GateOrder:  # type: ignore[override]  # the mutation
        return told


class SettlesThePlanAtOnce(StripeGate):
    """The queue is no journal of its plan."""

    def _take_plan(self, plan: StripePlan, delivery: Delivery) -> list[GateOrder]:
        is_settled = Drop(self._plan_id)
        orders = [order for order in super()._take_plan(plan, delivery) if order != is_settled]
        return orders if Drop(delivery.delivery_id) in orders else [*orders, Drop(delivery.delivery_id)]

    def _end_if_finished(self) -> list[GateOrder]:
        plan_id = self._plan_id
        return [order for order in super()._end_if_finished() if order != Drop(plan_id)]


class StopsAtARenewedPlan(StripeGate):
    """It takes a newer name for another plan."""

    def _renews(self, plan: StripePlan) -> bool:
        return False


class SettlesThePlanLast(StripeGate):
    """A crash in between leaves markers or a plan without what they need."""

    def _end_if_finished(self) -> list[GateOrder]:
        orders = super()._end_if_finished()
        drops = [order for order in orders if isinstance(order, Drop)]
        return [*reversed(drops), *(order for order in orders if not isinstance(order, Drop))]


class HandlesWhatLiesBehindTheMarker(StripeGate):
    """The old queue goes on with what is a copy."""

    def _judge(self, shard: int) -> _Verdict:
        if self._plan is not None and self._plan.old_index(shard) == self._queue_index:
            return _Verdict.HANDLE
        return super()._judge(shard)


class HandlesWhatLiesBeforeTheMarker(StripeGate):
    """The new queue handles copies of what the old one is handling."""

    def _judge(self, shard: int) -> _Verdict:
        verdict, plan = super()._judge(shard), self._plan
        is_coming = plan is not None and plan.old_index(shard) != self._queue_index
        return _Verdict.HANDLE if is_coming and verdict is _Verdict.DROP else verdict


class WaitsForNobody(StripeGate):
    """The new queue does not ask whether the old one is done."""

    def _has_left(self, shard: int, plan: StripePlan) -> bool:
        return True


class BelievesNoFinish(StripeGate):
    """Only who has read the marker counts; when all who did are gone, and the marker is settled, nobody can tell."""

    def _has_left(self, shard: int, plan: StripePlan) -> bool:
        return self._striping.generation == plan.generation and shard in self._striping.left


class DropsInsteadOfKeeping(StripeGate):
    """What must wait is settled."""

    def take(self, delivery: Delivery, in_flight: InFlight) -> list[GateOrder]:
        orders = super().take(delivery, in_flight)
        if not self._kept.pop(self._shard_of(delivery.message.topic) or 0, None):
            return orders
        self.kept_count -= 1
        return [*orders, Drop(delivery.delivery_id)]


class LetsGoAtTheMarker(StripeGate):
    """What is in flight when the marker comes is not waited for."""

    def _take_marker(self, marker: ShardMarker, delivery: Delivery, in_flight: InFlight) -> list[GateOrder]:
        return super()._take_marker(marker, delivery, InFlight(1))


class ForgetsTheMarkers(StripeGate):
    """They are settled when they come, and a new handle does not see them."""

    def _take_marker(self, marker: ShardMarker, delivery: Delivery, in_flight: InFlight) -> list[GateOrder]:
        orders = super()._take_marker(marker, delivery, in_flight)
        return orders if Drop(delivery.delivery_id) in orders else [*orders, Drop(delivery.delivery_id)]

    def _end_if_finished(self) -> list[GateOrder]:
        markers = [Drop(marker) for marker in self._markers.values()]
        return [order for order in super()._end_if_finished() if order not in markers]


class EndsAtTheFinish(StripeGate):
    """The records are settled before what lies before them."""

    def _take_finish(self, finish: StripeFinish, delivery: Delivery, in_flight: InFlight) -> list[GateOrder]:
        return super()._take_finish(finish, delivery, InFlight(1))


class WaitsAtEveryFinish(StripeGate):
    """Also at one that came again, behind which the plan of the next re-striping lies."""

    def _take_finish(self, finish: StripeFinish, delivery: Delivery, in_flight: InFlight) -> list[GateOrder]:
        if self._plan is not None or self._finish is not None:
            return super()._take_finish(finish, delivery, in_flight)
        self._finish, self._finish_id = finish, delivery.delivery_id
        self._unfinished = dict.fromkeys(in_flight.topics())
        return self._end_if_finished()


class RemembersWhatItOnlyOrdered(StripeGate):
    """On a new handle too, though the settlements of the records may be lost."""

    def start_handle(self) -> None:
        ended = getattr(self, "_ended_generation", 0)
        super().start_handle()
        self._ended_generation = ended
