"""Re-stripings of a run: the real conductor, slow, occasionally killed, and started again without any memory."""

from collections.abc import Sequence
from dataclasses import replace

from lbg_runtime.core.group.control_messages import ControlMessage, Heartbeat, ReportedFlow
from lbg_runtime.core.restripe.conductor import (
    Conductor,
    CreateQueue,
    DeleteQueue,
    Done,
    Publish,
    Sight,
    Step,
    Subscribe,
    Unsubscribe,
    Wait,
)
from lbg_runtime.core.restripe.layout import SeenQueues
from lbg_runtime.core.restripe.records import StripePlan, encode_record
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.sim.broker import CONTROL_TOPIC, SimBroker
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.control_topic import ControlTopic
from lbg_runtime.sim.schedule import Schedule

LOOK_AGAIN_MS = 20


class SimRestriper:
    """Brings the group to one queue count after another, from `begin` on; lives as long as the run."""

    name = "restriper"
    is_reachable = True
    is_over = False

    def __init__(
        self,
        broker: SimBroker,
        topic: ControlTopic,
        schedule: Schedule,
        chance: SeededChance,
        targets: Sequence[int],
        kill_share: float,
        longest_delay_ms: int,
    ) -> None:
        """`kill_share` is the share of steps at which the conductor dies."""
        self._broker = broker
        self._topic = topic
        self._schedule = schedule
        self._chance = chance
        self._targets = list(targets)
        self._kill_share = kill_share
        self._longest_delay_ms = longest_delay_ms
        self._conductor: Conductor | None = None
        self._book = StripingBook(1, broker.shape.hash_count)
        self._is_heard = False
        self._owners: dict[str, dict[str, bool]] = {}

    @property
    def is_done(self) -> bool:
        """Whether the group has its last queue count."""
        return not self._targets

    def begin(self) -> None:
        self._topic.join(self)
        self._go_on()

    def hear(self, message: ControlMessage) -> None:
        """See `Listener.hear`."""
        if not isinstance(message, Heartbeat):
            return
        self._owners[message.header.member] = {
            queue: flow.state is ReportedFlow.ACTIVE for queue, flow in message.flows.items()
        }
        if self._conductor is not None:
            self._is_heard = True
            self._book.hear(message.striping)

    # -- parts

    def _go_on(self) -> None:
        if self._targets:
            self._schedule.after(self._chance.between(1, self._longest_delay_ms + 1), self._take_step)

    def _take_step(self) -> None:
        if self._conductor is None:
            self._conductor = self._begin_conductor()
            self._book = StripingBook(self._conductor.plan.from_count, self._broker.shape.hash_count)
            self._book.trust(self._conductor.plan)
            self._is_heard = False
        step = self._conductor.next_step(self._look(self._conductor))
        if isinstance(step, Wait):
            self._schedule.after(LOOK_AGAIN_MS, self._take_step)
            if self._chance.happens(self._kill_share / 10):
                self._conductor = None
            return
        if isinstance(step, Done):
            self._broker.configured_count = self._targets.pop(0)
            self._conductor = None
            self._go_on()
            return
        dies = self._chance.happens(self._kill_share)
        if dies and self._chance.happens(0.5):
            self._conductor = None
        else:
            self._do(step, self._conductor)
            if dies:
                self._conductor = None
        self._go_on()

    def _begin_conductor(self) -> Conductor:
        shape, subscriptions = self._broker.shape, self._broker.subscriptions()
        plan = SeenQueues(shape, CONTROL_TOPIC, subscriptions).plan_under_way()
        if plan is None:
            plan = StripePlan(self._schedule.now_ms + 1, len(subscriptions), self._targets[0], "s3cr3t")
        return Conductor(replace(shape, queue_count=plan.from_count), plan, CONTROL_TOPIC)

    def _look(self, conductor: Conductor) -> Sight:
        subscriptions, shape = self._broker.subscriptions(), self._broker.shape
        owned = {queue for flows in self._owners.values() for queue, is_active in flows.items() if is_active}
        sight = Sight(
            subscriptions,
            {},
            {index for index in subscriptions if shape.queue_name(index) in owned},
            self._book.now if self._is_heard else None,
        )
        return replace(sight, depths={index: self._broker.depth(index) for index in conductor.queues_to_measure(sight)})

    def _do(self, step: Step, conductor: Conductor) -> None:
        match step:
            case CreateQueue(index):
                self._broker.create_queue(index)
            case Subscribe(index, topic):
                self._broker.subscribe(index, topic)
            case Unsubscribe(index, topic):
                self._broker.unsubscribe(index, topic)
            case Publish(record):
                self._broker.publish_record(encode_record(record, conductor.topic))
            case DeleteQueue(index):
                self._broker.delete_queue(index)
            case Wait() | Done():
                pass
        conductor.did(step)
