"""The story: two members of four, load, two more, a SIGKILL, a restart, a SIGTERM."""

from collections.abc import Callable
from dataclasses import dataclass

from lbg_runtime.cli.live.group import PUBLISHER, LiveGroup, member_name

MEMBER_COUNT = 4
"""Planned members; if they are counted, queue q's primary is the member with index q modulo this."""

SCENE_S = 2.0
"""How long the load runs undisturbed between two events, so that a reader can see the picture settle."""
PAGE_SCENE_S = 6.0
"""The same if there is a page, which has to be opened first."""


@dataclass(slots=True)
class Story:
    """Plays once, in a group that has not been started. `on_scene` is called when a scene begins."""

    group: LiveGroup
    rate_per_s: int
    key_count: int
    on_scene: Callable[[str], None]
    on_page: Callable[[str], None] | None = None
    """Called with the page's address, if a page is to be shown."""

    async def play(self) -> None:
        """Run every process and every scene; raises `StepStuck` or `ProcessEnded` when it cannot go on."""
        async with self.group:
            self.on_scene("start the development broker")
            await self.group.start_broker()
            if self.on_page is not None:
                self.on_page(await self.group.start_dashboard())
            await self._two_members()
            await self._load()
            await self._scale_out()
            await self._crash()
            await self._scale_in()
            await self._finish()

    async def _two_members(self) -> None:
        self.on_scene(f"start 2 of {MEMBER_COUNT} planned members")
        for index in (0, 1):
            await self.group.start_member(index)
        await self.group.until("every queue is fed to a member", self.group.everything_is_fed)

    async def _load(self) -> None:
        self.on_scene(f"publish {self.rate_per_s} messages a second over {self.key_count} keys, all the time")
        await self.group.start_publisher(self.rate_per_s, self.key_count)
        await self.group.until("messages are handled", lambda: bool(self.group.board.distinct))
        await self._play_on()

    async def _scale_out(self) -> None:
        self.on_scene("add members 3 and 4: each gets its share of the queues from those that hold them")
        for index in (2, 3):
            await self.group.start_member(index)
        await self.group.until("every queue is at home", lambda: self.group.is_at_home(MEMBER_COUNT))
        await self._play_on()

    async def _crash(self) -> None:
        victim = member_name(2)
        self.on_scene(f"SIGKILL {victim}: standbys take over")
        orphans = self.group.board.active_queues(victim)
        await self.group.kill(victim)
        board = self.group.board
        await self.group.until("the dead member's queues are fed to others", lambda: orphans <= board.owned_queues())
        await self._play_on()
        self.on_scene(f"start {victim} again")
        await self.group.start_member(2)
        await self.group.until("every queue is at home again", lambda: self.group.is_at_home(MEMBER_COUNT))
        await self._play_on()

    async def _scale_in(self) -> None:
        leaver = member_name(1)
        self.on_scene(f"SIGTERM {leaver}: it gives its queues away, drains, settles and leaves")
        await self.group.stop(leaver)
        await self.group.until("its queues are fed to others", self.group.everything_is_fed)
        await self._play_on()

    async def _finish(self) -> None:
        self.on_scene("stop the publisher, let the members finish what is spooled")
        await self.group.stop(PUBLISHER)
        published = self.group.published()
        await self.group.until("everything published is handled", lambda: len(self.group.board.distinct) >= published)
        self.on_scene("stop the members")
        await self.group.stop_all()

    async def _play_on(self) -> None:
        await self.group.play_on(SCENE_S if self.on_page is None else PAGE_SCENE_S)
