"""Decides which messages of a queue go out next, and to whom."""

from collections.abc import Callable, Mapping, Sequence

from lbg_runtime.broker.engine.claims import Claims
from lbg_runtime.broker.engine.deliveries import DeliveryIds
from lbg_runtime.broker.engine.effects import Effect, FlowId
from lbg_runtime.broker.engine.flow import BrowserFlow, ConsumerFlow
from lbg_runtime.broker.engine.lines.bind_line import BindLine
from lbg_runtime.broker.engine.lines.parted_line import PartedLine
from lbg_runtime.broker.engine.rates import Meter
from lbg_runtime.broker.engine.retention import Retention
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.broker.engine.waiting import SpooledMessage


class Feeder:
    """Part of one queue, called by it: takes messages out of the spool and gives them to flows with room."""

    def __init__(
        self,
        spool: Spool,
        claims: Claims,
        retention: Retention,
        ids: DeliveryIds,
        meter: Meter,
        note_deadline: Callable[[int | None], None],
    ) -> None:
        self.redelivered_count = 0
        self._line: BindLine | None = None
        self._parted: PartedLine | None = None
        self._spool = spool
        self._claims = claims
        self._retention = retention
        self._ids = ids
        self._meter = meter
        self._note_deadline = note_deadline
        self._looks_anew = False
        """Whether messages came back while no flow was selective, of which nobody took note."""
        spool.on_return = self._look_again

    def use(self, line: BindLine | PartedLine) -> None:
        """Feed these flows from now on."""
        # Distinguished once: doing so per message would be a good part of its cost.
        self._parted, self._line = (line, None) if isinstance(line, PartedLine) else (None, line)

    def feed(self, browsers: Mapping[FlowId, BrowserFlow]) -> list[Effect]:
        """Send all waiting messages that have somewhere to go."""
        effects: list[Effect] = []
        line = self._line
        if line is None:
            if self._parted is not None:
                self._feed_parts(self._parted, effects)
        elif line.selective_count:
            self._feed_selected(line, effects)
        else:
            while waiting_count := self._spool.waiting_count:
                flow = line.next_with_room()
                if flow is None:
                    break
                # One at a time if messages may die on their way out: burying one is a call to another queue, and
                # meanwhile nothing may be out of the spool that this queue's flows do not know of.
                is_one = self._retention.is_watching or not line.feeds_one
                self._send(flow, self._spool.take_next(1 if is_one else min(waiting_count, flow.room)), effects)
        if browsers:
            for browser in browsers.values():
                effects += self.feed_browser(browser)
        return effects

    def feed_browser(self, browser: BrowserFlow) -> list[Effect]:
        """Show a browser the messages that it has not seen and has room for."""
        effects: list[Effect] = []
        while browser.window.room > 0:
            message = self._spool.next_from(browser.next_sequence)
            if message is None:
                browser.next_sequence = self._spool.last_sequence + 1
                break
            if browser.wants(message.message):
                effects.append(browser.show(self._ids.take(1)[0], message))
            else:
                browser.next_sequence = message.sequence + 1
        # Messages settled by consumers stay in the browser's map until this sweep.
        if len(browser.shown) > 2 * self._spool.depth + 1024:
            browser.shown.drop_gone()
        return effects

    def _feed_parts(self, line: PartedLine, effects: list[Effect]) -> None:
        """The same for a queue whose messages belong to parts."""
        for loss in line.settle_losses():
            holder = line.flows.get(loss.flow)
            if holder is None:
                self._claims.end(loss.flow)
                continue
            for message in holder.unsettled.of_part(loss.part):
                holder.unsettled.discard(message.delivery_id)
                # In a later life of the broker too: the client may settle it now, without effect, and never again.
                self._spool.give_back(message)
                self._retention.put_back(message)
            line.room_made(holder)
        while (found := line.next_delivery()) is not None:
            flow, message = found
            if not self._retention.is_dead(message):
                line.note_sent(flow, message)
            self._send(flow, (message,), effects)
        self._note_deadline(line.deadline_ms)

    def _feed_selected(self, line: BindLine, effects: list[Effect]) -> None:
        """The same when a flow wants only some of the messages: each gets the first waiting one that it wants."""
        if self._looks_anew:
            self._looks_anew = False
            for flow in line.flows.values():
                flow.next_sequence = 0
        asked: set[FlowId] = set()
        # Asked no more often than there are flows, or the last one would lose its turn.
        while len(asked) < len(line.flows):
            chosen = line.next_with_room()
            if chosen is None or chosen.id in asked:
                break
            message = self._first_for(chosen)
            if message is None:
                asked.add(chosen.id)
                continue
            self._spool.hold(message)
            self._send(chosen, (message,), effects)
            asked.clear()

    def _first_for(self, flow: ConsumerFlow) -> SpooledMessage | None:
        if not flow.next_sequence:
            # Not for each message: the first place is found behind those that are gone.
            flow.next_sequence = self._spool.first_sequence
        while (message := self._spool.next_from(flow.next_sequence)) is not None:
            flow.next_sequence = message.sequence + 1
            if message.is_waiting and flow.wants(message.message):
                return message
        return None

    def _look_again(self, sequence: int) -> None:
        """A message waits again that flows have looked at: let them look from there, and no further back, as each look
        reads a message that they do not want."""
        line = self._line
        if line is None or not line.selective_count:
            self._looks_anew = True
            return
        for flow in line.flows.values():
            flow.next_sequence = min(flow.next_sequence, sequence)

    def _send(self, flow: ConsumerFlow, messages: Sequence[SpooledMessage], effects: list[Effect]) -> None:
        """Deliver messages taken out of the spool, for all of which there is room; or, if messages may die, bury the
        one there is."""
        if self._retention.is_watching and self._retention.is_dead(messages[0]):
            effects += self._retention.end_dead(messages[0])
            return
        # All that the handle held, not this message alone: its client settles what follows in the belief that this one
        # is settled too, and the settled messages of a key would no longer be a prefix (L3).
        self._claims.end_all_of_holders(messages)
        self._meter.sent(messages)
        for run in flow.deliver(self._ids.take(len(messages)), messages):
            effects.append(run)
            if run.redelivered:
                self.redelivered_count += len(run.messages)
                flow.redelivered_count += len(run.messages)
