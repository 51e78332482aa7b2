"""Watches a group from outside, for as long as somebody may look: the tasks behind the live page.

It listens on the control topic, where members speak about once a second and at each change, and asks there once at its
beginning, for keys that viewers look for, and every five seconds while there is a viewer and a member whose status API
it does not reach. Those APIs and the broker's administration are asked only while there is a viewer, and the latter
also when an autoscaler asks.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

import httpx
import structlog

from lbg_runtime.admin.account import open_semp, semp_missing
from lbg_runtime.admin.backlog import find_shard_queues, read_backlog
from lbg_runtime.admin.sight import insist_on_broker_of
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.config.settings import Settings
from lbg_runtime.core.group.control_messages import ControlMessage, Inquiry, KeyAnswer
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.group.placement import Placement
from lbg_runtime.dashboard.board import AWAY, GroupBoard, Presence
from lbg_runtime.dashboard.feed import Feed, Sight
from lbg_runtime.dashboard.group_backlog import GroupBacklog, KeptBacklog
from lbg_runtime.dashboard.rates import FRESH_IN_GROUP_MS, FiguresHeard, HandlingRates, read_handled
from lbg_runtime.model.errors import SempError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.observer import Observer
from lbg_runtime.semp.client import SempClient

_log = structlog.get_logger(__name__)

TICK_S = 0.25
"""Between two looks at who has fallen silent."""
NUMBERS_EVERY_TICKS = 4
"""What changes all the time, messages in flight and rates, is shown once in this many ticks."""
NEWS_AFTER_S = 0.03
"""What happened is shown this much later, so that all that follows from one event is shown together."""
REST = 4
"""After an update, nothing is shown for this many times as long as the update took."""

ASK_MEMBERS_EVERY_S = 1.0
ASK_GROUP_EVERY_S = 5.0
"""Every member hears every answer."""
ASK_BROKER_EVERY_S = 2.0
ANSWER_WITHIN_S = 2.0
"""For a member, and for the broker to each question: sooner than an autoscaler stops waiting for us."""
KEY_ANSWERS_WITHIN_S = 2.5
"""Two and a half heartbeats at the default interval, as long as `lbg why` waits."""

FindHomes = Callable[[GroupPicture], tuple[Sequence[QueueName], Placement | None]]
"""The queues of the group by index, and where they belong, by what its members said."""


class GroupWatch:
    """Made and used on one event loop. As an async context manager it listens, and its context outlasts `run` and
    whoever reads `backlog`; once."""

    def __init__(
        self, settings: Settings, observer: Observer, find_homes: FindHomes, members: Sequence[ListenAddress]
    ) -> None:
        """`members` are the addresses at which members answer how they stand; empty if they do not.

        Raises `ConfigError` for `semp` that cannot be used.
        """
        group = settings.group
        self.feed = Feed(group.shape(), now_ms())
        self.has_ended = False
        """Whether no more news is told."""
        self._settings = settings
        self._observer = observer
        self._find_homes = find_homes
        self._members = members
        self._semp = open_semp(settings, within_s=ANSWER_WITHIN_S) if settings.semp is not None else None
        self.backlog = KeptBacklog(self._read_backlog, ASK_BROKER_EVERY_S)
        """For autoscalers. Reading it raises `ConfigError` if the settings have no `semp`."""
        self._board = GroupBoard(MembershipTiming(heartbeat_ms=settings.membership.heartbeat_ms))
        self._rates = HandlingRates()
        self._figures = FiguresHeard()
        self._sight = Sight(group.shape().queue_names(), None, None, is_connected=False, striping=None)
        self._seen_changes = -1
        self._viewers = 0
        self._has_viewers = asyncio.Event()
        self._news = asyncio.Event()
        self.hears_group = False
        """Whether `member_count` and `queue_count` are known: from two heartbeats after it began to hear, as members
        that live may have been silent until then, and only while it hears, as members that have died may seem to live.
        Not while all have fallen silent without a word: it may be our connection that has died, and not all members;
        the client of the broker finds that out later.
        """
        self._hears_since_ms: int | None = None
        """Since when nothing that was said can have been missed; None while the broker is out of reach
        or has not confirmed that we may listen."""
        self._timer: asyncio.TimerHandle | None = None
        self._rests_until_s = 0.0

    async def __aenter__(self) -> Self:
        """Begin to listen. Raises `TransportError` if the control topic is refused."""
        await self._observer.begin_to_follow(self._heard)
        self._update()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_feeds()
        if self._timer is not None:
            self._timer.cancel()
        if self._semp is not None:
            await self._semp.__aexit__(kind, error, trace)

    async def run(self) -> None:
        """Within the context: watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._observer.keep_following(self._hearing_changed))
            group.create_task(self._tick())
            group.create_task(self._ask_group())
            for address in self._members:
                group.create_task(self._ask_member(address))
            if self._semp is not None:
                group.create_task(self._ask_broker(self._semp))

    # -- viewers

    @contextmanager
    def viewing(self) -> Iterator[None]:
        """Somebody looks while this context lasts."""
        self._viewers += 1
        self._has_viewers.set()
        # Numbers may be old: nobody was looking.
        self._update()
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._has_viewers.clear()

    async def news(self, seen: int, within_s: float) -> None:
        """Return when there is something newer than this version of the feed, or after `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                while self.feed.version <= seen and not self.has_ended:
                    await self._news.wait()
        except TimeoutError:
            pass

    def end_feeds(self) -> None:
        """Release everybody who waits for news."""
        self.has_ended = True
        self._news.set()

    async def why(self, key: str) -> list[KeyAnswer]:
        """What members say of a key; raises `UserError` for one that cannot be asked for."""
        answers, _ = await self._observer.look_for_key(key, KEY_ANSWERS_WITHIN_S)
        return answers

    # -- autoscalers

    @property
    def member_count(self) -> int:
        """Members that live and are not on their way out, as far as they were heard."""
        staying = (Presence.JOINING, Presence.ACTIVE)
        return sum(member.presence in staying for member in self._board.members.values())

    @property
    def queue_count(self) -> int:
        """Queues of the group, as its members say; more members than that are of no use."""
        return len(self._sight.queues)

    @property
    def not_understood(self) -> str | None:
        """Why there may be members that are not counted; None if there is no sign of any."""
        other = self._observer.other_version
        return None if other is None else str(other)

    async def _read_backlog(self) -> GroupBacklog:
        if self._semp is None:
            raise semp_missing()
        vpn, group, striping = self._settings.connection.vpn, self._settings.group, self._board.picture.striping
        has_records = striping is not None and striping.target is not None
        await insist_on_broker_of(self._semp, vpn, self._observer.client_name)
        return GroupBacklog(await read_backlog(self._semp, vpn, group.name, self._queue_total()), has_records)

    def _queue_total(self) -> int | None:
        """How many queues members have; None if none is heard: our settings may be older than a re-striping.

        The most that any of them says: one may not know yet of a re-striping that adds some.
        """
        beats = self._board.picture.members.values()
        return max((beat.striping.striping.queue_total for beat in beats), default=None)

    # -- what is heard

    def _heard(self, message: ControlMessage | Inquiry) -> None:
        before = self._board.changes
        self._board.hear(message, now_ms())
        if message.header.member in self._board.members:
            told = self._figures.hear(message, self._sight.queues)
            if told is not None:
                self._rates.take(told, now_ms(), FRESH_IN_GROUP_MS)
        if self._board.changes != before:
            self._update_soon()

    def _hearing_changed(self, hears: bool) -> None:
        self.hears_group, self._hears_since_ms = False, now_ms() if hears else None
        if hears:
            self._board.excuse(now_ms())
        self._sight = replace(self._sight, is_connected=hears)
        self._update_soon()

    async def _tick(self) -> None:
        ticks, last_ms = 0, now_ms()
        while True:
            await asyncio.sleep(TICK_S)
            ticks, before_ms, last_ms = ticks + 1, last_ms, now_ms()
            if last_ms - before_ms > 4 * TICK_S * 1_000:
                # This process was stopped, and heard nothing meanwhile.
                self._board.excuse(last_ms)
                self._hears_since_ms = None if self._hears_since_ms is None else last_ms
            if self._hears_since_ms is not None:
                self._board.tick(last_ms)
                # After the look at who is silent, so that members that have died meanwhile are not counted.
                has_heard_ms = last_ms - self._hears_since_ms
                heartbeat_ms = self._settings.membership.heartbeat_ms
                self.hears_group = has_heard_ms >= 2 * heartbeat_ms and not self._board.has_lost_everybody
            if (not_understood := self.not_understood) != self._sight.not_understood:
                self._sight = replace(self._sight, not_understood=not_understood)
                self._update_soon()
            if self._viewers and ticks % NUMBERS_EVERY_TICKS == 0:
                self._update()
            elif self._board.changes != self._seen_changes:
                self._update_soon()

    # -- what is shown

    def _update_soon(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is None and not self.has_ended:
            self._timer = loop.call_at(max(loop.time() + NEWS_AFTER_S, self._rests_until_s), self._update)

    def _update(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._board.changes != self._seen_changes:
            self._seen_changes = self._board.changes
            queues, placement = self._find_homes(self._board.picture)
            striping = self._board.picture.striping
            self._sight = replace(self._sight, queues=queues, placement=placement, striping=striping)
        self._sight = replace(self._sight, figures=self._rates.figures(now_ms()))
        if self.feed.update(self._board, self._sight):
            news, self._news = self._news, asyncio.Event()
            news.set()
        self._rests_until_s = loop.time() + REST * (loop.time() - began_s)

    # -- who is asked

    async def _ask_group(self) -> None:
        while True:
            await self._has_viewers.wait()
            if self._lacks_figures():
                self._observer.ask_again()
            await asyncio.sleep(ASK_GROUP_EVERY_S)

    def _lacks_figures(self) -> bool:
        """Whether a member is there that has not told its version, or lately how much it handles."""
        now, versions = now_ms(), self._board.picture.versions
        living = [name for name, one in self._board.members.items() if one.presence not in AWAY]
        return any(name not in versions or not self._rates.knows(name, now) for name in living)

    async def _ask_member(self, address: ListenAddress) -> None:
        token = self._settings.ops.status_token
        headers = {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}
        async with httpx.AsyncClient(
            base_url=f"http://{address}", headers=headers, timeout=ANSWER_WITHIN_S, trust_env=False
        ) as client:
            while True:
                await self._has_viewers.wait()
                handled = await read_handled(client)
                if handled is not None:
                    self._rates.take(handled, now_ms())
                await asyncio.sleep(ASK_MEMBERS_EVERY_S)

    async def _ask_broker(self, client: SempClient) -> None:
        has_failed = False
        vpn, group = self._settings.connection.vpn, self._settings.group.name
        while True:
            await self._has_viewers.wait()
            began_s = asyncio.get_running_loop().time()
            try:
                # The standby of a pair has the same queues, and nothing in them.
                await insist_on_broker_of(client, vpn, self._observer.client_name)
                found = await find_shard_queues(client, vpn, group)
                depths = {name: queue.count("msgs") for name, queue in found.items()}
                has_failed = False
            except SempError as error:
                depths = None
                if not has_failed:
                    _log.warning("depths_unknown", reason=str(error))
                has_failed = True
            self._sight = replace(self._sight, depths=depths)
            # A broker that takes long has other things to do.
            took_s = asyncio.get_running_loop().time() - began_s
            await asyncio.sleep(max(ASK_BROKER_EVERY_S, REST * took_s))
