"""A flow handle as the official client keeps it: over reconnects, with its window, its held and batched settlements."""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, assert_never

from lbg_runtime.broker.engine.answers import BoundQueue, SettledRange
from lbg_runtime.broker.engine.effects import ActivityChanged, ClientId, Deliver, FlowEnded, FlowId
from lbg_runtime.core.flow.events import (
    BindRefused,
    BindSucceeded,
    FlowActive,
    FlowDown,
    FlowInactive,
    MachineEvent,
    MessageReceived,
    UnbindFinished,
)
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.sim.broker import SimBroker, message_of
from lbg_runtime.sim.history import Handle, HandleBound, Happening, MessageDropped
from lbg_runtime.sim.link import Link
from lbg_runtime.sim.process import Process
from lbg_runtime.sim.schedule import Schedule
from lbg_runtime.sim.settings import SimSettings

if TYPE_CHECKING:
    from lbg_runtime.sim.client import SimClient

MOST_BATCHED = 64
"""This many settlements are sent without waiting for the timer."""


class HandleState(Enum):
    """Where a handle stands between its owner and the broker."""

    BINDING = "binding"
    BOUND = "bound"
    AWAY = "away"
    """The connection is lost; settlements are held."""
    REBINDING = "rebinding"
    UNBINDING = "unbinding"
    DEAD = "dead"


