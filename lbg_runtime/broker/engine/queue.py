"""One queue: its spool, its bind line, and the rules of election, delivery, settlement and re-bind.

More than 400 lines, as whatever happens to a queue ends in feeding the same line from the same spool.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from lbg_runtime.broker.engine.admission import Admission, allows
from lbg_runtime.broker.engine.answers import (
    BindCounts,
    DeathCounts,
    FlowStatus,
    GroupStatus,
    MessageStatus,
    QueueStatus,
    SettledRange,
)
from lbg_runtime.broker.engine.changes import QueueJournal
from lbg_runtime.broker.engine.claims import Claims
from lbg_runtime.broker.engine.deliveries import DeliveryIds
from lbg_runtime.broker.engine.effects import ActivityChanged, ClientId, Effect, FlowId, Published
from lbg_runtime.broker.engine.feeder import Feeder
from lbg_runtime.broker.engine.flow import BrowserFlow, ConsumerFlow, Flow, Wants
from lbg_runtime.broker.engine.intake import Obstacle, obstacle_to
from lbg_runtime.broker.engine.lines.group_line import GroupLine
from lbg_runtime.broker.engine.lines.kinds import kind_of, make_line
from lbg_runtime.broker.engine.lines.parted_line import PartedLine
from lbg_runtime.broker.engine.lines.partition_line import PartitionLine
from lbg_runtime.broker.engine.rates import Meter
from lbg_runtime.broker.engine.replay.progress import ReplayProgress
from lbg_runtime.broker.engine.retention import Bury, Retention
from lbg_runtime.broker.engine.settings import AccessType, Permission, QueueSettings, RejectOnDiscard
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.broker.engine.surroundings import Surroundings
from lbg_runtime.broker.engine.traits import HIGHEST_PRIORITY
from lbg_runtime.broker.engine.waiting import NO_DELIVERY, SpooledMessage
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome


class Queue:
    """Called by the engine. Every method that can make a message deliverable delivers before it returns.

    The rule of re-binds. A client whose connection broke keeps what it received and settles it by the old ids after its
    handle is bound again; its library drops those ids if they are sent again, and shows the application a duplicate if
    the messages come under new ids. So the old deliveries of such a client stay valid only as long as all of them wait
    here: the first that is delivered to someone else ends the claim on all of them, permanently.

    - Bound again and fed: the messages count as unsettled on the new flow under their old ids and are not sent.
    - Bound again as a standby: it may still settle them, until one of them is delivered elsewhere.
    - All of them, because the client assumes the earlier ones settled too: if the later ones were removed at its word,
      the settled messages of a key would no longer be a prefix (L3; found by the simulation, tests/sim has the story).
    - A message that was delivered elsewhere and came back goes to the fed flow under a new id, flagged, even if that
      flow's client had it before. Giving such a message back to its old id would save that duplicate, but the client
      may have settled the old id while it had no effect, and would never do so again: the message would be stuck.
    - So a settlement counts only from the client that got the message last. Nothing is lost; messages that a second
      client got may be handled twice. A settlement lost with the connection leaves its message unsettled until the
      handle is gone: the broker cannot tell it from one that is still to come.
    """

    def __init__(
        self,
        name: QueueName,
        settings: QueueSettings,
        ids: DeliveryIds,
        temporary_of: ClientId | None,
        journal: QueueJournal | None,
        surroundings: Surroundings,
        bury: Bury,
    ) -> None:
        self.name = name
        self.settings = settings
        self.temporary_of = temporary_of
        """The only connection that may bind the queue; None for a durable queue."""
        self._admission = Admission()
        self._discards = Counter[Obstacle]()
        self._ids = ids
        self.journal = journal
        """Takes note of what outlives the broker; None if nothing does."""
        self.spool = Spool(journal)
        """This, `claims` and `retention` are also what an earlier life of the broker is restored to."""
        self.replays = ReplayProgress(self.spool)
        self._surroundings = surroundings
        self._line = make_line(self.settings, self.spool, self._surroundings)
        self._rank()
        self.claims = Claims(self.spool, journal)
        self.retention = Retention(settings, self.spool, self.claims, self._surroundings, bury, self._feed)
        self._browsers: dict[FlowId, BrowserFlow] = {}
        timetable = self._surroundings.timetable
        self._meter = Meter(self._surroundings)
        self._uncounted = 0
        """Messages spooled before the counts were cleared."""
        self._feeder = Feeder(self.spool, self.claims, self.retention, ids, self._meter, partial(timetable.set, self))
        self._feeder.use(self._line)

    # -- spooling

    @property
    def depth(self) -> int:
        """Messages spooled, unacknowledged ones included."""
        return self.spool.depth

    @property
    def flows(self) -> tuple[Flow, ...]:
        """Consumer flows in the order of the bind line, then browsers."""
        return (*self._line.flows.values(), *self._browsers.values())

    def obstacle_to(self, message: Published, before_bytes: int = 0) -> Obstacle | None:
        """Why the queue cannot take the message behind others of this size; None if it can."""
        return obstacle_to(message, self.settings, self.spool.spooled_bytes + before_bytes)

    def count_discard(self, obstacle: Obstacle) -> None:
        """Count a message that the queue did not take because of this."""
        self._discards[obstacle] += 1

    @property
    def tells_publishers(self) -> bool:
        """Whether a publisher is told of a message that the queue cannot take; else the message is silently dropped."""
        when = self.settings.reject_on_discard
        return when is RejectOnDiscard.ALWAYS or (
            when is RejectOnDiscard.WHEN_QUEUE_ENABLED and self.settings.ingress_enabled
        )

    def add(self, message: Published, publisher: str = "") -> list[Effect]:
        """Spool a message to which there is no obstacle (`obstacle_to`); `publisher` is its sender, if known."""
        # Only groups care who sent it.
        if publisher and isinstance(self._line, GroupLine):
            message = replace(message, publisher=publisher)
        spooled = self.spool.add(message)
        self._meter.received(message)
        if self.retention.is_watching:
            self.retention.came(spooled)
        return self._feed()

    def delete_messages(self, sequences: Container[int] | None) -> list[Effect]:
        """Remove messages permanently, no matter who holds them: those in these places, or all."""
        chosen = [m for m in self.spool.messages() if sequences is None or m.sequence in sequences]
        self._take_from_holders(chosen)
        self._end(chosen, Outcome.ACCEPTED)
        return self._feed()

    # -- flows

    def allows(self, username: str, wanted: Permission) -> bool:
        """Whether a client username may do this with the queue."""
        return allows(self.settings, username, wanted)

    def admit(self, username: str, *, browser: bool) -> None:
        """Count a bind, and refuse it as `Admission.check` does."""
        bound_count = len(self._line.flows)
        self._admission.check(self.settings, username, browser=browser, bound_count=bound_count)

    def take_admission_back(self) -> None:
        """Count a bind that was admitted as refused."""
        self._admission.take_back()

    @property
    def has_consumers(self) -> bool:
        """Whether a consumer flow is bound: on an exclusive queue, one that comes now stands by."""
        return bool(self._line.flows)

    def bind(
        self,
        flow: FlowId,
        client: ClientId,
        client_name: str,
        last_received_id: DeliveryId | None,
        wants: Wants,
        partition_group: int | None,
    ) -> ConsumerFlow:
        """Put a consumer that was admitted at the end of the line, its window closed."""
        bound = ConsumerFlow(
            flow,
            client,
            client_name,
            self.settings.max_unacked_per_flow,
            last_received_id or DeliveryId(0),
            self.journal,
            wants,
        )
        bound.partition_group = partition_group
        if last_received_id is None:
            # A handle that lives on names its partition group, even if it never received anything.
            if partition_group is None:
                self.claims.forget(client_name)
        else:
            self._ids.skip_to(last_received_id)
            bound.remembered_as = self.claims.resume(client_name, last_received_id)
        self._line.join(bound)
        if self._line.is_fed(bound):
            self.claims.take_over(bound)
        if isinstance(self._line, PartedLine):
            self._line.keep_held(bound)
            self._surroundings.timetable.set(self, self._line.deadline_ms)
        return bound

    def is_fed(self, flow: ConsumerFlow) -> bool:
        """Whether the queue feeds this flow."""
        return self._line.is_fed(flow)

    def rename(self, flow: Flow, client_name: str) -> None:
        """The client of a flow has another name."""
        flow.client_name = client_name
        if isinstance(flow, ConsumerFlow):
            self.claims.rename(flow)

    def browse(self, flow: FlowId, client: ClientId, client_name: str, wants: Wants) -> BrowserFlow:
        """Bind a browser that was admitted, its window closed; it takes no part in the election."""
        browser = BrowserFlow(flow, client, client_name, self.spool.first_sequence, wants)
        self._browsers[flow] = browser
        return browser

    def release(self, flow: Flow) -> list[Effect]:
        """End a flow whose handle is given up: nothing of it is remembered."""
        if isinstance(flow, BrowserFlow):
            del self._browsers[flow.id]
            return []
        was_fed = self._leave(flow)
        self.claims.give_up(flow)
        return self._elect(was_fed) + self._feed()

    def lose(self, flows: Sequence[Flow]) -> list[Effect]:
        """End the flows of a client whose connection broke: their handles may be bound again."""
        was_fed = False
        for flow in flows:
            if isinstance(flow, BrowserFlow):
                del self._browsers[flow.id]
                continue
            was_fed |= self._leave(flow)
            self.claims.remember(flow)
        return self._elect(was_fed) + self._feed()

    def change(self, settings: QueueSettings) -> list[Effect]:
        """Change the settings; the access type only while no flow is bound."""
        before, self.settings = self.settings, settings
        if kind_of(settings) != kind_of(before):
            self._line = make_line(self.settings, self.spool, self._surroundings)
            self._feeder.use(self._line)
        elif isinstance(self._line, PartitionLine):
            self._line.change(settings)
        self._rank()
        self.retention.change(settings)
        if self.journal is not None:
            self.journal.configured(settings)
        for flow in self._line.flows.values():
            flow.max_unacked = settings.max_unacked_per_flow
            self._line.room_made(flow)
        return self._feed()

    def end_flows(self) -> tuple[Flow, ...]:
        """End all flows at once, so that none is elected: their handles are dead, their messages wait here again."""
        ended = self.flows
        self._browsers.clear()
        for flow in self._line.flows.values():
            self._take_back(flow)
            self.claims.give_up(flow)
        self._line = make_line(self.settings, self.spool, self._surroundings)
        self._feeder.use(self._line)
        self._surroundings.timetable.set(self, None)
        return ended

    def deleted(self) -> None:
        """The queue and its messages are gone, and its timers with them. Its flows are ended separately."""
        self.retention.retire()
        self._surroundings.timetable.set(self, None)
        if self.journal is not None:
            self.journal.deleted()

    def open_window(self, flow: Flow, received_up_to: DeliveryId, window: int) -> list[Effect]:
        """Move a flow's window and send what it lets through."""
        flow.window.move(received_up_to, window)
        if isinstance(flow, BrowserFlow):
            return self._feeder.feed_browser(flow)
        self._line.room_made(flow)
        return self._feed()

    # -- settlement

    def settle(self, flow: Flow, ranges: Iterable[SettledRange]) -> list[Effect]:
        """End deliveries of a flow by id; ids that are not, or no longer, its own have no effect."""
        effects: list[Effect] = []
        for settled in ranges:
            effects += self._end(self._take_settled(flow, settled), settled.outcome)
        if isinstance(flow, ConsumerFlow):
            self._line.room_made(flow)
        return effects + self._feed()

    def status(self, subscriptions: tuple[str, ...]) -> QueueStatus:
        """What an administrator sees of it now."""
        flows = tuple(self.flow_status(flow) for flow in self.flows)
        exclusive = self.settings.access_type is AccessType.EXCLUSIVE
        deaths = self.retention.deaths
        return QueueStatus(
            name=self.name,
            settings=self.settings,
            flows=flows,
            active_flow=next((f.flow for f in flows if exclusive and f.active and not f.browser), None),
            depth=self.spool.depth,
            spooled_bytes=self.spool.spooled_bytes,
            unacked_count=self.spool.unacked_count,
            deaths=DeathCounts(deaths.buried.copy(), deaths.discarded.copy()),
            discards=self._discards.copy(),
            redelivered_count=self._feeder.redelivered_count,
            rates=self._meter.rates(),
            first_sequence=self.spool.first_sequence,
            last_sequence=self.spool.last_sequence,
            spooled_count=self.spool.last_sequence - self._uncounted,
            binds=replace(self._admission.counts),
            subscriptions=subscriptions,
            partitions=self._line.statuses() if isinstance(self._line, PartitionLine) else (),
            rebalance=self._line.rebalance_state if isinstance(self._line, PartitionLine) else None,
        )

    def clear_counts(self) -> None:
        """Count anew from now on, except replays."""
        self._uncounted = self.spool.last_sequence
        self._admission.counts = BindCounts()
        self._discards.clear()
        self.retention.deaths = DeathCounts()
        self._feeder.redelivered_count = 0

    def groups(self) -> tuple[GroupStatus, ...]:
        """The message groups pinned now; none if the queue does not group."""
        return self._line.statuses() if isinstance(self._line, GroupLine) else ()

    def unpin_group(self, group: str | None) -> list[Effect]:
        """Choose a new flow for the next message of a group, or of every group."""
        if isinstance(self._line, GroupLine):
            self._line.unpin(group)
        return self._feed()

    def messages(self, behind: int) -> Iterator[MessageStatus]:
        """The spooled messages behind a place, by place, made lazily: a caller that wants the first need not wait for
        the last."""
        return (
            MessageStatus(m.sequence, m.message, is_undelivered=m.delivery_id == NO_DELIVERY)
            for m in self.spool.messages_behind(behind)
        )

    def flow_status(self, flow: Flow) -> FlowStatus:
        """What an administrator sees of one of its flows now."""
        browser = isinstance(flow, BrowserFlow)
        return FlowStatus(
            flow=flow.id,
            client_name=flow.client_name,
            active=isinstance(flow, BrowserFlow) or self._line.is_fed(flow),
            browser=browser,
            window_size=flow.window.size,
            used_window_size=flow.window.used,
            unacked_count=0 if isinstance(flow, BrowserFlow) else len(flow.unsettled),
            redelivered_count=0 if isinstance(flow, BrowserFlow) else flow.redelivered_count,
        )

    # -- election and delivery

    def _leave(self, flow: ConsumerFlow) -> bool:
        """Take a flow out of the line, and its messages back; return whether it was fed."""
        was_fed = self._line.is_fed(flow)
        self._line.leave(flow)
        self._take_back(flow)
        return was_fed

    def _take_back(self, flow: ConsumerFlow) -> None:
        for _, message in flow.unsettled:
            self.retention.put_back(message)

    def _elect(self, was_fed: bool) -> list[Effect]:
        """If a fed flow has left an exclusive queue, tell the next in line that it is fed."""
        if not was_fed or self.settings.access_type is not AccessType.EXCLUSIVE:
            return []
        first = next(iter(self._line.flows.values()), None)
        if first is None:
            return []
        self.claims.take_over(first)
        return [ActivityChanged(first.client, first.id, active=True)]

    def _feed(self) -> list[Effect]:
        """Send all waiting messages that have somewhere to go."""
        return self._feeder.feed(self._browsers)

    def on_deadline(self) -> list[Effect]:
        """A deadline of the queue has come."""
        if isinstance(self._line, PartedLine):
            self._line.on_deadline()
        return self._feed()

    def _take_settled(self, flow: Flow, settled: SettledRange) -> list[SpooledMessage]:
        if isinstance(flow, BrowserFlow):
            if settled.outcome is Outcome.FAILED:
                return []  # It was only shown, so there is nothing to put back.
            shown = flow.shown.take(settled.first, settled.last)
            self._take_from_holders(shown)
            return shown
        taken = flow.unsettled.take(settled.first, settled.last)
        return taken + self.claims.take_settled(flow, settled.first, settled.last)

    def _take_from_holders(self, messages: Sequence[SpooledMessage]) -> None:
        """A browser removes messages that consumers may hold, which then have room again."""
        for message in messages:
            holder = None if message.flow is None else self._line.flows.get(message.flow)
            if holder is not None:
                holder.unsettled.discard(message.delivery_id)
                self._line.room_made(holder)

    def _end(self, messages: Sequence[SpooledMessage], outcome: Outcome) -> list[Effect]:
        if outcome is Outcome.ACCEPTED:
            self.claims.end_on(messages)
            self.spool.remove(messages)
            return []
        # What a standby failed waits already.
        end = self.retention.fail if outcome is Outcome.FAILED else self.retention.reject
        return [effect for message in messages for effect in end(message)]

    def _rank(self) -> None:
        traits_of = self._surroundings.traits_of
        respects = self.settings.respect_priority
        self.spool.rank_by((lambda message: HIGHEST_PRIORITY - traits_of(message).priority) if respects else None)
