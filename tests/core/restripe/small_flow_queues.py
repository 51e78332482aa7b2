"""The broker and the clients of a small group that is re-striped with its flow machines: what steps of `SmallFlows` are
made of. Each queue feeds the first of those who are bound to it; what was sent and is not settled is sent again."""

from typing import Self

from lbg_runtime.core.flow import events
from lbg_runtime.core.restripe.gate import Probe
from lbg_runtime.model.ids import DeliveryId, Epoch
from lbg_runtime.model.message import Delivery
from tests.core.histories import Breach
from tests.core.restripe.small_flow_parts import Flow, FlowMember, flow_member_twin, flow_twin
from tests.core.restripe.small_stripe_parts import Entry, Fate, Setup, Stage
from tests.core.restripe.small_stripes import SmallStripes


class FlowQueues(SmallStripes):
    """A state, and what broker and clients do in it."""

    members: list[FlowMember]  # type: ignore[assignment]

    def __init__(self, setup: Setup) -> None:
        self.now_ms = 0
        self.line_up: dict[int, tuple[int, ...]] = {}
        """By queue, members whose flow is bound, the one that is fed first."""
        self.unfed: frozenset[int] = frozenset()
        """Queues of which the broker feeds nobody just now."""
        super().__init__(setup)

    def _begin(self) -> None:
        self.members = [self._new_member(who) for who in range(self.setup.members)]

    def _new_member(self, who: int) -> FlowMember:
        return FlowMember(who, self.setup.members, self.setup.counts[0], self.shape, self.now_ms)

    @property
    def handles(self) -> dict[int, int]:  # type: ignore[override]
        """Who is first in line, by queue."""
        return {queue: line[0] for queue, line in self.line_up.items() if line}

    def twin(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.queues, made.topics, made.published = self.queues.copy(), self.topics.copy(), self.published.copy()
        made.members, made.fates, made.line_up = self.members[:], self.fates.copy(), self.line_up.copy()
        made.own = set()
        return made

    def _member(self, who: int) -> FlowMember:  # type: ignore[override]
        if -1 - who not in self.own:
            self.own.add(-1 - who)
            self.members[who] = flow_member_twin(self.members[who])
        return self.members[who]

    def _flow(self, who: int, queue: int) -> Flow:
        flows = self._member(who).flows
        if (who, queue) not in self.own:
            self.own.add((who, queue))
            flows[queue] = flow_twin(flows[queue])
        return flows[queue]

    # -- the broker

    def _line(self, queue: int, *line: int) -> None:
        """Who waits for the queue, from now on."""
        self.line_up[queue] = line
        if line and queue not in self.unfed and not self.members[line[0]].flows[queue].is_told_active:
            flow = self._flow(line[0], queue)
            flow.is_told_active = True
            flow.tell(events.FlowActive(flow.machine.epoch))

    def _join(self, who: int, queue: int) -> None:
        self._line(queue, *self.line_up.get(queue, ()), who)

    def _drop_out(self, who: int, queue: int) -> None:
        if who in self.line_up.get(queue, ()):
            self._line(queue, *(each for each in self.line_up[queue] if each != who))

    def _stop_feeding(self, queue: int) -> None:
        """What was settled and has not arrived counts no more, and others have their turn."""
        self.is_disturbed = True
        first, *others = self.line_up[queue]
        self.unfed |= {queue}
        self._flow(first, queue).held = ()
        self._tell_inactive(first, queue)
        self._line(queue, *others, first)

    def _feed(self, queue: int) -> None:
        self.unfed -= {queue}
        self._line(queue, *self.line_up.get(queue, ()))

    def _next_to_send(self, who: int, queue: int) -> Entry | None:
        flow = self.members[who].flows[queue]
        if not flow.intake or queue in self.unfed or self.line_up.get(queue, ())[:1] != (who,):
            return None
        return next((each for each in self.queues[queue] if not flow.holds(each.id)), None)

    def _send(self, who: int, queue: int) -> None:
        entry = self._next_to_send(who, queue)
        assert entry is not None
        for other, member in enumerate(self.members):
            # Its client may settle nothing any more by what it got before.
            if queue in member.flows and member.flows[queue].holds(entry.id):
                self._flow(other, queue).held = ()
        flow = self._flow(who, queue)
        delivery_id = DeliveryId(8 * entry.id + flow.binds)
        flow.held = (*flow.held, delivery_id)
        name = flow.machine.queue
        flow.tell(events.MessageReceived(Delivery(name, flow.machine.epoch, delivery_id, entry.message, False, 0)))

    def _settle(self, who: int, queue: int) -> None:  # type: ignore[override]
        """The broker takes the next settlement, or what is said behind it."""
        flow = self._flow(who, queue)
        first, flow.line = flow.line[0], flow.line[1:]
        if isinstance(first, Probe):
            flow.tell(events.SettlementsReached(flow.machine.epoch, first.number))
            return
        if first.id not in flow.held:
            return
        flow.held = tuple(each for each in flow.held if each != first.id)
        [entry] = [each for each in self.queues[queue] if each.id == first.id // 8]
        self.queues[queue] = tuple(each for each in self.queues[queue] if each is not entry)
        if not isinstance(message := entry.content, tuple):
            return
        if first.is_handled:
            key, number = message
            if any(self.fates[key, before].stage is not Stage.SETTLED for before in range(1, number)):
                raise Breach(f"{message} is settled before another of its key (L3)")
            self.fates[message] = Fate(queue, Stage.SETTLED)
        is_settled = message in self.fates and self.fates[message].stage is Stage.SETTLED
        if not is_settled and not any(each.content == message for lie in self.queues.values() for each in lie):
            raise Breach(f"{message} is lost")

    # -- the client

    def _tell_inactive(self, who: int, queue: int) -> None:
        flow = self._flow(who, queue)
        if flow.is_told_active:
            flow.is_told_active = False
            flow.tell(events.FlowInactive(flow.machine.epoch))

    def _bind(self, who: int, queue: int) -> None:  # type: ignore[override]
        if queue in self.queues:
            self._flow(who, queue).begin_handle()
            self._join(who, queue)
        else:
            self._refuse(who, queue)

    def _bind_returns(self, who: int, queue: int) -> None:
        flow = self._flow(who, queue)
        flow.task = ""
        flow.tell(events.BindSucceeded(flow.machine.epoch))

    def _bind_again(self, who: int, queue: int) -> None:
        if queue in self.queues:
            flow = self._flow(who, queue)
            flow.state, flow.binds = "bound", flow.binds + 1
            self._join(who, queue)
        else:
            self._end_flow(who, queue)

    def _refuse(self, who: int, queue: int) -> None:
        flow = self._flow(who, queue)
        self._let_go(who, queue)
        flow.task = ""
        flow.tell(events.BindRefused(flow.machine.epoch, "no", permanent=False))

    def _end_flow(self, who: int, queue: int) -> None:
        self.is_disturbed = True
        flow = self._flow(who, queue)
        if flow.task == "bind":
            self._refuse(who, queue)
            return
        # What is asked over the connection comes back.
        probes = [each.number for each in flow.line if isinstance(each, Probe)]
        self._let_go(who, queue)
        flow.tell(events.FlowDown(flow.machine.epoch, "gone"))
        for number in probes:
            flow.tell(events.SettlementsReached(flow.machine.epoch, number))

    def _let_go(self, who: int, queue: int) -> None:
        flow = self._flow(who, queue)
        flow.state, flow.line, flow.held = "dead", (), ()
        self._drop_out(who, queue)

    def _unbind(self, who: int, queue: int) -> None:  # type: ignore[override]
        flow = self._flow(who, queue)
        flow.task, epoch = "", flow.machine.epoch
        if is_confirmed := flow.state == "bound" and self.members[who].link == "up":
            while flow.line:
                self._settle(who, queue)
        self._let_go(who, queue)
        flow.tell(events.UnbindFinished(epoch, is_confirmed))

    def _cut(self, who: int) -> None:
        self.is_disturbed = True
        self._member(who).link = "broken"
        for queue in self.members[who].flows:
            flow = self._flow(who, queue)
            flow.line = tuple(each for each in flow.line if not isinstance(each, Probe))
            self._drop_out(who, queue)

    def _notice(self, who: int) -> None:
        member = self._member(who)
        member.link, member.probes = "down", ()
        for queue in member.flows:
            flow = self._flow(who, queue)
            if flow.task == "bind":
                self._refuse(who, queue)
            elif flow.state == "bound":
                flow.state = "away"
                self._tell_inactive(who, queue)
                if flow.task == "unbind":
                    self._unbind(who, queue)

    def _reconnect(self, who: int) -> None:
        member = self._member(who)
        member.link = "up"
        for queue, epoch, number in member.probes:
            self._flow(who, queue).tell(events.SettlementsReached(Epoch(epoch), number))
        member.probes = ()

    def _drop_handles(self, who: int) -> None:
        self.is_disturbed = True
        for queue in self.members[who].flows:
            self._drop_out(who, queue)

    def _kill(self, who: int) -> None:
        self._drop_handles(who)
        self.members[who] = self._new_member(who)
        self.own |= {-1 - who, *((who, queue) for queue in self.members[who].flows)}