class SimHandle:
    """Created by a client for one `Bind` of a flow machine. Every call runs inside the member's process.

    `tell` is called on a thread other than the loop's, which goes on while the loop hangs.
    """

    def __init__(
        self,
        name: Handle,
        client: "SimClient",
        broker: SimBroker,
        process: Process,
        schedule: Schedule,
        settings: SimSettings,
        history: list[Happening],
        tell: Callable[[MachineEvent], None],
    ) -> None:
        self.name = name
        self.state = HandleState.BINDING
        self.flow: FlowId | None = None
        self._client = client
        self._broker = broker
        self._process = process
        self._schedule = schedule
        self._settings = settings
        self._history = history
        self._tell = tell
        self._is_active = False
        self._intake_open = False
        self._unbind_wanted = False
        self._previous_id = DeliveryId(0)
        """The newest delivery on the broker's current flow; each re-bind starts a new chain."""
        self._last_received: DeliveryId | None = None
        self._seen: set[DeliveryId] = set()
        self._received_since_ack = 0
        self._settled: list[SettledRange] = []
        self._sent = 0
        """How many of the settlements are on their way."""
        self._timer_armed = False

    # -- for the member

    def settle(self, delivery_id: DeliveryId, outcome: Outcome) -> None:
        """Note how a delivery ended; sent in a batch, or at once if it was not accepted."""
        if self.state is HandleState.DEAD:
            return
        self._settled.append(SettledRange(delivery_id, delivery_id, outcome))
        # A rejection leaves at once. The acceptances before it must leave first, or a crash between the two would bring
        # back predecessors of a removed message (L3).
        if outcome is not Outcome.ACCEPTED or len(self._settled) - self._sent >= MOST_BATCHED:
            self.flush()
        else:
            self._arm_timer()

    def flush(self) -> None:
        """Send what is batched."""
        link, flow = self._client.link, self.flow
        if link is None or flow is None or self.state is not HandleState.BOUND:
            return
        ranges = self._settled[self._sent :]
        if not ranges:
            return
        self._sent = len(self._settled)
        link.up.send(lambda: self._broker.settle(self.name.queue, flow, ranges))

    def set_intake(self, *, is_open: bool) -> None:
        """Close or open the window; flushes settlements like the official client."""
        self._intake_open = is_open
        self.flush()
        self._advertise_window()

    def unbind(self) -> None:
        """Give the handle up; `UnbindFinished` follows in any case."""
        match self.state:
            case HandleState.BOUND:
                self.flush()
                self._send_unbind()
            case HandleState.BINDING | HandleState.REBINDING:
                self._unbind_wanted = True
            case HandleState.AWAY | HandleState.DEAD:
                # Without a connection the held settlements are lost with the handle.
                self.state = HandleState.DEAD
                self._process.after_beside(0, lambda: self._tell(UnbindFinished(self.name.epoch, is_confirmed=False)))
            case HandleState.UNBINDING:
                pass
            case _:
                assert_never(self.state)

    # -- for the client

    def send_bind(self, link: Link, client: ClientId) -> None:
        """Bind, for the first time or again."""
        if self.state is HandleState.AWAY:
            self.state = HandleState.REBINDING
        last_received = self._last_received

        def answer(bound: BoundQueue | None) -> None:
            self._process.run_beside(lambda: self._refused(link) if bound is None else self._bound(link, bound))

        link.up.send(lambda: self._broker.bind(client, self.name, last_received, answer))

    def connection_lost(self) -> None:
        """The client noticed that its connection is gone."""
        self.flow = None
        match self.state:
            case HandleState.BINDING:
                self.state = HandleState.DEAD
                self._tell(BindRefused(self.name.epoch, "connection lost", permanent=False))
            case HandleState.BOUND | HandleState.REBINDING:
                self.state = HandleState.AWAY
                self._report_activity(active=False)
                if self._unbind_wanted:
                    self.unbind()
            case HandleState.UNBINDING:
                self.state = HandleState.DEAD
                self._tell(UnbindFinished(self.name.epoch, is_confirmed=False))
            case HandleState.AWAY | HandleState.DEAD:
                pass
            case _:
                assert_never(self.state)

    def take(self, effect: Deliver | ActivityChanged | FlowEnded) -> None:
        """The broker sent something on the handle's flow."""
        if self.state is HandleState.DEAD:
            return
        match effect:
            case Deliver():
                self._take_message(effect)
            case ActivityChanged():
                self._report_activity(active=effect.active)
            case FlowEnded():
                self.flow = None
                if self.state is not HandleState.UNBINDING:
                    self.state = HandleState.DEAD
                self._tell(FlowDown(self.name.epoch, effect.text))
            case _:
                assert_never(effect)

    # -- parts

    def _refused(self, link: Link) -> None:
        if self._client.link is not link or self.state not in (HandleState.BINDING, HandleState.REBINDING):
            return
        is_first, self.state = self.state is HandleState.BINDING, HandleState.DEAD
        epoch, text = self.name.epoch, "Unknown Queue"
        if self._unbind_wanted:
            # As in the official client: an unbind finishes, whatever has become of the queue.
            self._tell(UnbindFinished(epoch))
        else:
            self._tell(BindRefused(epoch, text, permanent=True) if is_first else FlowDown(epoch, text))

    def _bound(self, link: Link, bound: BoundQueue) -> None:
        if self._client.link is not link or self.state not in (HandleState.BINDING, HandleState.REBINDING):
            return
        is_first = self.state is HandleState.BINDING
        self.state = HandleState.BOUND
        self.flow = bound.flow
        self._previous_id = DeliveryId(0)
        self._client.route(bound.flow, self)
        # What was sent just before the connection broke may be lost, and a later settlement must not arrive without it
        # (L3): everything is sent again. The official client does this, unless it was asked for negative outcomes.
        self._sent = 0
        if is_first:
            self._history.append(HandleBound(self._schedule.now_ms, self.name))
            self._later(self._settings.bind_lag_ms, BindSucceeded(self.name.epoch))
        if bound.active:
            self._report_activity(active=True)
        self.flush()
        if self._unbind_wanted:
            self._send_unbind()
        else:
            self._advertise_window()

    def _send_unbind(self) -> None:
        self.state = HandleState.UNBINDING
        link, client, flow = self._client.link, self._client.client_id, self.flow
        if link is None or client is None or flow is None:
            return  # The loss of the connection is about to be noticed, and ends the unbind.

        def answer() -> None:
            self._process.run_beside(self._unbound)

        link.up.send(lambda: self._broker.unbind(client, flow, answer))

    def _unbound(self) -> None:
        if self.state is HandleState.UNBINDING:
            self.state = HandleState.DEAD
            self._tell(UnbindFinished(self.name.epoch))

    def _take_message(self, effect: Deliver) -> None:
        if effect.delivery_id in self._seen or effect.previous_id != self._previous_id:
            self._history.append(MessageDropped(self._schedule.now_ms, self.name, effect.delivery_id))
            return
        self._seen.add(effect.delivery_id)
        self._previous_id = self._last_received = effect.delivery_id
        self._received_since_ack += 1
        if not self._intake_open or self._received_since_ack * 10 >= self._settings.window * 6:
            self._advertise_window()
        else:
            self._arm_timer()
        message = message_of(effect.message)
        received_at_ns = self._schedule.now_ms * 1_000_000
        delivery = Delivery(
            self.name.queue, self.name.epoch, effect.delivery_id, message, effect.redelivered, received_at_ns
        )
        self._later(self._settings.message_lag_ms, MessageReceived(delivery))

    def _report_activity(self, *, active: bool) -> None:
        if self._is_active == active:
            return
        self._is_active = active
        epoch = self.name.epoch
        self._later(self._settings.activity_lag_ms, FlowActive(epoch) if active else FlowInactive(epoch))

    def _later(self, lag_ms: int, event: MachineEvent) -> None:
        if lag_ms:
            self._process.after_beside(lag_ms, lambda: self._tell_unless_ended(event))
        else:
            self._tell(event)

    def _tell_unless_ended(self, event: MachineEvent) -> None:
        # Messages of a handle that has ended are not shown any more, as in the transport.
        if self.state is not HandleState.DEAD or not isinstance(event, MessageReceived):
            self._tell(event)

    def _advertise_window(self) -> None:
        link, flow = self._client.link, self.flow
        if link is None or flow is None or self.state is not HandleState.BOUND:
            return
        self._received_since_ack = 0
        window = self._settings.window if self._intake_open else 0
        received_up_to = self._last_received or DeliveryId(0)
        link.up.send(lambda: self._broker.open_window(flow, received_up_to, window))

    def _arm_timer(self) -> None:
        if not self._timer_armed:
            self._timer_armed = True
            self._process.after_beside(self._settings.ack_timer_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_armed = False
        if self._process.keeps_settlements:
            # The loop makes sure that they leave in time: see `keeps_settlements` of `LoopHung`.
            self._process.run(self.flush)
        else:
            self.flush()
        if self._received_since_ack:
            self._advertise_window()
