"""What a small group is made of that is re-striped with its flow machines, copies, and when two states are one."""

from typing import TYPE_CHECKING

from lbg_runtime.core.flow import events
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.lanes import KeyLanes
from lbg_runtime.core.restripe.gate import Probe, StripeGate
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.core.roles import Place
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Delivery
from tests.core.flow.small_parts import HOME, SETTINGS, STANDBY, Latest
from tests.core.flow.small_twins import COPIES, mark_of_lanes, mark_of_machine, twin_lanes
from tests.core.histories import twin
from tests.core.restripe.small_stripe_parts import PREFIX, Settled, gate_twin, mark_of_gate

if TYPE_CHECKING:
    from tests.core.restripe.small_flows import SmallFlows

AWAY = Place(None, gives_way=False)


class Flow:
    """A queue's flow of one member: its machine, what that has not taken, and its handle on both sides."""

    def __init__(self, queue: int, shape: GroupShape, place: Place, now_ms: int) -> None:
        gate = StripeGate(queue, shape, PREFIX)
        self.machine = FlowMachine(shape.queue_name(queue), place, SETTINGS, 2, Latest(), now_ms, gate, max_held=4)
        self.place = place
        """The last that its machine was told, or is to be."""
        self.inbox: tuple[events.MachineEvent, ...] = ()
        self.task = ""
        """bind or unbind, while the transport is at it."""
        self.unanswered: tuple[Delivery, ...] = ()
        self.begin_handle()
        self.state = ""
        """bound, away (the connection broke, and the client knows), dead, or nothing if there is no handle yet."""

    def begin_handle(self) -> None:
        """The broker has a new handle."""
        self.state = "bound"
        self.binds = 0
        """How often it was bound again: what is sent anew has another number."""
        self.held: tuple[DeliveryId, ...] = ()
        """What was sent on it and is not settled."""
        self.line: tuple[Settled | Probe, ...] = ()
        """What the broker has not taken."""
        self.intake = self.is_told_active = False
        self.is_lost = False
        """The machine knows that activity is lost."""
        self.is_halted = False
        """The dispatcher starts nothing more of it."""

    def tell(self, event: events.MachineEvent) -> None:
        """To its machine, behind what that has not taken yet."""
        self.inbox = (*self.inbox, event)

    def holds(self, entry_id: DeliveryId) -> bool:
        """Whether this was sent on the handle and is not settled."""
        return any(each // 8 == entry_id for each in self.held)


class FlowMember:
    """A process: its flows, its lanes, and its connection."""

    def __init__(self, who: int, members: int, queue_count: int, shape: GroupShape, now_ms: int) -> None:
        self.book = StripingBook(queue_count, shape.hash_count)
        self._who, self._members = who, members
        self.flows = {queue: Flow(queue, shape, self.place_on(queue), now_ms) for queue in range(queue_count)}
        self.lanes: KeyLanes[Delivery] = KeyLanes(max_waiting=1)
        self.running: dict[str, Delivery] = {}
        """By key."""
        self.link = "up"
        """up, broken (which only the broker knows), or down."""
        self.probes: tuple[tuple[int, int, int], ...] = ()
        """Queue, epoch and number of what is asked when there is a connection again."""

    def place_on(self, queue: int) -> Place:
        """Its place on a queue, as the group knows the number of queues."""
        if queue >= self.book.now.queue_total:
            return AWAY
        return HOME if queue % self._members == self._who else STANDBY

    @property
    def is_away(self) -> bool:
        """Whether nobody hears it."""
        return self.link != "up" or all(flow.machine.is_stopped for flow in self.flows.values())


def flow_twin(flow: Flow) -> Flow:
    """See `histories.twin`."""
    made = twin(flow, COPIES)
    assert flow.machine._gate is not None
    made.machine._gate = gate_twin(flow.machine._gate)
    return made


def flow_member_twin(member: FlowMember) -> FlowMember:
    """See `histories.twin`; its flows are still shared."""
    made = twin(member)
    made.book, made.lanes = twin(member.book), twin_lanes(member.lanes)
    return made


class _Places(dict[DeliveryId, object]):
    """Of deliveries, by those of their messages in the queue."""

    def __missing__(self, delivery_id: DeliveryId) -> object:
        entry_id = DeliveryId(delivery_id // 8)
        return self.get(entry_id, -entry_id), delivery_id % 8


def mark(group: "SmallFlows") -> int:
    """Equal for states in which the same can happen: deliveries count by their places, and moments from now."""
    at = {
        group.shape.queue_name(queue): _Places((each.id, place) for place, each in enumerate(lie))
        for queue, lie in group.queues.items()
    }
    lies = tuple((queue, tuple(each.content for each in lie)) for queue, lie in sorted(group.queues.items()))
    fates = tuple(sorted(group.fates.items()))
    flags = group.is_disturbed, group.heard, group.is_to_begin, group.is_refused
    made: list[object] = [lies, tuple(sorted(group.topics.items())), tuple(group.published.values()), fates, flags]
    made.append((group.may_happen, group.targets, group.unfed, tuple(sorted(group.line_up.items()))))
    nowhere = _Places()
    for member in group.members:
        epochs = {flow.machine.queue: flow.machine.epoch for flow in member.flows.values()}

        def name(delivery: Delivery, epochs: dict[str, int] = epochs) -> object:
            queue, message = delivery.queue, delivery.message
            place = at.get(queue, nowhere)[delivery.delivery_id]
            return queue, delivery.epoch - epochs[queue], place, message.topic, message.payload

        made.append((member.book.now, member.book._plan, member.link))
        made.append((mark_of_lanes(member.lanes, group.now_ms, name), tuple(map(name, member.running.values()))))
        for queue, flow in member.flows.items():
            machine, gate, places = flow.machine, flow.machine._gate, at.get(flow.machine.queue, nowhere)
            assert gate is not None
            newest, epoch = gate._probe_count, machine.epoch
            made += [
                mark_of_machine(machine, flow.inbox, group.now_ms, name, places.__getitem__),
                (epoch > 0, gate._striping, gate._done_generation, gate._outdated_generation),
                mark_of_gate(gate, places),
                (flow.place, flow.task, flow.state, flow.binds, tuple(map(places.__getitem__, flow.held))),
                (flow.intake, flow.is_told_active, flow.is_lost, flow.is_halted, tuple(map(name, flow.unanswered))),
                tuple(
                    each.number - newest if isinstance(each, Probe) else (places[each.id], each.is_handled)
                    for each in flow.line
                ),
                tuple((of - epoch, number - newest) for asked, of, number in member.probes if asked == queue),
            ]
    if (conductor := group.conductor) is not None:
        made.append((conductor.plan, frozenset(conductor._published), conductor._waited_for))
        made.append((group.book.now, group.book._plan))
    return hash(tuple(made))
