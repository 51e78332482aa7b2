"""Replay: a client that binds has what its queue attracts of the VPN's replay log again, then what is live."""

from dataclasses import replace

from lbg_runtime.broker.engine.effects import Effect, Published
from lbg_runtime.broker.engine.queue import Queue
from lbg_runtime.broker.engine.registry import Registry
from lbg_runtime.broker.engine.replay_log import ReplayLog, ReplayStart
from lbg_runtime.broker.engine.settings import AccessType
from lbg_runtime.broker.engine.subscriptions import topic_of
from lbg_runtime.broker.engine.surroundings import Surroundings
from lbg_runtime.broker.engine.vpn import Vpn
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.failure import QUEUE_ADDRESS_PREFIX
from lbg_runtime.model.topic import matches


class Replays:
    """Part of an engine, with its rules: one thread, refusals are `BrokerRefusal`, effects are to be carried out."""

    def __init__(self, registry: Registry, surroundings: Surroundings) -> None:
        self._registry = registry
        self._surroundings = surroundings

    def keep_log(self, vpn: str, max_bytes: int | None) -> None:
        """Have a VPN keep a replay log of so much from now on, or none; 403 `Message VPN Not Allowed`.

        In memory alone: a broker that is started again begins a new one.
        """
        home = self._registry.vpn(vpn)
        if max_bytes is None:
            home.replay_log = None
        elif home.replay_log is None:
            home.replay_log = ReplayLog(max_bytes, self._surroundings.wall_s)
        else:
            home.replay_log.resize(max_bytes)

    def log_usage(self, vpn: str) -> tuple[int, int] | None:
        """Messages and bytes in a VPN's replay log; None where it keeps none; 403 `Message VPN Not Allowed`."""
        log = self._registry.vpn(vpn).replay_log
        return None if log is None else (log.message_count, log.size_bytes)

    def choose(self, vpn: Vpn, queue: Queue, start: ReplayStart, *, browser: bool) -> list[Published] | None:
        """What a bind brings back to a queue, in order; None where it asks for a time before there was a log.

        503 `Replay Disabled` without a log, 403 for a browser, a temporary queue, one that is not exclusive, and a flow
        that would not be fed; as `ReplayLog.since`; 503 `Replayed Message Rejected by Queue` where the queue would not
        take all of it.
        """
        log = vpn.replay_log
        if log is None:
            raise BrokerRefusal(503, "Replay Disabled")
        if browser:
            raise BrokerRefusal(403, "Client Initiated Replay from Browser Flow Not Allowed")
        if queue.temporary_of is not None:
            raise BrokerRefusal(403, "Replay Not Supported on Temporary Queue")
        if queue.settings.access_type is not AccessType.EXCLUSIVE:
            raise BrokerRefusal(403, "Client Initiated Replay Not Allowed on Non-Exclusive Queue")
        if queue.has_consumers:
            raise BrokerRefusal(403, "Client Initiated Replay from Inactive Flow Not Allowed")
        if not log.reaches_back_to(start):
            return None
        subscriptions = [topic_of(text) for text in vpn.queue_subscriptions.of(queue)]
        address = f"{QUEUE_ADDRESS_PREFIX}{queue.name}"
        chosen = [
            message
            for message in log.since(start)
            if message.topic == address or any(matches(each, message.topic) for each in subscriptions)
        ]
        settings = queue.settings
        if sum(message.size_bytes for message in chosen) > settings.quota_bytes or any(
            message.size_bytes > settings.max_message_bytes for message in chosen
        ):
            raise BrokerRefusal(503, "Replayed Message Rejected by Queue")
        return chosen

    def begin(self, queue: Queue, messages: list[Published]) -> list[Effect]:
        """Have a queue without consumers hold these messages and no others; browsers end with 503 `Replay Started`."""
        effects = self._registry.end_flows(queue, "Replay Started")
        effects += queue.delete_messages(None)
        now_s = int(self._surroundings.wall_s())
        for message in messages:
            # Its life begins anew.
            effects += queue.add(replace(message, spooled_at_s=now_s))
        return effects
