"""A small group that is re-striped, small enough that every history of it can be tried.

Gates, books and the conductor are the real ones. Around them is what they may rely on: a broker whose queues are in
order, a control topic, members that bind what has no owner, and lanes that handle a key in order. Steps check what
docs/restripe.md promises.

Anything may take any time, so a process that stands still for a while is in the histories, unless others take it for
dead. What a member knows comes to all listeners at once; it is said as soon as one of them does not know it, or later.
"""

from dataclasses import replace
from typing import Self

from lbg_runtime.core.group.picture import how_much_is_known
from lbg_runtime.core.restripe.conductor import (
    LOOKS_PER_RECORD,
    Conductor,
    CreateQueue,
    DeleteQueue,
    Done,
    Publish,
    Sight,
    Subscribe,
    Unsubscribe,
    Wait,
)
from lbg_runtime.core.restripe.conductor import Step as ConductorStep
from lbg_runtime.core.restripe.gate import Pass, Probe
from lbg_runtime.core.restripe.layout import SeenQueues, ensure_target
from lbg_runtime.core.restripe.records import StripePlan, record_topic
from lbg_runtime.core.restripe.striping import NOTHING, StripingBook, StripingReport
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.ids import Epoch
from lbg_runtime.model.message import Delivery
from tests.core.histories import Breach, Step, perform, twin
from tests.core.restripe.small_stripe_parts import (
    CONTROL_TOPIC,
    Fate,
    Member,
    Settled,
    Setup,
    Stage,
)
from tests.core.restripe.small_striped_group import StripedGroup, would_learn


