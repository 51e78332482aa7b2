"""One queue: its spool, its bind line, and the rules of election, delivery, settlement and re-bind."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from lbg_runtime.broker.engine.answers import BindCounts, FlowStatus, MessageStatus, QueueStatus, SettledRange
from lbg_runtime.broker.engine.bind_line import bind_line
from lbg_runtime.broker.engine.deliveries import DeliveryIds
from lbg_runtime.broker.engine.effects import ActivityChanged, ClientId, Effect, FlowId, Published
from lbg_runtime.broker.engine.flow import LARGEST_ID, BrowserFlow, ConsumerFlow, Flow, RememberedFlow
from lbg_runtime.broker.engine.settings import AccessType, Permission, QueueSettings, RejectOnDiscard
from lbg_runtime.broker.engine.spool import NO_DELIVERY, Spool, SpooledMessage
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome


class Queue:
    """Called by the engine. Every method that can make a message deliverable delivers before it returns.

    The rule of re-binds. A client whose connection broke keeps what it received and settles it by the old ids after
    its handle is bound again; its library drops those ids if they are sent again, and shows the application a
    duplicate if the messages come under new ids. So the old deliveries of such a client stay valid while all of
    them wait here, and only as long: the first that is delivered to someone else ends the claim on all, for good.

    - Bound again and fed: the messages count as unsettled on the new flow under their old ids and are not sent.
    - Bound again as a standby: it may still settle them, until one of them is delivered elsewhere.
    - All, because its client takes the earlier ones for settled too: were the later ones removed at its word, the
      settled messages of a key would no longer be a prefix (L3; found by the simulation, tests/sim has the story).
    - What was delivered elsewhere and came back goes to the fed flow under a new id, flagged, even where that flow's
      client had it once. Giving such a message back to its old id would save that duplicate, but the client may have
      settled the old id while it counted for nothing, and would never do so again: the message would be stuck.
    - So a settlement counts only from the client that got the message last. Nothing is lost; what a second client
      got may be handled twice. A settlement that died with the connection leaves its message unsettled until the
      handle goes: the broker cannot tell it from one that is still to come.
    """

    def __init__(
        self, name: QueueName, settings: QueueSettings, ids: DeliveryIds, temporary_of: ClientId | None = None
    ) -> None:
        self.name = name
        self.settings = settings
        self.temporary_of = temporary_of
        """The only connection that may use the queue and with which it goes; None for a durable queue."""
        self.rejected_count = 0
        self._binds = BindCounts()
        self._ids = ids
        self._spool = Spool()
        self._line = bind_line(settings.access_type)
        self._browsers: dict[FlowId, BrowserFlow] = {}
        self._remembered: dict[FlowId, RememberedFlow] = {}

    # -- spooling

    @property
    def depth(self) -> int:
        """Messages spooled, unacknowledged ones included."""
        return self._spool.depth

    @property
    def flows(self) -> tuple[Flow, ...]:
        """Consumer flows in the order of the bind line, then browsers."""
        return (*self._line.flows.values(), *self._browsers.values())

    def refusal_of(self, message: Published) -> BrokerRefusal | None:
        """Why the queue cannot take the message, or None where it can."""
        if not self.settings.ingress_enabled:
            return BrokerRefusal(503, "Queue Shutdown")
        if message.size_bytes > self.settings.max_message_bytes:
            return BrokerRefusal(400, "Document Is Too Large")
        if self._spool.spooled_bytes + message.size_bytes > self.settings.quota_bytes:
            return BrokerRefusal(503, "Spool Over Quota")
        return None

    @property
    def tells_publishers(self) -> bool:
        """Whether a publisher hears of a message that the queue cannot take; else it is dropped."""
        when = self.settings.reject_on_discard
        return when is RejectOnDiscard.ALWAYS or (
            when is RejectOnDiscard.WHEN_QUEUE_ENABLED and self.settings.ingress_enabled
        )

    def add(self, message: Published) -> list[Effect]:
        """Spool a message that `refusal_of` has nothing against."""
        self._spool.add(message)
        return self._feed()

    def delete_messages(self, sequences: Container[int] | None) -> list[Effect]:
        """Remove messages for good, whoever holds them: those in these places, or all."""
        chosen = [m for m in self._spool.messages() if sequences is None or m.sequence in sequences]
        self._take_from_holders(chosen)
        for message in chosen:
            self._end(message, Outcome.ACCEPTED)
        return self._feed()

    # -- flows

    def allows(self, username: str, wanted: Permission) -> bool:
        """Whether a client username may do this with the queue."""
        return self.settings.owner == username or self.settings.permission.includes(wanted)

    def admit(self, username: str, *, browser: bool) -> None:
        """Count a bind, and refuse it: 403 `Permission Not Allowed`, 503 `Queue Shutdown`, 503 `Max clients exceeded
        for queue`."""
        self._binds.requested += 1
        if not self.allows(username, Permission.READ_ONLY if browser else Permission.CONSUME):
            self._binds.other += 1
            raise BrokerRefusal(403, "Permission Not Allowed")
        if not self.settings.egress_enabled:
            self._binds.disabled += 1
            raise BrokerRefusal(503, "Queue Shutdown")
        if not browser and len(self._line.flows) >= self.settings.max_bind_count:
            self._binds.max_exceeded += 1
            raise BrokerRefusal(503, "Max clients exceeded for queue")
        self._binds.succeeded += 1

    def bind(
        self, flow: FlowId, client: ClientId, client_name: str, last_received_id: DeliveryId | None
    ) -> ConsumerFlow:
        """Put a consumer that was admitted at the end of the line, its window closed."""
        bound = ConsumerFlow(
            flow, client, client_name, self.settings.max_unacked_per_flow, last_received_id or DeliveryId(0)
        )
        if last_received_id is None:
            self._forget(client_name)
        else:
            self._ids.skip_to(last_received_id)
            bound.remembered_as = self._resume(client_name, last_received_id)
        self._line.join(bound)
        if self._line.is_fed(bound):
            self._take_over_remembered(bound)
        return bound

    def is_fed(self, flow: ConsumerFlow) -> bool:
        """Whether the queue feeds this flow."""
        return self._line.is_fed(flow)

    def browse(self, flow: FlowId, client: ClientId, client_name: str) -> BrowserFlow:
        """Bind a browser that was admitted, its window closed; it has no part in the election."""
        browser = BrowserFlow(flow, client, client_name, self._spool.first_sequence)
        self._browsers[flow] = browser
        return browser

    def release(self, flow: Flow) -> list[Effect]:
        """End a flow whose handle is given up: nothing of it is remembered."""
        if isinstance(flow, BrowserFlow):
            del self._browsers[flow.id]
            return []
        was_fed = self._leave(flow)
        if flow.remembered_as is not None:
            self._remembered.pop(flow.remembered_as, None)
        return self._elect(was_fed) + self._feed()

    def lose(self, flows: Sequence[Flow]) -> list[Effect]:
        """End flows of one client whose connection broke: their handles may be bound again."""
        was_fed = False
        for flow in flows:
            if isinstance(flow, BrowserFlow):
                del self._browsers[flow.id]
                continue
            was_fed |= self._leave(flow)
            self._remember(flow)
        return self._elect(was_fed) + self._feed()

    def change(self, settings: QueueSettings) -> list[Effect]:
        """Give the queue other settings; another access type only while no flow is bound."""
        if settings.access_type is not self.settings.access_type:
            self._line = bind_line(settings.access_type)
        self.settings = settings
        for flow in self._line.flows.values():
            flow.max_unacked = settings.max_unacked_per_flow
            self._line.room_made(flow)
        return self._feed()

    def end_flows(self) -> tuple[Flow, ...]:
        """End all flows at once, so that none is elected: their handles are dead, what they held waits here again."""
        ended = self.flows
        self._browsers.clear()
        for flow in self._line.flows.values():
            self._take_back(flow)
            if flow.remembered_as is not None:
                self._remembered.pop(flow.remembered_as, None)
        self._line = bind_line(self.settings.access_type)
        return ended

    def open_window(self, flow: Flow, received_up_to: DeliveryId, window: int) -> list[Effect]:
        """Move a flow's window and send what it lets through."""
        flow.window.move(received_up_to, window)
        if isinstance(flow, BrowserFlow):
            return self._feed_browser(flow)
        self._line.room_made(flow)
        return self._feed()

    # -- settlement

    def settle(self, flow: Flow, ranges: Iterable[SettledRange]) -> list[Effect]:
        """End deliveries of a flow by id; ids that are not its own, or not any more, count for nothing."""
        for settled in ranges:
            for message in self._take_settled(flow, settled):
                self._end(message, settled.outcome)
        if isinstance(flow, ConsumerFlow):
            self._line.room_made(flow)
        return self._feed()

    def status(self, subscriptions: tuple[str, ...]) -> QueueStatus:
        """What an administrator sees of it now."""
        flows = tuple(self.flow_status(flow) for flow in self.flows)
        exclusive = self.settings.access_type is AccessType.EXCLUSIVE
        return QueueStatus(
            name=self.name,
            settings=self.settings,
            flows=flows,
            active_flow=next((f.flow for f in flows if exclusive and f.active and not f.browser), None),
            depth=self._spool.depth,
            spooled_bytes=self._spool.spooled_bytes,
            unacked_count=self._spool.unacked_count,
            rejected_count=self.rejected_count,
            first_sequence=self._spool.first_sequence,
            last_sequence=self._spool.last_sequence,
            binds=replace(self._binds),
            subscriptions=subscriptions,
        )

    def messages(self) -> Iterator[MessageStatus]:
        """What is spooled now, by place, made as it is taken: who looks for the first need not wait for the last."""
        return (
            MessageStatus(
                m.sequence,
                m.message.size_bytes,
                is_undelivered=m.delivery_id == NO_DELIVERY,
                spooled_at_s=m.message.spooled_at_s,
            )
            for m in self._spool.messages()
        )

    def flow_status(self, flow: Flow) -> FlowStatus:
        """What an administrator sees of one of its flows now."""
        browser = isinstance(flow, BrowserFlow)
        return FlowStatus(
            flow=flow.id,
            client=flow.client,
            client_name=flow.client_name,
            active=isinstance(flow, BrowserFlow) or self._line.is_fed(flow),
            browser=browser,
            window_size=flow.window.size,
            used_window_size=flow.window.used,
            unacked_count=0 if isinstance(flow, BrowserFlow) else len(flow.unsettled),
        )

    # -- election and delivery

    def _leave(self, flow: ConsumerFlow) -> bool:
        """Take a flow out of the line and its messages back; whether it was fed."""
        was_fed = self._line.is_fed(flow)
        self._line.leave(flow)
        self._take_back(flow)
        return was_fed

    def _take_back(self, flow: ConsumerFlow) -> None:
        for _, message in flow.unsettled:
            self._spool.put_back(message)

    def _elect(self, was_fed: bool) -> list[Effect]:
        """Tell the next in an exclusive queue's line that it is fed, where a fed flow has left."""
        if not was_fed or self.settings.access_type is not AccessType.EXCLUSIVE:
            return []
        first = next(iter(self._line.flows.values()), None)
        if first is None:
            return []
        self._take_over_remembered(first)
        return [ActivityChanged(first.client, first.id, active=True)]

    def _feed(self) -> list[Effect]:
        """Send whatever waits and has somewhere to go."""
        effects: list[Effect] = []
        while self._spool.waiting_count:
            flow = self._line.next_with_room()
            if flow is None:
                break
            message = self._spool.take_next()
            if message.flow is not None:
                # All of what that handle held, not this message alone: its client settles what follows in the belief
                # that this one is settled too, and the settled messages of a key would no longer be a prefix (L3).
                self._remembered.pop(message.flow, None)
            effects.append(flow.deliver(self._ids.take(), message))
        for browser in self._browsers.values():
            effects += self._feed_browser(browser)
        return effects

    def _feed_browser(self, browser: BrowserFlow) -> list[Effect]:
        effects: list[Effect] = []
        while browser.window.is_open:
            message = self._spool.next_from(browser.next_sequence)
            if message is None:
                browser.next_sequence = self._spool.last_sequence + 1
                break
            effects.append(browser.show(self._ids.take(), message))
        # Messages that consumers settle stay in the browser's map until this sweep.
        if len(browser.shown) > 2 * self._spool.depth + 1024:
            browser.shown.drop_gone()
        return effects

    def _take_settled(self, flow: Flow, settled: SettledRange) -> list[SpooledMessage]:
        if isinstance(flow, BrowserFlow):
            if settled.outcome is Outcome.FAILED:
                return []  # It was only shown, so there is nothing to put back.
            shown = flow.shown.take(settled.first, settled.last)
            self._take_from_holders(shown)
            return shown
        taken = flow.unsettled.take(settled.first, settled.last)
        remembered = None if flow.remembered_as is None else self._remembered.get(flow.remembered_as)
        if flow.remembered_as is not None and remembered is not None:
            taken += remembered.deliveries.take(settled.first, settled.last)
            if not remembered.deliveries:
                del self._remembered[flow.remembered_as]
        return taken

    def _take_from_holders(self, messages: Sequence[SpooledMessage]) -> None:
        """A browser removes messages that consumers may hold: those have room again."""
        for message in messages:
            holder = None if message.flow is None else self._line.flows.get(message.flow)
            if holder is not None:
                holder.unsettled.discard(message.delivery_id)
                self._line.room_made(holder)

    def _end(self, message: SpooledMessage, outcome: Outcome) -> None:
        if outcome is Outcome.FAILED:
            self._spool.put_back(message)  # It waits already where a standby settles what it remembers.
            return
        self._end_claim(message)
        if self._spool.remove(message) and outcome is Outcome.REJECTED:
            self.rejected_count += 1

    # -- what clients hold over a broken connection

    def _remember(self, flow: ConsumerFlow) -> None:
        if flow.remembered_as in self._remembered:
            # Never fed since it was bound again: its client holds what it held before.
            self._remembered[flow.remembered_as].is_resumed = False
        elif flow.unsettled:
            self._remembered[flow.id] = RememberedFlow(flow.client_name, flow.window, flow.unsettled)

    def _resume(self, client_name: str, last_received_id: DeliveryId) -> FlowId | None:
        """Find the flow that the client's handle was, by the last id it received, which no other flow had.

        Where none fits the client holds nothing that counts, and everything comes anew.
        """
        if not last_received_id:
            return None
        for flow, remembered in self._remembered.items():
            if (
                remembered.client_name == client_name
                and not remembered.is_resumed
                and remembered.window.has_been_received(last_received_id)
            ):
                # What was under way above that id got lost: the client waits for it under a new id.
                remembered.deliveries.take(DeliveryId(last_received_id + 1), LARGEST_ID)
                remembered.is_resumed = True
                if remembered.deliveries:
                    return flow
                del self._remembered[flow]
                return None
        return None

    def _take_over_remembered(self, flow: ConsumerFlow) -> None:
        """A flow is fed from now on: what its client holds from before counts as unsettled on it."""
        if flow.remembered_as is None:
            return
        remembered = self._remembered.pop(flow.remembered_as, None)
        flow.remembered_as = None
        if remembered is None:
            return
        for delivery_id, message in remembered.deliveries:
            self._spool.hold(message)
            message.flow = flow.id
            flow.unsettled.add(delivery_id, message)

    def _forget(self, client_name: str) -> None:
        """A client binds a new handle: the handles it lost before do not come back."""
        for flow in [id_ for id_, r in self._remembered.items() if r.client_name == client_name and not r.is_resumed]:
            del self._remembered[flow]

    def _end_claim(self, message: SpooledMessage) -> None:
        """A message goes to someone else, or for good: nobody can settle it by its latest id any more."""
        flow = message.flow
        if flow is not None and (remembered := self._remembered.get(flow)) is not None:
            remembered.deliveries.discard(message.delivery_id)
            if not remembered.deliveries:
                del self._remembered[flow]
