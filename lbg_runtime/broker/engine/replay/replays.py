"""Replays: a queue gets what it attracts of its VPN's replay log again, as a client's bind or an administrator asks."""

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from lbg_runtime.broker.engine.changes import (
    MessageLogged,
    MessageUnlogged,
    ReplayLogGone,
    ReplayLogKept,
)
from lbg_runtime.broker.engine.effects import Effect, Published
from lbg_runtime.broker.engine.matching.subscriptions import topic_of
from lbg_runtime.broker.engine.queue import Queue
from lbg_runtime.broker.engine.registry import Registry
from lbg_runtime.broker.engine.replay.log import ReplayLog, ReplayStart
from lbg_runtime.broker.engine.replay.progress import ReplayStatus
from lbg_runtime.broker.engine.settings import AccessType, ReplayLogSettings
from lbg_runtime.broker.engine.surroundings import Surroundings
from lbg_runtime.broker.engine.vpn import Vpn
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.failure import QUEUE_ADDRESS_PREFIX
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.topic import matches

DEFAULT_NAME = "default"
"""The name of a log that was not given one."""


class Replays:
    """Part of an engine, with its rules: one thread, refusals are `BrokerRefusal`, effects must be carried out."""

    def __init__(self, registry: Registry, surroundings: Surroundings, spooler: int) -> None:
        self._registry = registry
        self._surroundings = surroundings
        self._spooler = spooler

    def log(self, vpn: str) -> ReplayLog | None:
        """A VPN's replay log, for reading; None if it has none; 403 `Message VPN Not Allowed`."""
        return self._registry.vpn(vpn).replay_log

    def keep_log(self, vpn: str, settings: ReplayLogSettings | None) -> None:
        """Have a VPN keep a replay log with these settings from now on, or none; 403 `Message VPN Not Allowed`."""
        home = self._registry.vpn(vpn)
        if home.replay_log is not None and settings is not None:
            home.replay_log.change(settings)
        elif settings is not None:
            first = self._registry.numbers.last + 1
            changes = self._registry.changes
            home.replay_log = ReplayLog(vpn, settings, self._surroundings.wall_s, changes, first=first)
            home.replay_log.change(settings)
        elif home.replay_log is not None:
            home.replay_log.clear()
            home.replay_log = None
            if self._registry.changes is not None:
                self._registry.changes.note(ReplayLogGone(vpn))

    def keep_log_of_size(self, vpn: str, max_bytes: int) -> None:
        """Have a VPN keep a replay log of this size, created if it has none; other settings stay as they are."""
        log = self._registry.vpn(vpn).replay_log
        settings = ReplayLogSettings(DEFAULT_NAME, max_bytes) if log is None else log.settings
        self.keep_log(vpn, replace(settings, max_bytes=max_bytes))

    def trim(self, vpn: str, before_ns: int) -> None:
        """Remove from a VPN's log what came before this time; no effect if there is no log."""
        log = self._registry.vpn(vpn).replay_log
        while log is not None and log.oldest is not None and log.oldest.came_ns < before_ns:
            log.give_up_oldest()

    def start(self, vpn: str, queue: QueueName, start: ReplayStart) -> list[Effect]:
        """Have a queue hold what it attracts of the log from `start` on, and no other messages.

        All its flows end with 503 `Replay Started`, which makes clients bind again. Refusals, which leave the queue as
        it was: 403 `Message VPN Not Allowed`, 503 `Unknown Queue`, 503 `Replay Start Time Not Available`, 403 `Replay
        Not Supported on Partitioned Queue`, and as `choose`, except that the queue need not be exclusive or without
        consumers.
        """
        home = self._registry.vpn(vpn)
        found = home.queue(queue)
        chosen = self._choose(home, found, start, lambda: _check_parts(found))
        if chosen is None:
            raise BrokerRefusal(503, "Replay Start Time Not Available")
        return self.begin(found, chosen)

    def cancel(self, vpn: str, queue: QueueName) -> list[Effect]:
        """Remove replayed messages that are still on a queue, no matter who holds them; live messages stay.

        403 `Message VPN Not Allowed`, 503 `Unknown Queue`.
        """
        found = self._registry.queue(vpn, queue)
        return found.delete_messages(found.replays.end())

    def status(self, vpn: str, queue: QueueName) -> ReplayStatus:
        """How far the replays to a queue have come, in this life of the broker; errors as for `cancel`."""
        return self._registry.queue(vpn, queue).replays.status()

    def restore(self, change: MessageLogged | MessageUnlogged | ReplayLogKept | ReplayLogGone) -> None:
        """Apply one change of an earlier life of the broker again."""
        self._registry.add_vpn(change.vpn)
        home = self._registry.vpn(change.vpn)
        log = home.replay_log
        match change:
            case ReplayLogKept(vpn, settings, began_ns, first):
                if log is None:
                    changes = self._registry.changes
                    home.replay_log = ReplayLog(vpn, settings, self._surroundings.wall_s, changes, began_ns, first)
                else:
                    log.settings = settings
            case ReplayLogGone():
                home.replay_log = None
            case MessageLogged(_, came_ns, message):
                self._registry.numbers.skip_to(message.number)
                if log is not None:
                    log.restore(came_ns, message)
            case MessageUnlogged():
                if log is not None:
                    log.give_up_oldest()
            case _:
                assert_never(change)

    def choose(self, vpn: Vpn, queue: Queue, start: ReplayStart, *, browser: bool) -> list[Published] | None:
        """The messages that a bind brings back to a queue, in order; None if it asks for a time before the log existed.

        503 `Replay Disabled` without a log, 403 for a browser, a temporary queue, one that is not exclusive, and a flow
        that would not be fed; as `ReplayLog.since`; 503 `Replayed Message Rejected by Queue` if the queue would not
        take all of them.
        """
        return self._choose(vpn, queue, start, lambda: _check_bind(queue, browser=browser))

    def begin(self, queue: Queue, messages: list[Published]) -> list[Effect]:
        """Have a queue hold these messages and no others; its flows end with 503 `Replay Started`."""
        queue.replays.end()
        effects = self._registry.end_flows(queue, "Replay Started")
        effects += queue.delete_messages(None)
        now_s = int(self._surroundings.wall_s())
        first = queue.spool.last_sequence + 1
        for message in messages:
            # Its time to live starts again.
            effects += queue.add(replace(message, spooled_at_s=now_s))
        queue.replays.began(first)
        return effects

    def _choose(self, vpn: Vpn, queue: Queue, start: ReplayStart, check: Callable[[], None]) -> list[Published] | None:
        chosen = None
        try:
            log = vpn.replay_log
            if log is None or not log.settings.egress_enabled:
                raise BrokerRefusal(503, "Replay Disabled")
            check()
            chosen = self._attracted(vpn, queue, log, start)
        finally:
            if chosen is None:
                queue.replays.failed()
        return chosen

    def _attracted(self, vpn: Vpn, queue: Queue, log: ReplayLog, start: ReplayStart) -> list[Published] | None:
        """The part of the log that a queue attracts, in order; None from a time before the log existed."""
        if not log.reaches_back_to(start):
            return None
        subscriptions = [topic_of(text) for text in vpn.queue_subscriptions.of(queue)]
        address = f"{QUEUE_ADDRESS_PREFIX}{queue.name}"
        chosen = [
            message
            for message in log.since(start, self._spooler)
            if message.topic == address or any(matches(each, message.topic) for each in subscriptions)
        ]
        settings = queue.settings
        if sum(message.size_bytes for message in chosen) > settings.quota_bytes or any(
            message.size_bytes > settings.max_message_bytes for message in chosen
        ):
            raise BrokerRefusal(503, "Replayed Message Rejected by Queue")
        return chosen


def _check_bind(queue: Queue, *, browser: bool) -> None:
    """Refuse a client that may not have messages replayed to a queue by binding to it."""
    if browser:
        raise BrokerRefusal(403, "Client Initiated Replay from Browser Flow Not Allowed")
    _check_temporary(queue)
    if queue.settings.access_type is not AccessType.EXCLUSIVE:
        raise BrokerRefusal(403, "Client Initiated Replay Not Allowed on Non-Exclusive Queue")
    if queue.has_consumers:
        raise BrokerRefusal(403, "Client Initiated Replay from Inactive Flow Not Allowed")


def _check_parts(queue: Queue) -> None:
    """Refuse a queue to which an administrator may not have messages replayed."""
    _check_temporary(queue)
    if queue.settings.is_partitioned:
        raise BrokerRefusal(403, "Replay Not Supported on Partitioned Queue")


def _check_temporary(queue: Queue) -> None:
    if queue.temporary_of is not None:
        raise BrokerRefusal(403, "Replay Not Supported on Temporary Queue")