class SmallStripes(StripedGroup):
    """A state. `steps` says what can happen in it, `take` makes it happen."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.may_happen = setup.may_happen
        self.targets = setup.counts[1:]
        self.late: tuple[StripingReport, ...] = ()
        """Each is to reach one listener more, some time."""
        self.conductor: Conductor | None = None
        self.book = StripingBook(1, 64)
        """The conductor's."""
        self.heard: frozenset[int] = NOTHING
        """Members that the conductor has heard."""
        self.is_to_begin = self.is_refused = False
        self._begin_to_conduct()
        self.intent = self._think()

    def twin(self) -> Self:
        """A copy to take a step in; parts are copied when they are about to change."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.queues, made.topics, made.published = self.queues.copy(), self.topics.copy(), self.published.copy()
        made.members, made.handles, made.fates = self.members[:], self.handles.copy(), self.fates.copy()
        made.own = set()
        return made

    # -- what can happen

    def regular_steps(self) -> list[Step]:
        """What happens sooner or later, in this order if all is well."""
        found: list[Step] = []
        # In this order, as the first prompt step may be the only one, and marks do not tell which handle is older.
        for queue, handle in sorted(self.handles.items()):
            if handle.line:
                found.append(("settle", queue))
            if handle.echoes:
                found.append(("echo", queue))
            if self.queues[queue] and self.queues[queue][-1].id > handle.shown_to:
                found.append(("deliver", queue))
        for who, member in enumerate(self.members):
            found += [("end", who, key) for key, lane in member.lanes.items() if lane and not member.is_away]
            if not member.is_away and self._is_news(member.book.report(), who):
                found.append(("say", who))
        if self.intent is not None:
            found.append(("conduct",))
        for queue in self.queues:
            if queue not in self.handles:
                found += [("bind", queue, who) for who in self._candidates(queue)]
            elif self._is_to_leave(queue):
                found.append(("leave", queue))
        found += [("publish", key) for key, count in self.setup.messages.items() if self.published[key] < count]
        return found + [("return", who) for who, member in enumerate(self.members) if member.is_away]

    def steps(self) -> list[Step]:
        """Everything that can happen."""
        found = self.regular_steps()
        # But nothing else waits for messages, so they would come last, when no shard moves any more.
        prompt = [step for step in found if step[0] in self.setup.at_once][:1]
        found = [*prompt, *(step for step in found if step[0] == "publish")] if prompt else found
        if not found and not self.is_at_rest:
            found = [("at last",)]
        everybody = range(len(self.members))
        for name in dict.fromkeys(self.may_happen):
            match name:
                case "kill" | "keep a report":
                    found += [(name, who) for who in everybody if not self.members[who].is_away]
                case "cut off":
                    found += [(name, who) for who in everybody if not self.members[who].is_away]
                case "lose the handle":
                    found += [(name, queue) for queue in self.handles]
                case "move":
                    others = [*everybody[1:], 0]
                    idle = [(queue, each.owner) for queue, each in self.handles.items() if not each.in_flight]
                    found += [(name, queue, others[who]) for queue, who in idle if self._knows(others[who], queue)]
                case "lose a report":
                    listeners = [*everybody, len(everybody)]
                    told = [(who, by) for who in listeners for by in everybody if who != by]
                    found += [(name, by, who) for who, by in told if ("say", by) in found]
                case "kill the conductor" if self.conductor is not None:
                    found.append((name,))
                case "lose patience" if self._think(is_patient=False) is not None:
                    found.append((name,))
        if self.late:
            found += [("be late", who) for who in everybody if not self.members[who].is_away]
        return found

    def _candidates(self, queue: int) -> list[int]:
        """Who may bind the queue. One member has it in all histories where nothing goes wrong."""
        knowing = [who for who in range(len(self.members)) if self._knows(who, queue)]
        home = queue % len(self.members)
        return knowing if self.is_disturbed or home not in knowing else [home]

    def _knows(self, who: int, queue: int) -> bool:
        return not self.members[who].is_away and queue < self.members[who].book.now.queue_total

    def _knows_another_number(self, member: Member) -> bool:
        return member.book.now.queue_total != self.setup.counts[-1]

    def _is_to_leave(self, queue: int) -> bool:
        handle = self.handles[queue]
        return queue >= self.members[handle.owner].book.now.queue_total and not handle.in_flight

    def _is_news(self, report: StripingReport, by: int) -> bool:
        books = [each.book for who, each in enumerate(self.members) if who != by and not each.is_away]
        if self.conductor is not None and (by not in self.heard if self.is_to_begin else not self.heard):
            return True
        return any(would_learn(book, report) for book in [*books, *([self.book] if self.conductor else [])])

    @property
    def is_at_rest(self) -> bool:
        """Whether the group has its last number of queues, and all is handled and settled."""
        is_over = self.conductor is None and not any(self.queues.values())
        return is_over and self.published == self.setup.messages

    # -- what happens

    def take(self, step: Step) -> None:
        """Let a step happen; raises `Breach`, or what a machine or the conductor raises."""
        perform(self, step)
        self.intent = self._think()

    def _publish(self, key: str) -> None:
        self.published[key] += 1
        topic = self.shape.subscription(int(key[0]))
        self._spool((key, self.published[key]), topic)

    def _deliver(self, queue: int) -> None:
        handle = self._handle(queue)
        entry = next(each for each in self.queues[queue] if each.id > handle.shown_to)
        handle.shown_to = entry.id
        delivery = Delivery(self.shape.queue_name(queue), Epoch(handle.number), entry.id, entry.message, False, 0)
        gate = self._member(handle.owner).gates[queue]
        if gate.lets_pass(entry.message.topic):
            self._obey(queue, [Pass(delivery)])
        else:
            self._obey(queue, gate.take(delivery, handle.in_flight))

    def _settle(self, queue: int) -> None:
        """The broker takes the next settlement, or what is said behind it."""
        handle = self._handle(queue)
        first, handle.line = handle.line[0], handle.line[1:]
        if isinstance(first, Probe):
            handle.echoes = (*handle.echoes, first.number)
            return
        [entry] = [each for each in self.queues[queue] if each.id == first.id]
        self.queues[queue] = tuple(each for each in self.queues[queue] if each is not entry)
        if not isinstance(message := entry.content, tuple):
            return
        if first.is_handled:
            self.fates[message] = Fate(queue, Stage.SETTLED)
        is_settled = message in self.fates and self.fates[message].stage is Stage.SETTLED
        if not is_settled and not any(each.content == message for lie in self.queues.values() for each in lie):
            raise Breach(f"{message} is lost")

    def _echo(self, queue: int) -> None:
        handle = self._handle(queue)
        number, handle.echoes = handle.echoes[0], handle.echoes[1:]
        self._obey(queue, self._member(handle.owner).gates[queue].reached(number))

    def _end(self, who: int, key: str) -> None:
        lanes = self._member(who).lanes
        item, lanes[key] = lanes[key][0], lanes[key][1:]
        message = (key, item.number)
        fate = self.fates[message]
        self.fates[message] = Fate(fate.queue, max(fate.stage, Stage.ENDED))
        if self._is_alive(item):
            handle = self._handle(item.queue)
            handle.in_flight.answer(item.id)
            handle.line = (*handle.line, Settled(item.id, is_handled=True))
            self._obey(item.queue, self._member(who).gates[item.queue].answer(item.id))
        if lanes[key]:
            self._start(who, key)

    def _say(self, by: int, not_to: int | None = None) -> None:
        report = self.members[by].book.report()
        self._spread_report(report, by, not_to)
        if self.conductor is not None and not_to != len(self.members):
            self.heard, self.book = self.heard | {by}, twin(self.book)
            self.book.trust(self.conductor.plan)
            self.book.hear(report)

    def _leave(self, queue: int) -> None:
        self._take_all(queue)
        self._unbind(queue)

    def _return(self, who: int) -> None:
        self._member(who).is_away = False

    def _at_last(self) -> None:
        """What happens if nothing else does: the conductor says something again; or an operator sees that
        members do not know the new number of queues, and runs the command again, or does what a refusal demands."""
        if (intent := self._think(is_patient=False)) is not None:
            self.intent = intent
            self._conduct()
        elif self.is_refused:
            for who in range(len(self.members)):
                self._kill(who)
            self._begin_to_conduct()
        elif self.conductor is None and any(self._knows_another_number(each) for each in self.members):
            self.targets = self.setup.counts[-1:]
            self._begin_to_conduct()
        else:
            raise Breach(f"nothing goes on: {self.queues}, {self.topics}, {[each.book.now for each in self.members]}")

    # -- what goes wrong, or is wanted

    def _kill(self, who: int) -> None:
        """It is started again, with the settings that it had."""
        self._drop_handles(who)
        self.members[who] = Member(self.setup.counts[0], self.setup.shards)
        self.own.add(-1 - who)

    def _cut_off(self, who: int) -> None:
        """It stands still or has no connection, until others have its queues."""
        self._drop_handles(who)
        self._member(who).is_away = True

    def _lose_the_handle(self, queue: int) -> None:
        self.is_disturbed = True
        self._unbind(queue)

    def _move(self, queue: int, to: int) -> None:
        self._leave(queue)
        self._bind(queue, to)

    def _lose_a_report(self, by: int, to: int) -> None:
        self._say(by, to)

    def _keep_a_report(self, who: int) -> None:
        self.late = (*self.late, self.members[who].book.report())

    def _be_late(self, who: int) -> None:
        report, self.late = self.late[0], self.late[1:]
        if self._member(who).book.hear(report):
            self._spread(who)

    def _kill_the_conductor(self) -> None:
        self._begin_to_conduct()

    def _lose_patience(self) -> None:
        self.intent = self._think(is_patient=False)
        self._conduct()

    def _drop_handles(self, who: int) -> None:
        self.is_disturbed = True
        for queue in [queue for queue, handle in self.handles.items() if handle.owner == who]:
            self._unbind(queue)

    # -- the conductor

    @property
    def seen(self) -> dict[int, frozenset[str]]:
        """What it believes the queues to subscribe to."""
        return self.topics

    def _queues(self) -> SeenQueues:
        return SeenQueues(self.shape, CONTROL_TOPIC, self.topics)

    def _begin_to_conduct(self) -> None:
        """What a command does that finds the group as it is."""
        self.conductor, self.is_refused = None, False
        while self.conductor is None and self.targets:
            target = self.targets[0]
            for leftover in self._queues().leftover_plans(target):
                for index in self.topics:
                    self.topics[index] -= {record_topic(CONTROL_TOPIC, leftover)}
            plan = self._queues().plan_under_way()
            if plan is None:
                present = self._queues().layout()
                known = max((each.book.now for each in self.members if not each.is_away), key=how_much_is_known)
                if present == target and (known.target is not None or known.queue_count == target):
                    self.targets = self.targets[1:]
                    continue
                self.planned_count += 1
                generation = self.setup.clock + self.planned_count
                generation = max(generation, known.generation + 1) if present == target else generation
                plan = StripePlan(generation, present, target, "s")
            ensure_target(plan, target)
            self._queues().ensure_on_the_way(plan)
            self._queues().ensure_informed(plan)
            self.conductor = Conductor(replace(self.shape, queue_count=plan.from_count), plan, CONTROL_TOPIC)
            self.book, self.heard = StripingBook(1, self.setup.shards), NOTHING
            self.is_to_begin = self._queues().is_unmoved(plan)

    def _think(self, *, is_patient: bool = True) -> tuple[Conductor, ConductorStep] | None:
        """The conductor after its next look, and its step; None if it only waits."""
        present = {who for who, member in enumerate(self.members) if not member.is_away}
        if self.conductor is None or (self.is_to_begin and not (self.heard and self.heard >= present)):
            return None
        conductor = twin(self.conductor)
        sight = Sight(self.seen, {}, self.handles.keys(), self.book.now if self.heard else None)
        depths = {each: len(self.queues.get(each, ())) for each in conductor.queues_to_measure(sight)}
        sight = replace(sight, depths=depths)
        try:
            step = conductor.next_step(sight)
        except UserError as refusal:
            self.is_refused = "all members stopped" in str(refusal)
            if not self.is_refused:
                raise
            return None
        if not is_patient and isinstance(step, Wait | DeleteQueue):
            conductor._looks = LOOKS_PER_RECORD
            step = conductor.next_step(sight)
            return (conductor, step) if isinstance(step, Publish) else None
        is_in_use = isinstance(step, DeleteQueue) and (step.index in self.handles or self.queues.get(step.index))
        return None if isinstance(step, Wait) or is_in_use else (conductor, step)

    def _conduct(self) -> None:
        assert self.intent is not None
        conductor, step = self.intent
        self.conductor = conductor
        self.book = twin(self.book)
        self.book.trust(conductor.plan)
        match step:
            case CreateQueue(index):
                self.queues[index], self.topics[index] = (), frozenset()
            case Subscribe(index, topic):
                self.topics[index] |= {topic}
            case Unsubscribe(index, topic):
                self.topics[index] -= {topic}
            case Publish(record):
                if self.is_to_begin and record == conductor.plan:
                    self.is_to_begin = False
                    self._queues().ensure_layout(conductor.plan.from_count)
                self._spool(record, conductor.topic)
            case DeleteQueue(index):
                del self.queues[index], self.topics[index]
            case Done():
                self._queues().ensure_layout(conductor.plan.to_count)
                self.targets = self.targets[1:]
                self._begin_to_conduct()
                return
        conductor.did(step)
