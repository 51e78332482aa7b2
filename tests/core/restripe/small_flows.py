"""A small group that is re-striped, with flow machines: gates, lanes and handles as members have them.

As `SmallStripes`, but what stands between queues and handlers is real as well: machines that bind, are fed, drain and
give their handles up, and the lanes that all queues of a member share. The broker, the client and the order in which
commands are carried out are those of tests/core/flow/small_queue.py. Steps check the laws as well.

A tick of time can come before any other step that is not `at_once`, so what takes time may be early or late.
"""

from collections.abc import Sequence

from lbg_runtime.core.flow import commands as orders
from lbg_runtime.core.flow import events
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.lanes import Lane
from lbg_runtime.core.restripe.gate import Probe
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome
from tests.core.flow.small_parts import REQUESTS, TICK_MS
from tests.core.histories import Breach, Step
from tests.core.restripe import small_flow_parts
from tests.core.restripe.small_flow_parts import AWAY, Flow, FlowMember
from tests.core.restripe.small_flow_queues import FlowQueues
from tests.core.restripe.small_stripe_parts import Fate, Settled, Setup, Stage

BINDING = frozenset({"deadline", "bind", "bind returns", "take"})


class SmallFlows(FlowQueues):
    """A state. `steps` says what can happen in it, `take` makes it happen."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        while steps := [step for step in self.regular_steps() if step[0] in BINDING]:
            self.take(steps[0])

    def mark(self) -> int:
        """See `small_flow_parts.mark`."""
        return small_flow_parts.mark(self)

    # -- what can happen

    def regular_steps(self) -> list[Step]:
        found: list[Step] = [("feed", queue) for queue in self.unfed]
        for who, member in enumerate(self.members):
            for queue, flow in member.flows.items():
                is_up, is_bound = member.link == "up", flow.state == "bound"
                could = {
                    "take": bool(flow.inbox),
                    "deadline": _is_due(flow.machine.deadline_ms, self.now_ms),
                    "bind": is_up and flow.task == "bind" and not flow.state,
                    "bind returns": flow.task == "bind" and bool(flow.state),
                    "bind again": is_up and flow.state == "away",
                    "settle": is_up and is_bound and bool(flow.line),
                    "unbind": is_up and flow.task == "unbind",
                    "send": self._next_to_send(who, queue) is not None,
                    "give": self._is_to_give(member, queue),
                }
                found += [(name, who, queue) for name, is_possible in could.items() if is_possible]
            could = {
                "retry": _is_due(member.lanes.next_delayed_ms(), self.now_ms),
                "start": bool(member.lanes.ready),
                "notice": member.link == "broken",
                "reconnect": member.link == "down",
                "say": not member.is_away and self._is_news(member.book.report(), who),
            }
            found += [(name, who) for name, is_possible in could.items() if is_possible]
            found += [("end", who, key) for key in member.running]
        if self.intent is not None:
            found.append(("conduct",))
        found += [("publish", key) for key, count in self.setup.messages.items() if self.published[key] < count]
        return found or ([("tick",)] if self._waits_for_time() else [])

    def steps(self) -> list[Step]:
        found = super().steps()
        if found and found[0][0] not in self.setup.at_once and ("tick",) not in found and self._waits_for_time():
            found.append(("tick",))
        for name in dict.fromkeys(self.may_happen):
            if name == "stop feeding":
                found += [(name, queue) for queue in self.handles if queue not in self.unfed]
            for who, member in enumerate(self.members):
                if (
                    name == "suspend"
                    or (name == "leave" and len(self.members) > 1)
                    or (name == "cut" and not member.is_away)
                ):
                    found.append((name, who))
                if name in ("fail", "give back"):
                    found += [(name, who, key) for key in member.running]
                for queue, flow in member.flows.items():
                    could = {
                        "end flow": who in self.line_up.get(queue, ()),
                        "refuse": member.link == "up" and flow.task == "bind",
                        "hand back": flow.machine.state is FlowState.ACTIVE,
                        "step aside": flow.machine.state is not FlowState.ACTIVE,
                    }
                    if could.get(name):
                        found.append((name, who, queue))
        return found

    def _is_to_give(self, member: FlowMember, queue: int) -> bool:
        flow = member.flows[queue]
        is_asked = any(isinstance(each, events.HandBackRequested) for each in flow.inbox)
        return flow.place == AWAY and flow.machine.state is FlowState.ACTIVE and not is_asked

    def _waits_for_time(self) -> bool:
        moments: list[int | None] = []
        for member in self.members:
            for flow in member.flows.values():
                plan, release = flow.machine._plan, flow.machine._release
                moments += [plan.bind_at_ms, plan._aside_until_ms]
                moments += [release.quiet_at_ms, release.drain_until_ms, release.look_at_ms] if release else []
            moments.append(member.lanes.next_delayed_ms())
        return any(moment is not None and moment > self.now_ms for moment in moments)

    @property
    def is_at_rest(self) -> bool:
        flows = [flow for member in self.members for flow in member.flows.values()]
        return super().is_at_rest and not any(flow.inbox or flow.unanswered for flow in flows)

    # -- what happens

    def take(self, step: Step) -> None:
        super().take(step)
        for who, member in enumerate(self.members):
            for queue, flow in member.flows.items():
                lives = flow.machine.state is not FlowState.UNBOUND
                in_flight = sum(each.epoch == flow.machine.epoch for each in flow.unanswered) if lives else 0
                if flow.machine.in_flight != in_flight:
                    raise Breach(f"{who} counts {flow.machine.in_flight} of {queue} as in flight, and has {in_flight}")

    def _tick(self) -> None:
        self.now_ms += TICK_MS

    # -- the flow runner

    def _take(self, who: int, queue: int) -> None:
        flow, lanes = self._flow(who, queue), self._member(who).lanes
        event, flow.inbox = flow.inbox[0], flow.inbox[1:]
        machine, due = flow.machine, None
        match event:
            case events.MessageReceived(delivery) if machine.admit(delivery):
                self._obey_machine(who, queue, [orders.Dispatch(delivery)])
                return
            case events.HandlingStalled(epoch) if not lanes.is_stalled(machine.queue, epoch):
                return
            case events.HandlingFinished(epoch, delivery_id, outcome):
                gone = epoch, delivery_id
                flow.unanswered = tuple(each for each in flow.unanswered if (each.epoch, each.delivery_id) != gone)
                if outcome is not None and epoch == machine.epoch and machine.state is not FlowState.UNBOUND:
                    due = delivery_id
                if outcome is not None and machine.accept(epoch, delivery_id):
                    self._obey_machine(who, queue, [orders.Settle(epoch, delivery_id, outcome)], due)
                    return
            case events.FlowInactive(epoch) | events.FlowDown(epoch) if epoch == machine.epoch:
                is_down = isinstance(event, events.FlowDown)
                flow.is_lost |= is_down or machine.state in (FlowState.ACTIVE, FlowState.DRAINING)
        self._obey_machine(who, queue, machine.handle(event, self.now_ms), due)

    def _deadline(self, who: int, queue: int) -> None:
        self._obey_machine(who, queue, self._flow(who, queue).machine.on_deadline(self.now_ms))

    def _obey_machine(
        self, who: int, queue: int, commands: Sequence[orders.Command], due: DeliveryId | None = None
    ) -> None:
        """`due`: what was handled just before, and is to be settled."""
        flow, member = self._flow(who, queue), self._member(who)
        settled = [command.delivery_id for command in commands if isinstance(command, orders.Settle)]
        dispatched = {each.delivery_id for each in flow.unanswered if each.epoch == flow.machine.epoch}
        if (due is not None and due not in settled) or not dispatched.isdisjoint(settled):
            raise Breach(f"{settled} are settled where {due} is due (L4, L7, L8)")
        for command in commands:
            match command:
                case orders.Bind(epoch):
                    if flow.task or flow.state not in ("", "dead"):
                        raise Breach(f"epoch {epoch} begins before the one before has ended")
                    flow.task, flow.state = "bind", ""
                case orders.Unbind(epoch):
                    if any(each.epoch == epoch for each in flow.unanswered):
                        raise Breach("a handle is given up while something of it is in flight (L5)")
                    flow.task = "unbind"
                    if flow.state == "away":
                        self._unbind(who, queue)
                case orders.StartIntake() | orders.StopIntake():
                    is_open, state = isinstance(command, orders.StartIntake), flow.machine.state
                    if flow.intake == is_open or (is_open and state is not FlowState.ACTIVE):
                        raise Breach(f"{command} in {state}, where intake is {flow.intake}")
                    flow.intake = is_open
                case orders.Dispatch(delivery):
                    self._dispatch_to(who, queue, delivery)
                case orders.ReturnUnstarted(epoch):
                    flow.is_halted = False
                    for delivery in member.lanes.return_unstarted(flow.machine.queue, epoch):
                        self._answer(who, delivery, None)
                case orders.LookForStall(epoch):
                    flow.tell(events.HandlingStalled(epoch))
                case orders.CancelHandling(epoch):
                    for key, running in list(member.running.items()):
                        if running in flow.unanswered and running.epoch == epoch:
                            self._end(who, key, "cancel")
                case orders.Settle(_, delivery_id):
                    if flow.state != "dead":
                        flow.line = (*flow.line, Settled(delivery_id, delivery_id == due))
                case orders.ProbeSettlements(epoch, number):
                    if member.link == "up":
                        flow.line = (*flow.line, Probe(number))
                    else:
                        member.probes = (*member.probes, (queue, epoch, number))
                case orders.TellStripes(news):
                    self._hear(who, queue, news)
                case orders.Note(name):
                    if name == "restripe_record_kept":
                        raise Breach(f"queue {queue} stops: {command}")

    # -- what the member knows

    def _hear(self, who: int, queue: int, news: StripesNews) -> None:
        if self._member(who).book.see(news, queue):
            self._spread(who)

    def _spread(self, who: int) -> None:
        member = self._member(who)
        for queue in range(len(member.flows), member.book.now.queue_total):
            member.flows[queue] = Flow(queue, self.shape, AWAY, self.now_ms)
            self.own.add((who, queue))
        for queue in member.flows:
            flow, place = self._flow(who, queue), member.place_on(queue)
            flow.tell(events.StripingLearned(member.book.now))
            if place != flow.place:
                flow.place = place
                flow.tell(events.PlaceChanged(place))

    def _give(self, who: int, queue: int) -> None:
        self._flow(who, queue).tell(events.HandBackRequested("queue-gone"))

    # -- the dispatcher and its handlers

    def _dispatch_to(self, who: int, queue: int, delivery: Delivery) -> None:
        flow = self._flow(who, queue)
        if flow.is_lost:
            raise Breach("something is dispatched after activity was lost (L4)")
        flow.unanswered = (*flow.unanswered, delivery)
        (key, _), delivery_id = self._message(delivery), delivery.delivery_id
        if self._member(who).lanes.offer(key, delivery) and not flow.machine.excuse(delivery.epoch, delivery_id):
            flow.tell(events.DeliveriesHeldUp(delivery.epoch, (delivery_id,)))

    def _message(self, delivery: Delivery) -> tuple[str, int]:
        return delivery.message.topic.rpartition("/")[2], int(delivery.message.payload)

    def _flow_of(self, who: int, delivery: Delivery) -> Flow:
        return self._flow(who, int(delivery.queue.rpartition("/")[2]))

    def _answer(self, who: int, delivery: Delivery, outcome: Outcome | None) -> None:
        self._flow_of(who, delivery).tell(events.HandlingFinished(delivery.epoch, delivery.delivery_id, outcome))

    def _retry(self, who: int) -> None:
        self._member(who).lanes.release_due(self.now_ms)

    def _start(self, who: int) -> None:  # type: ignore[override]
        member = self._member(who)
        lane = member.lanes.next_ready()
        assert lane is not None
        delivery = lane.head
        flow, queue = self._flow_of(who, delivery), int(delivery.queue.rpartition("/")[2])
        if delivery.epoch == flow.machine.epoch and flow.is_halted:
            if not member.lanes.hold(lane):
                member.lanes.finish(lane)
                self._answer(who, delivery, None)
            return
        key, number = message = self._message(delivery)
        if delivery.epoch != flow.machine.epoch or flow.is_lost:
            raise Breach(f"{message} is started after activity was lost (L4)")
        if key in member.running:
            raise Breach(f"{message} is started beside another of its key (L2)")
        is_ours, fate = delivery.delivery_id in flow.held, self.fates.get(message)
        if fate is not None and (
            (fate.stage is Stage.ENDED and not self.is_disturbed) or (is_ours and fate.stage is Stage.SETTLED)
        ):
            raise Breach(f"{message} is handled again, from queue {queue}")
        for earlier in range(1, number):
            before = self.fates.get((key, earlier))
            if before is None or before.stage is Stage.STARTED:
                raise Breach(f"{message} is handled before {earlier}")
            if before.stage is not Stage.SETTLED and before.queue != queue:
                raise Breach(f"{message} is handled from queue {queue}, {earlier} is not settled in {before.queue}")
        for other, beside in enumerate(self.members):
            running = beside.running.get(key)
            if is_ours and running is not None and running.delivery_id in self._flow_of(other, running).held:
                raise Breach(f"{message} is handled while {other} handles its key")
        self.fates[message] = Fate(queue, Stage.STARTED if fate is None else fate.stage)
        member.running[key] = delivery

    def _end(self, who: int, key: str, how: str = "succeed") -> None:
        member = self._member(who)
        lane, delivery = member.lanes.find(key), member.running.pop(key)
        assert lane is not None
        if how == "fail" and member.lanes.delay(lane, self.now_ms + TICK_MS):
            self._hold_up(who, lane)
            return
        if how == "succeed":
            fate = self.fates[self._message(delivery)]
            self.fates[self._message(delivery)] = fate._replace(stage=max(fate.stage, Stage.ENDED))
        elif how == "give back" and not lane.is_recalled:
            self._flow_of(who, delivery).is_halted = True
        member.lanes.finish(lane)
        self._answer(who, delivery, Outcome.ACCEPTED if how == "succeed" else None)

    def _hold_up(self, who: int, lane: Lane[Delivery]) -> None:
        for each in self._member(who).lanes.hold_up(lane):
            self._flow_of(who, each).tell(events.DeliveriesHeldUp(each.epoch, (each.delivery_id,)))

    def _fail(self, who: int, key: str) -> None:
        self._end(who, key, "fail")

    def _give_back(self, who: int, key: str) -> None:
        self._end(who, key, "give back")

    # -- what is wanted, or happens to a process

    def _hand_back(self, who: int, queue: int) -> None:
        self._flow(who, queue).tell(REQUESTS["hand back"](self.now_ms))

    def _step_aside(self, who: int, queue: int) -> None:
        self._flow(who, queue).tell(REQUESTS["step aside"](self.now_ms))

    def _leave(self, who: int) -> None:  # type: ignore[override]
        for queue in self.members[who].flows:
            self._flow(who, queue).tell(REQUESTS["stop"](self.now_ms))

    def _suspend(self, who: int) -> None:
        """The process was stopped, and goes on: FlowRunner.give_handle_up."""
        for queue in self.members[who].flows:
            flow = self._flow(who, queue)
            if flow.machine.state in (FlowState.ACTIVE, FlowState.DRAINING):
                flow.is_halted = True
                flow.tell(events.FlowInactive(flow.machine.epoch))
            elif flow.machine.state in (FlowState.BINDING, FlowState.STANDBY):
                flow.inbox = (REQUESTS["step aside"](self.now_ms), *flow.inbox)


def _is_due(moment_ms: int | None, now_ms: int) -> bool:
    return moment_ms is not None and moment_ms <= now_ms
