"""Plays one pattern: the same stream, a member that joins, one that dies."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from lbg_runtime.cli.comparison.figures import Figures, Story, figures_of
from lbg_runtime.cli.comparison.members import Member, Watch
from lbg_runtime.cli.comparison.patterns import SHAPE, TOPIC, Pattern
from lbg_runtime.cli.comparison.stages import Stage, depth_of
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.publisher.hashed import HashedPublisher

BEGIN_TIMEOUT_S = 30.0
STUCK_S = 60.0
"""If nothing is handled for this long, beyond the work on one message, nothing will be. A stream with much work may
take long."""

POLL_S = 0.05
QUIET_S = 0.5
"""If nothing is handled for this long after the end of the stream, beyond the work on one message, nothing more comes
where no messages are kept."""

WARM_KEYS = 64
"""Keys used before the run: enough for every member to get one."""

BURST = 4
"""Messages of one key that are published at once, and must be kept in order."""


class PatternStuck(LbgError):
    """A pattern did not get going, or did not end, in time."""

    def __init__(self, pattern: str, waited_for: str) -> None:
        super().__init__(f"{pattern}: {waited_for} took too long")
        self.pattern = pattern
        self.waited_for = waited_for


@dataclass(frozen=True, slots=True)
class Stream:
    """What is published, the same for every pattern."""

    member_count: int
    keys: int
    rate: float
    """Messages a second."""
    seconds: float
    """How long each of the three parts lasts: nobody comes or goes, one member more, one gone."""
    work_ms: float
    """What handling a message takes on average."""


async def play(pattern: Pattern, stage: Stage, stream: Stream) -> Figures:
    """Play a pattern on a stage that has nothing on it yet; raises `PatternStuck`."""
    run = _Run(pattern, stage, stream)
    try:
        return await run.play()
    finally:
        await run.close()


class _Run:
    def __init__(self, pattern: Pattern, stage: Stage, stream: Stream) -> None:
        self._pattern = pattern
        self._stage = stage
        self._stream = stream
        self._watch = Watch(stream.work_ms)
        self._members: list[Member] = []
        self._session = stage.make_session("publisher")
        self._publisher = HashedPublisher(self._session, SHAPE, HashFunction.CRC32, publisher_id="compare")
        self._confirmed: Counter[str] = Counter()

    async def play(self) -> Figures:
        loop, stream = asyncio.get_running_loop(), self._stream
        self._pattern.prepare(self._stage)
        await self._session.open()
        for _ in range(stream.member_count):
            await self._add_member()
        await self._get_going()
        self._watch.begin()
        self._confirmed.clear()
        begin_s = loop.time()
        publishing = asyncio.create_task(self._publish())
        try:
            await asyncio.sleep(stream.seconds)
            join_s = loop.time()
            await self._add_member()
            await asyncio.sleep(max(0.0, begin_s + 2 * stream.seconds - loop.time()))
            crash_s = loop.time()
            victim = self._members[0].name
            self._watch.bury(victim)
            self._stage.cut(victim)
            await publishing
        finally:
            # If it is cut short: the publisher is about to be closed.
            publishing.cancel()
        await self._until_empty("the end of the stream")
        interval_s = stream.keys * BURST / stream.rate
        story = Story(self._confirmed, join_s, crash_s, interval_s)
        return figures_of(self._watch.handled, story, stream.member_count)

    async def close(self) -> None:
        await self._publisher.close(timeout_ms=1_000)
        await asyncio.gather(*(member.stop() for member in self._members), return_exceptions=True)
        await self._session.close()

    async def _add_member(self) -> None:
        member = self._pattern.make_member(f"member-{len(self._members)}", self._stage, self._watch)
        self._members.append(member)
        await member.start()

    async def _get_going(self) -> None:
        """Publish before the run begins, until every member has handled something and nothing is left to handle.

        Handling takes no time yet: with much work, the members would first have to do it all.
        """
        names = {member.name for member in self._members}
        try:
            async with asyncio.timeout(BEGIN_TIMEOUT_S):
                while {each.member for each in self._watch.handled} != names:
                    for number in range(WARM_KEYS):
                        await self._publish_burst(f"warm-{number}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise PatternStuck(self._pattern.name, "the start of the members") from None
        await self._until_empty("the start of the members")

    async def _publish(self) -> None:
        loop, stream = asyncio.get_running_loop(), self._stream
        begin_s, burst_s = loop.time(), BURST / stream.rate
        for number in range(round(3 * stream.seconds / burst_s)):
            await asyncio.sleep(max(0.0, begin_s + number * burst_s - loop.time()))
            await self._publish_burst(f"key-{number % stream.keys}")

    async def _publish_burst(self, key: str) -> None:
        for _ in range(BURST):
            answer = await self._publisher.submit(f"{TOPIC}/{key}", b"x" * 100, key=key)
            answer.add_done_callback(self._note)

    def _note(self, answer: "asyncio.Future[Confirmation]") -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._confirmed[answer.result().key] += 1

    async def _until_empty(self, waited_for: str) -> None:
        """Wait until nothing is under way any more; raises `PatternStuck` if there is no progress."""
        loop, work_s = asyncio.get_running_loop(), self._watch.longest_work_s
        seen, seen_s = len(self._watch.handled), loop.time()
        while True:
            # The broker has no event for this.
            await asyncio.sleep(POLL_S)
            if len(self._watch.handled) != seen:
                seen, seen_s = len(self._watch.handled), loop.time()
            quiet_s = loop.time() - seen_s - work_s
            if quiet_s >= QUIET_S and not self._publisher.counts.unconfirmed and not depth_of(self._stage):
                return
            if quiet_s >= STUCK_S:
                raise PatternStuck(self._pattern.name, waited_for)
