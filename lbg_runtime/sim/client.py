"""A member's session with the broker: connects, comes back after an outage, and binds its handles again."""

from collections.abc import Callable

from lbg_runtime.broker.engine.effects import ActivityChanged, ClientId, Deliver, FlowEnded, FlowId, SingleEffect
from lbg_runtime.core.flow.events import BindRefused, MachineEvent
from lbg_runtime.model.errors import NOT_CONNECTED
from lbg_runtime.sim.broker import SimBroker
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.handle import HandleState, SimHandle
from lbg_runtime.sim.history import Handle, Happening
from lbg_runtime.sim.link import Link
from lbg_runtime.sim.process import Process
from lbg_runtime.sim.schedule import Schedule
from lbg_runtime.sim.settings import SimSettings

LONGEST_OUTAGE_MS = 800
"""From noticing a loss to being connected again, without network delays."""


class SimClient:
    """One life's connection. The world calls `break_connection` and `leave`; the member calls everything else."""

    def __init__(
        self,
        client_name: str,
        broker: SimBroker,
        process: Process,
        schedule: Schedule,
        chance: SeededChance,
        settings: SimSettings,
        history: list[Happening],
        on_connection: Callable[[bool], None],
    ) -> None:
        """`on_connection` is called, not on the loop's thread, when the connection is up, and when it is lost."""
        self.link: Link | None = None
        """The connection; None if there is none."""
        self.client_id: ClientId | None = None
        """The broker's number of the connection; None until it has answered."""
        self._client_name = client_name
        self._broker = broker
        self._process = process
        self._schedule = schedule
        self._chance = chance
        self._settings = settings
        self._history = history
        self._on_connection = on_connection
        self._handles: list[SimHandle] = []
        self._flows: dict[FlowId, SimHandle] = {}

    def connect(self) -> None:
        """Open a connection; it stays open, or is opened again, until the process ends."""
        link = Link(self._schedule, self._chance, self._settings.longest_delay_ms)
        self.link = link

        def sink(effect: SingleEffect) -> None:
            self._process.run_beside(lambda: self._take(link, effect))

        def lost() -> None:
            self._process.run_beside(lambda: self._notice_loss(link))

        def answer(client: ClientId) -> None:
            self._process.run_beside(lambda: self._connected(link, client))

        link.up.send(lambda: self._broker.connect(link, self._client_name, sink, lost, answer))

    def bind(self, name: Handle, tell: Callable[[MachineEvent], None]) -> SimHandle:
        """Bind a new handle; `tell` gets its events."""
        handle = SimHandle(name, self, self._broker, self._process, self._schedule, self._settings, self._history, tell)
        if self.link is None or self.client_id is None:
            handle.state = HandleState.DEAD
            self._process.after_beside(1, lambda: tell(BindRefused(name.epoch, NOT_CONNECTED, permanent=False)))
        else:
            self._handles.append(handle)
            handle.send_bind(self.link, self.client_id)
        return handle

    def route(self, flow: FlowId, handle: SimHandle) -> None:
        """Route what the broker sends on a flow to this handle."""
        self._flows[flow] = handle

    # -- what the world does to it

    def break_connection(self, broker_notices_ms: int, client_notices_ms: int) -> None:
        """Cut the connection; each end notices after its own delay."""
        link, client = self.link, self.client_id
        if link is None:
            return
        link.cut()
        if client is not None:
            self._schedule.after(broker_notices_ms, lambda: self._broker.notice_loss(client))
        self._process.after_beside(client_notices_ms, lambda: self._notice_loss(link))

    def leave(self) -> None:
        """End with the process: what it sent still arrives, then the broker sees the connection end."""
        link, client = self.link, self.client_id
        if link is not None and client is not None:
            link.end_after_frames(lambda: self._broker.notice_loss(client))

    # -- parts

    def _connected(self, link: Link, client: ClientId) -> None:
        if self.link is not link:
            return
        self.client_id = client
        self._handles = [handle for handle in self._handles if handle.state is not HandleState.DEAD]
        for handle in self._handles:
            handle.send_bind(link, client)
        self._on_connection(True)

    def _notice_loss(self, link: Link) -> None:
        if self.link is not link:
            return
        self.link = self.client_id = None
        self._flows.clear()
        for handle in list(self._handles):
            handle.connection_lost()
        self._on_connection(False)
        self._process.after_beside(self._chance.between(0, LONGEST_OUTAGE_MS), self.connect)

    def _take(self, link: Link, effect: SingleEffect) -> None:
        if self.link is not link or not isinstance(effect, Deliver | ActivityChanged | FlowEnded):
            return
        handle = self._flows.get(effect.flow)
        if handle is not None:
            handle.take(effect)
