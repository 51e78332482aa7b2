"""Local transactions: all that was published and consumed takes effect together, or not at all."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.deliveries import DeliveryIds
from lbg_runtime.broker.engine.effects import ClientId, Effect, FlowId, Published
from lbg_runtime.broker.engine.flow import ConsumerFlow
from lbg_runtime.broker.engine.publishing import Publishing, Route, direct_deliveries
from lbg_runtime.broker.engine.queue import Queue
from lbg_runtime.broker.engine.registry import Registry
from lbg_runtime.broker.engine.vpn import Client
from lbg_runtime.broker.engine.waiting import NO_DELIVERY
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Consumed:
    """What a transaction consumed on one flow."""

    flow: FlowId
    settled: SettledRange
    count: int
    """How many messages the client believes it holds."""


class Transactions:
    """Part of an engine. The front end keeps what is published until the end of its transaction."""

    def __init__(
        self,
        registry: Registry,
        delivery_ids: DeliveryIds,
        publishing: Publishing,
        settle: Callable[[FlowId, list[SettledRange]], list[Effect]],
    ) -> None:
        self._registry = registry
        self._delivery_ids = delivery_ids
        self._publishing = publishing
        self._settle = settle

    def check(self, client: ClientId) -> Client:
        """Return a client that may use transactions; 403 `Permission Not Allowed` if its profile forbids them."""
        known = self._registry.client(client)
        if not known.account.profile.may_use_transactions:
            raise BrokerRefusal(403, "Permission Not Allowed")
        return known

    def commit(self, client: ClientId, messages: Sequence[Published], consumed: Sequence[Consumed]) -> list[Effect]:
        """Put everything into effect, or nothing: refused as `Engine.publish`, of which each message finds what those
        before it leave.

        Also refused as by `check`, and with 503 `Transaction Failure` if the client no longer holds what it consumed.
        """
        known = self.check(client)
        if any(self._held(part) != part.count for part in consumed):
            raise BrokerRefusal(503, "Transaction Failure")
        routes: list[Route] = []
        added_bytes: Counter[Queue] = Counter()
        for message in messages:
            route = self._publishing.route(known, message, added_bytes)
            routes.append(route)
            for queue in route[0]:
                added_bytes[queue] += message.size_bytes
        effects: list[Effect] = []
        for part in consumed:
            effects += self._settle(part.flow, [part.settled])
        for message, route in zip(messages, routes, strict=True):
            effects += self._publishing.put(known.vpn, message, route, known.name)
            effects += direct_deliveries(known.vpn, message)
        return effects

    def roll_back(self, flows: Iterable[FlowId]) -> list[Effect]:
        """Deliver again what these flows hold, flagged."""
        open_flows = [flow for flow in flows if flow in self._registry.flows]
        for flow in open_flows:
            # The client has forgotten what it was sent and starts over, never acknowledging what was in transit: seen
            # with the official client.
            self._registry.flows[flow][2].window.begin_anew()
        # A message that one flow gives back may be delivered to the next one here, which must not give it back
        # again: so the range ends with the last delivery of now.
        held = SettledRange(NO_DELIVERY, self._delivery_ids.last, Outcome.FAILED)
        return [effect for flow in open_flows for effect in self._settle(flow, [held])]

    def _held(self, part: Consumed) -> int:
        if part.flow not in self._registry.flows:
            return 0
        flow = self._registry.flows[part.flow][2]
        return flow.unsettled.count(part.settled.first, part.settled.last) if isinstance(flow, ConsumerFlow) else 0
