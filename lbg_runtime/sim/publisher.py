"""A hashed publisher: numbers its messages per key, waits for confirms, resends after an outage, and loses nothing."""

from collections import Counter

from lbg_runtime.broker.engine.effects import ClientId, FlowId, SingleEffect
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.sim.broker import SimBroker
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.history import Confirmed, Happening, Stamp
from lbg_runtime.sim.link import Link
from lbg_runtime.sim.schedule import Schedule
from lbg_runtime.sim.settings import SimSettings


class SimPublisher:
    """Publishes a fixed number of messages over the keys of the run; lives as long as the run."""

    def __init__(
        self,
        name: str,
        broker: SimBroker,
        schedule: Schedule,
        chance: SeededChance,
        settings: SimSettings,
        history: list[Happening],
    ) -> None:
        self._name = name
        self._broker = broker
        self._schedule = schedule
        self._chance = chance
        self._settings = settings
        self._history = history
        self._link: Link | None = None
        self._client: ClientId | None = None
        self._flow: FlowId | None = None
        self._flow_name = ""
        self._last_id = 0
        self._sequences: Counter[str] = Counter()
        self._unconfirmed: dict[int, Stamp] = {}
        self._connect()
        schedule.after(0, self._publish_next)

    @property
    def is_done(self) -> bool:
        """Whether everything is published and confirmed."""
        return self._last_id >= self._settings.messages and not self._unconfirmed

    def break_connection(self, broker_notices_ms: int, publisher_notices_ms: int) -> None:
        """Cut the connection; each end notices after its own delay."""
        link, client = self._link, self._client
        if link is None:
            return
        link.cut()
        if client is not None:
            self._schedule.after(broker_notices_ms, lambda: self._broker.notice_loss(client))
        self._schedule.after(publisher_notices_ms, lambda: self._notice_loss(link))

    def _publish_next(self) -> None:
        if self._last_id >= self._settings.messages:
            return
        if len(self._unconfirmed) < self._settings.unconfirmed:
            key = f"k{self._chance.between(1, self._settings.keys)}"
            self._sequences[key] += 1
            self._last_id += 1
            self._unconfirmed[self._last_id] = Stamp(self._name, key, self._sequences[key])
            self._send(self._last_id)
        self._schedule.after(self._chance.between(1, self._settings.publish_gap_ms), self._publish_next)

    def _send(self, message_id: int) -> None:
        link, client, flow = self._link, self._client, self._flow
        if link is None or client is None or flow is None:
            return  # Sent when the flow is open again.
        stamp = self._unconfirmed[message_id]
        shape = self._broker.shape
        shard = shard_of(HashFunction.CRC32, stamp.key, shape.hash_count)
        topic = shape.hashed_topic(shard, f"orders/{stamp.key}")

        def answer() -> None:
            if self._link is link:
                self._confirm(message_id)

        link.up.send(lambda: self._broker.publish(client, flow, message_id, topic, stamp, answer))

    def _confirm(self, up_to_id: int) -> None:
        for message_id in [known for known in self._unconfirmed if known <= up_to_id]:
            self._history.append(Confirmed(self._schedule.now_ms, self._unconfirmed.pop(message_id)))

    def _connect(self) -> None:
        link = Link(self._schedule, self._chance, self._settings.longest_delay_ms)
        self._link = link

        def opened(flow: FlowId, name: str, last_accepted_id: int) -> None:
            if self._link is link:
                self._flow, self._flow_name = flow, name
                self._confirm(last_accepted_id)
                for message_id in list(self._unconfirmed):
                    self._send(message_id)

        def lost() -> None:
            self._notice_loss(link)

        def connected(client: ClientId) -> None:
            if self._link is link:
                self._client = client
                link.up.send(lambda: self._broker.open_publisher(client, self._flow_name, opened))

        link.up.send(lambda: self._broker.connect(link, self._name, _ignore, lost, connected))

    def _notice_loss(self, link: Link) -> None:
        if self._link is link:
            self._link = self._client = self._flow = None
            self._schedule.after(self._chance.between(0, 500), self._connect)


def _ignore(_: SingleEffect) -> None:
    """Do nothing: a publisher is sent nothing."""
