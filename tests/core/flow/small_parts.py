"""What a small queue is made of: its setup, and its members with what is on its way in them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lbg_runtime.core.flow import events
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.lanes import KeyLanes
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery

QUEUE = QueueName("orders/0")
TICK_MS = 100
SETTINGS = RebindSettings(
    interval_ms=4 * TICK_MS,
    jitter=0.0,
    drain_timeout_ms=2 * TICK_MS,
    bind_backoff_min_ms=TICK_MS,
    bind_backoff_max_ms=2 * TICK_MS,
    quiet_gap_ms=TICK_MS,
    rank_delay_ms=TICK_MS,
)
HOME, STANDBY, CYCLING = Place(0, gives_way=False), Place(1, gives_way=False), Place(1, gives_way=True)
REQUESTS: dict[str, Callable[[int], events.FlowRequest]] = {
    "stop": lambda _: events.StopRequested(),
    "hand back": lambda _: events.HandBackRequested("m"),
    "be home": lambda _: events.PlaceChanged(HOME),
    "be unwanted": lambda _: events.PlaceChanged(Place(None, gives_way=False)),
    "step aside": lambda now_ms: events.StepAsideRequested(now_ms + 2 * TICK_MS),
}
"""What the group may want of a member."""
ATTEMPT_ENDS = frozenset({"fail", "fail for good", "give back", "hang"})
"""How an attempt may end but well, or not at all."""

Step = tuple[str, int, str]
"""What happens, the member, and the key if it is about a handler."""


class Latest:
    """Chance that always takes the longest time."""

    def uniform(self, a: float, b: float, /) -> float:
        return b


@dataclass(frozen=True)
class Setup:
    """What is there at first, and what may happen at any moment."""

    keys: str
    """The key of each message, in order."""
    may_happen: tuple[str, ...] = ()
    """Mishaps and requests, each at most once; what is here twice, at most twice."""
    places: tuple[Place, ...] = (HOME,)
    """Of each member."""
    events_overtake: bool = False
    """Whether a flow event comes before the messages that are still to be taken, as on the public receive path."""


@dataclass
class Handle:
    """A flow handle, on both sides."""

    epoch: Epoch
    state: str = "bound"
    """bound, away (the connection broke, and the client knows), or dead."""
    binds: int = 0
    """How often it was bound again: what is sent anew has another number."""
    window: bool = False
    """What the broker knows of the intake."""
    held: set[DeliveryId] = field(default_factory=set)
    """What was sent on it and is not settled. After a lost connection, until one of them is sent to somebody else."""
    acks: list[DeliveryId] = field(default_factory=list)
    """Settlements that have not reached the broker."""
    intake: bool = False
    is_told_active: bool = False
    is_lost: bool = False
    """The machine knows that activity is lost."""
    is_halted: bool = False
    """The dispatcher starts nothing more of it."""
    is_stopped: bool = False
    """As one of its messages has failed for good."""
    is_cancelled: bool = False


class Member:
    """A process: machine, lanes, and what is on its way between them, or to and from the client."""

    def __init__(self, place: Place) -> None:
        self.machine = FlowMachine(QUEUE, place, SETTINGS, 2, Latest(), 0, max_held=4)
        self.lanes: KeyLanes[Delivery] = KeyLanes(max_waiting=1)
        self.inbox: list[events.MachineEvent] = []
        """What its flow runner has not taken yet."""
        self.handle: Handle | None = None
        self.link = "up"
        """up, broken (which only the broker knows), or down."""
        self.task = ""
        """bind or unbind, while the transport is at it."""
        self.unanswered: list[Delivery] = []
        self.running: dict[str, Delivery] = {}

    @property
    def bound(self) -> Handle:
        """The handle of the newest epoch."""
        assert self.handle is not None
        return self.handle

    @property
    def is_stopped(self) -> bool:
        """Whether its queue has stopped, which ends only when it gives the queue up."""
        is_kept = self.machine.state is FlowState.ACTIVE and self.bound.is_stopped
        return is_kept and self.link == "up" and not (self.inbox or self.bound.acks)

    @property
    def is_gone(self) -> bool:
        """Whether it has left."""
        return self.machine.is_stopped and not self.unanswered and not self.inbox


def number(delivery_id: DeliveryId) -> int:
    """The place of the message in the queue, from 0."""
    return delivery_id // 8
