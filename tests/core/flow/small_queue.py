"""One exclusive queue with a few messages and its members, small enough that every history of it can be tried.

Flow machines and key lanes are the real ones. Around them is what they may rely on: the broker of L1, a client that
keeps the promises of transport/base.py, and the order in which runtime/ carries out commands. Steps check the laws.

A tick of time can come before any other step, so whatever takes time may be early or late.

More than 400 lines, as steps and what is checked in them share one state.
"""

from lbg_runtime.core.flow import commands as orders
from lbg_runtime.core.flow import events
from lbg_runtime.core.flow.release import DrainPhase
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.lanes import Lane
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from tests.core.flow.small_parts import (
    ATTEMPT_ENDS,
    QUEUE,
    REQUESTS,
    TICK_MS,
    Handle,
    Member,
    Setup,
    Step,
    number,
)
from tests.core.histories import Breach


class SmallQueue:
    """A state. `steps` says what can happen in it, `take` makes it happen."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.now_ms = 0
        self.spool = list(range(len(setup.keys)))
        self.line: list[int] = []
        """Members whose flow is bound, the one that is fed first."""
        self.is_feeding = True
        self.members = [Member(place) for place in setup.places]
        self.started: set[int] = set()
        self.handled: set[int] = set()
        self.may_happen = list(setup.may_happen)
        self.hung = ""
        """The key whose handler hangs until it is cancelled; others need not wait for it."""
        self.may_repeat = False
        """Whether settlements may have been lost with a handle or a connection."""

    # -- what can happen

    def regular_steps(self) -> list[Step]:
        """What happens sooner or later, in this order if all is well; with nothing else to do, time passes."""
        found: list[Step] = [] if self.is_feeding else [("feed", 0, "")]
        for index, member in enumerate(self.members):
            handle, is_up = member.handle, member.link == "up"
            is_bound = is_up and handle is not None and handle.state == "bound"
            could = {
                "take": bool(member.inbox),
                "deadline": _is_due(member.machine.deadline_ms, self.now_ms),
                "retry": _is_due(member.lanes.next_delayed_ms(), self.now_ms),
                "start": bool(member.lanes.ready),
                "notice": member.link == "broken",
                "reconnect": member.link == "down",
                "bind": is_up and member.task == "bind" and handle is None,
                "bind returns": member.task == "bind" and handle is not None,
                "bind again": is_up and handle is not None and handle.state == "away",
                "acks": is_bound and bool(member.bound.acks),
                "window": is_bound and member.bound.window != member.bound.intake,
                "unbind": is_up and member.task == "unbind",
                "end in vain": self._is_draining_in_vain(member),
                "send": self.line[:1] == [index] and self._next_to_send(member.bound) is not None,
            }
            if not member.is_gone:
                found += [(name, index, "") for name, is_possible in could.items() if is_possible]
                is_cancelled = handle is not None and handle.is_cancelled
                found += [("succeed", index, key) for key in member.running if key != self.hung]
                found += [("cancelled", index, key) for key in member.running if is_cancelled]
        return found

    def steps(self) -> list[Step]:
        """Everything that can happen."""
        found = self.regular_steps()
        for index, member in enumerate(self.members):
            handle, is_up = member.handle, member.link == "up"
            could = {
                "cut": is_up,
                "refuse": is_up and (member.task == "bind" or (handle is not None and handle.state == "away")),
                "end flow": index in self.line,
                "stop feeding": self.is_feeding and self.line[:1] == [index],
            }
            names = [name for name in dict.fromkeys(self.may_happen) if could.get(name, True)]
            for key in member.running:
                found += [(name, index, key) for name in names if name in ATTEMPT_ENDS and key != self.hung]
            if not member.is_gone:
                found += [(name, index, "") for name in names if name not in ATTEMPT_ENDS]
        return [*found, ("tick", 0, "")] if self._waits_for_time() else found

    def _is_draining_in_vain(self, member: Member) -> bool:
        """Whether a drain can be told that it waits for what a stopped handle holds, and has not been told."""
        release, handle = member.machine._release, member.handle
        if member.machine.state is not FlowState.DRAINING or release is None or handle is None or not handle.is_halted:
            return False
        is_early = release.phase is not DrainPhase.FINISH or self.now_ms < release.quiet_at_ms
        return not is_early and not any(isinstance(each, events.HandlingStalled) for each in member.inbox)

    def _waits_for_time(self) -> bool:
        moments: list[int | None] = []
        for member in self.members:
            plan, release = member.machine._plan, member.machine._release
            moments += [plan.bind_at_ms, plan.give_way_at_ms, plan._not_before_ms, plan._aside_until_ms]
            moments += [release.quiet_at_ms, release.drain_until_ms, release.look_at_ms] if release else []
            moments.append(member.lanes.next_delayed_ms())
        return any(moment is not None and moment > self.now_ms for moment in moments)

    def take(self, step: Step) -> None:
        """Let a step happen; raises `Breach`, or what a machine raises."""
        name, index, key = step
        member = self.members[index]
        if name in self.may_happen:
            self.may_happen.remove(name)
        if name == "tick":
            self.now_ms += TICK_MS
        elif name in REQUESTS:
            member.inbox.append(REQUESTS[name](self.now_ms))
        elif key:
            self._end_attempt(name, member, key)
        else:
            getattr(self, "_" + name.replace(" ", "_"))(index, member)
        epoch, lives = member.machine.epoch, member.machine.state is not FlowState.UNBOUND
        in_flight = sum(each.epoch == epoch for each in member.unanswered) if lives else 0
        if member.machine.in_flight != in_flight:
            raise Breach(f"{member.machine.in_flight} count as in flight, and are {in_flight}")

    @property
    def is_at_rest(self) -> bool:
        """Whether everything is done, and everybody gone who is to go."""
        held = [each.message.topic for member in self.members for each in member.unanswered]
        if any(member.is_stopped and not set(member.running) - {self.hung} for member in self.members):
            return True
        plans = [member.machine._plan for member in self.members if not member.is_gone]
        if set(held) - {self.hung} or any(member.inbox for member in self.members):
            return False
        is_empty = all(self.setup.keys[each] == self.hung for each in self.spool)
        return not any(plan.is_leaving or (plan.place.is_wanted and not is_empty) for plan in plans)

    # -- the broker

    def _join(self, index: int) -> None:
        self.line.append(index)
        self._elect()

    def _leave(self, index: int) -> None:
        self.line = [each for each in self.line if each != index]
        self._elect()

    def _elect(self) -> None:
        if self.line and self.is_feeding and not (first := self.members[self.line[0]]).bound.is_told_active:
            first.bound.is_told_active = True
            self._tell(first, events.FlowActive(first.bound.epoch))

    def _stop_feeding(self, _: int, member: Member) -> None:
        self.is_feeding = False
        self._tell_inactive(member)

    def _feed(self, *_: object) -> None:
        self.is_feeding = True
        self._elect()

    def _next_to_send(self, handle: Handle) -> int | None:
        held = set(map(number, handle.held))
        return next((each for each in self.spool if each not in held and handle.window and self.is_feeding), None)

    def _send(self, _: int, member: Member) -> None:
        handle = member.bound
        sent = self._next_to_send(handle)
        assert sent is not None
        for other in self.members:
            # Its client may settle nothing any more by what it got before.
            if other.handle is not None and sent in map(number, other.handle.held):
                other.handle.held.clear()
        delivery_id, message = DeliveryId(8 * sent + handle.binds), Message(self.setup.keys[sent], b"")
        handle.held.add(delivery_id)
        delivery = Delivery(QUEUE, handle.epoch, delivery_id, message, redelivered=False, received_at_ns=0)
        member.inbox.append(events.MessageReceived(delivery))

    def _acks(self, _: int, member: Member) -> None:
        for delivery_id in member.bound.acks:
            if delivery_id in member.bound.held:
                member.bound.held.remove(delivery_id)
                settled = number(delivery_id)
                if settled not in self.handled or any(each in self.spool for each in self._before(settled)):
                    raise Breach(f"{settled} was settled before it was handled, or before another of its key (L3)")
                self.spool.remove(settled)
        member.bound.acks.clear()

    def _before(self, message: int) -> list[int]:
        return [each for each in range(message) if self.setup.keys[each] == self.setup.keys[message]]

    def _cut(self, index: int, member: Member) -> None:
        member.link, self.may_repeat = "broken", True
        self._leave(index)

    # -- the client

    def _tell(self, member: Member, event: events.FlowEvent) -> None:
        at = len(member.inbox)
        while self.setup.events_overtake and at and isinstance(member.inbox[at - 1], events.MessageReceived):
            at -= 1
        member.inbox.insert(at, event)

    def _tell_inactive(self, member: Member) -> None:
        if member.bound.is_told_active:
            member.bound.is_told_active = False
            self._tell(member, events.FlowInactive(member.bound.epoch))

    def _bind(self, index: int, member: Member) -> None:
        member.handle = Handle(member.machine.epoch)
        self._join(index)

    def _bind_returns(self, _: int, member: Member) -> None:
        member.task = ""
        member.inbox.append(events.BindSucceeded(member.machine.epoch))

    def _bind_again(self, index: int, member: Member) -> None:
        member.bound.state, member.bound.window = "bound", member.bound.intake
        member.bound.binds += 1
        self._join(index)

    def _end_flow(self, index: int, member: Member) -> None:
        if member.handle is not None:
            self.may_repeat = True
            self._let_go(index, member)
        if member.task == "bind":
            member.task = ""
            member.inbox.append(events.BindRefused(member.machine.epoch, "no", permanent=False))
        else:
            self._tell(member, events.FlowDown(member.bound.epoch, "gone"))

    _refuse = _end_flow

    def _let_go(self, index: int, member: Member) -> None:
        member.bound.state = "dead"
        member.bound.acks.clear()
        member.bound.held.clear()
        self._leave(index)

    def _unbind(self, index: int, member: Member) -> None:
        member.task, epoch = "", member.bound.epoch
        if is_confirmed := member.bound.state == "bound" and member.link == "up":
            self._acks(index, member)
        self._let_go(index, member)
        member.inbox.append(events.UnbindFinished(epoch, is_confirmed))

    def _notice(self, index: int, member: Member) -> None:
        member.link = "down"
        if member.handle is None:
            if member.task == "bind":
                self._end_flow(index, member)
        elif member.handle.state == "bound":
            member.handle.state = "away"
            self._tell_inactive(member)
            if member.task == "unbind":
                self._unbind(index, member)

    def _reconnect(self, _: int, member: Member) -> None:
        member.link = "up"

    def _window(self, _: int, member: Member) -> None:
        member.bound.window = member.bound.intake

    # -- the flow runner

    def _take(self, index: int, member: Member) -> None:
        event, machine = member.inbox.pop(0), member.machine
        due: list[orders.Command] = []
        match event:
            case events.MessageReceived(delivery) if machine.admit(delivery):
                self._obey(index, member, [orders.Dispatch(delivery)], due)
                return
            case events.HandlingStalled(epoch, has_stopped=False) if not member.lanes.is_stalled(QUEUE, epoch):
                return
            case events.HandlingFinished(epoch, delivery_id, outcome):
                member.unanswered = [d for d in member.unanswered if (d.epoch, d.delivery_id) != (epoch, delivery_id)]
                if outcome is not None and epoch == machine.epoch and machine.state is not FlowState.UNBOUND:
                    due = [orders.Settle(epoch, delivery_id, outcome)]
                if outcome is not None and machine.accept(epoch, delivery_id):
                    self._obey(index, member, due, due)
                    return
            case events.FlowInactive(epoch) | events.FlowDown(epoch) if epoch == machine.epoch:
                is_down = isinstance(event, events.FlowDown)
                member.bound.is_lost |= is_down or machine.state in (FlowState.ACTIVE, FlowState.DRAINING)
        self._obey(index, member, machine.handle(event, self.now_ms), due)

    def _deadline(self, index: int, member: Member) -> None:
        self._obey(index, member, member.machine.on_deadline(self.now_ms), [])

    def _obey(self, index: int, member: Member, commands: list[orders.Command], due: list[orders.Command]) -> None:
        if [command for command in commands if isinstance(command, orders.Settle)] != due:
            raise Breach(f"{commands} where {due} is due (L4, L6, L7, L8)")
        for command in commands:
            match command:
                case orders.Bind(epoch):
                    if member.task or (member.handle is not None and member.handle.state != "dead"):
                        raise Breach(f"epoch {epoch} begins before the one before has ended")
                    member.task, member.handle = "bind", None
                case orders.Unbind(epoch):
                    if any(each.epoch == epoch for each in member.unanswered):
                        raise Breach("a handle is given up while something of it is in flight (L5)")
                    member.task = "unbind"
                    if member.bound.state == "away":
                        self._unbind(index, member)
                case orders.StartIntake() | orders.StopIntake():
                    is_open, state = isinstance(command, orders.StartIntake), member.machine.state
                    if member.bound.intake == is_open or (is_open and state is not FlowState.ACTIVE):
                        raise Breach(f"{command} in {state}, where intake is {member.bound.intake}")
                    member.bound.intake = is_open
                case orders.Dispatch(delivery):
                    self._dispatch(member, delivery)
                case orders.ReturnUnstarted(epoch):
                    member.bound.is_halted = member.bound.is_stopped = False
                    for delivery in member.lanes.return_unstarted(QUEUE, epoch):
                        self._answer(member, delivery, None)
                case orders.LookForStall(epoch):
                    member.inbox.append(events.HandlingStalled(epoch))
                case orders.CancelHandling():
                    member.bound.is_cancelled = True
                case orders.Settle(_, delivery_id):
                    if member.bound.state != "dead":
                        member.bound.acks.append(delivery_id)
                case _:
                    assert isinstance(command, orders.Note)

    # -- the dispatcher and its handlers

    def _dispatch(self, member: Member, delivery: Delivery) -> None:
        if member.bound.is_lost:
            raise Breach("something is dispatched after activity was lost (L4)")
        member.unanswered.append(delivery)
        epoch, delivery_id = delivery.epoch, delivery.delivery_id
        if member.lanes.offer(delivery.message.topic, delivery) and not member.machine.excuse(epoch, delivery_id):
            member.inbox.append(events.DeliveriesHeldUp(epoch, (delivery_id,)))

    def _answer(self, member: Member, delivery: Delivery, outcome: Outcome | None) -> None:
        member.inbox.append(events.HandlingFinished(delivery.epoch, delivery.delivery_id, outcome))

    def _retry(self, _: int, member: Member) -> None:
        member.lanes.release_due(self.now_ms)

    def _start(self, _: int, member: Member) -> None:
        lane = member.lanes.next_ready()
        assert lane is not None
        delivery, started = lane.head, number(lane.head.delivery_id)
        if delivery.epoch == member.bound.epoch and member.bound.is_halted:
            if not member.lanes.hold(lane):
                member.lanes.finish(lane)
                self._answer(member, delivery, None)
            return
        if delivery.epoch != member.machine.epoch or member.bound.is_lost:
            raise Breach(f"{started} is started after activity was lost (L4)")
        if lane.key in member.running:
            raise Breach(f"{started} is started beside another of its key (L2)")
        if started not in self.started and not self.handled.issuperset(self._before(started)):
            raise Breach(f"{started} is started before another of its key is handled (L3)")
        if _has(member, delivery) and any(_has(each, each.running.get(lane.key)) for each in self.members):
            raise Breach(f"{started} is started while another member, which is not cut off, has its key (L5)")
        self.started.add(started)
        member.running[lane.key] = delivery

    def _end_attempt(self, name: str, member: Member, key: str) -> None:
        lane, delivery = member.lanes.find(key), member.running[key]
        assert lane is not None
        if name == "hang":
            self.hung = key
            self._hold_up(member, lane)
            return
        del member.running[key]
        if name == "fail for good" and member.lanes.hold(lane):
            member.bound.is_halted = member.bound.is_stopped = True
            return
        if name == "fail" and member.lanes.delay(lane, self.now_ms + TICK_MS):
            self._hold_up(member, lane)
            return
        handled = number(delivery.delivery_id)
        if name == "succeed":
            if handled in self.handled and not self.may_repeat:
                raise Breach(f"{handled} is handled twice, and no settlement was lost")
            self.handled.add(handled)
        elif name == "give back" and not lane.is_recalled:
            member.bound.is_halted = True
        member.lanes.finish(lane)
        self._answer(member, delivery, Outcome.ACCEPTED if name == "succeed" else None)

    def _hold_up(self, member: Member, lane: Lane[Delivery]) -> None:
        member.inbox += [events.DeliveriesHeldUp(d.epoch, (d.delivery_id,)) for d in member.lanes.hold_up(lane)]

    def _end_in_vain(self, _: int, member: Member) -> None:
        """MemberFlows.end_drains_in_vain."""
        member.inbox.append(events.HandlingStalled(member.machine.epoch, has_stopped=True))

    def _suspend(self, _: int, member: Member) -> None:
        """The process was stopped, and goes on: FlowRunner.give_handle_up."""
        machine = member.machine
        if machine.state in (FlowState.ACTIVE, FlowState.DRAINING):
            member.bound.is_halted = True
            member.inbox.append(events.FlowInactive(machine.epoch))
        elif machine.state in (FlowState.BINDING, FlowState.STANDBY):
            member.inbox.insert(0, REQUESTS["step aside"](self.now_ms))


def _is_due(moment_ms: int | None, now_ms: int) -> bool:
    return moment_ms is not None and moment_ms <= now_ms


def _has(member: Member, delivery: Delivery | None) -> bool:
    """Whether the broker has not taken the delivery from its member."""
    handle = member.handle
    return delivery is not None and handle is not None and delivery.delivery_id in handle.held
