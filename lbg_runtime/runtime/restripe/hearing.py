"""What the conductor of a re-striping hears: the members, and its own questions, which prove that it was not
replaced."""

import asyncio
import secrets
from itertools import count
from math import inf

from lbg_runtime.core.group.control_codec import encode
from lbg_runtime.core.group.control_messages import (
    GroupQuestion,
    Header,
    Heartbeat,
    Life,
    QuestionId,
    StoppedQueues,
)
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.restripe.layout import ensure_target
from lbg_runtime.core.restripe.records import StripePlan
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.errors import ConductorCutOff, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName, MemberId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.clock import now_ms, steady_s, wall_us
from lbg_runtime.runtime.control_reader import ControlReader
from lbg_runtime.runtime.session import Session

LOOK_AGAIN_S = 0.05
ASK_AGAIN_S = 1.0
"""The time between two questions to the members; unasked, they speak as often."""

PROOF_S = 3.0
"""The connection counts as proved if a question that is at most this old has come back."""

PROOF_PATIENCE_S = 8.0
"""How long a question that comes back is waited for."""

STOPPED_S = 3.0
"""How long a queue counts as stopped after its owner has said so, which it does in each answer."""


class Hearing:
    """Owned by one restriper, on its event loop; hears from `begin` on."""

    def __init__(self, shape: GroupShape, control_topic: str, session: Session, timing: MembershipTiming) -> None:
        self.book = StripingBook(1, shape.hash_count)
        self.picture = GroupPicture()
        self.is_heard = False
        """Whether a member has said anything that is understood."""
        self._group = GroupName(shape.name)
        self._reader = ControlReader(self._group, timing)
        self._listen_s = 2 * timing.heartbeat_ms / 1_000
        self._began_s = inf
        self._topic = control_topic
        self._session = session
        self._life = Life(wall_us(), secrets.randbits(53))
        self._asked_at_s: dict[int, float] = {}
        """When each question that has not come back was sent, by its number. All such times are of `steady_s`."""
        self._proved_at_s = -inf
        """When the newest question was sent that has come back: by then, the broker had not replaced us."""
        self._stopped_at_s: dict[QueueName, float] = {}
        """When the owner of each queue last said that it starts nothing more of it."""
        self._has_news = asyncio.Event()
        self._is_cut_off = False

    async def begin(self) -> None:
        self._session.watch_connection(self._connection_changed)
        await self._session.subscribe(self._topic, self._arrived)
        self._began_s = asyncio.get_running_loop().time()

    async def ask_now_and_then(self) -> None:
        """Ask the members for their state again and again, until cancelled. Our questions come back to us as well."""
        name = MemberId(f"restriper-{self._life.nonce}")
        for number in count(1):
            question = GroupQuestion(Header(self._group, name, self._life, number), QuestionId(f"{name}/{number}"))
            self._asked_at_s[number] = steady_s()
            self._session.send_direct(Message(self._topic, encode(question)))
            await asyncio.sleep(ASK_AGAIN_S)

    async def wait(self) -> None:
        """Wait until something was said, or it is time to look again."""
        self._has_news.clear()
        try:
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self._has_news.wait()
        except TimeoutError:
            pass

    async def insist_on_connection(self) -> None:
        """Return if a question that is at most `PROOF_S` old has come back, or as soon as one has.

        Nothing refuses a request over SEMP, so none may be sent once another conductor may have replaced us. That we
        have not heard of one is not enough: if this process was stopped, its host slept, or its loop was blocked, the
        news may still wait to be read. Raises `ConductorCutOff`, and `UserError` if no question has ever come back.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PROOF_PATIENCE_S
        while steady_s() - self._proved_at_s > PROOF_S and not self._is_cut_off:
            if loop.time() < until_s:
                await self.wait()
            elif self._proved_at_s == -inf:
                what = f"what is published there does not come back within {PROOF_PATIENCE_S:g} s"
                raise UserError(self._topic, what, "a user that may publish and subscribe there: `lbg group verify`")
            else:
                raise ConductorCutOff(self._group)
        self.insist_on_no_cut()

    @property
    def has_heard_all(self) -> bool:
        """Whether every member has had time to speak unasked: members of another version do not answer questions."""
        return asyncio.get_running_loop().time() - self._began_s >= self._listen_s

    async def hears_of_another(self, queue_count: int) -> bool:
        """Once each member has had time to speak: whether they go by another number of queues than this, or by a
        re-striping that is over.

        For a group whose queues name no re-striping. Raises what `insist_on_connection` raises, and `UserError` if the
        members go by a re-striping that leads away from this number: its plan may still be in the queues, and a second
        plan would stop them.
        """
        while not self.has_heard_all:
            await self.insist_on_connection()
            await self.wait()
        known = self.picture.striping
        if known is None:
            return False
        if known.target is not None and known.queue_count == queue_count:
            ensure_target(StripePlan(known.generation, queue_count, known.target, ""), queue_count)
        return known.target is not None or known.queue_count != queue_count

    def insist_on_fit_members(self, plan: StripePlan) -> None:
        """Raise `UserError` if members speak another version: they own queues, but would not tell us what they read
        there. Also if members are counted, and are more than there will be queues: none of them could start again."""
        if (other := self._reader.other_version(now_ms())) is not None:
            expected = f"{other.expected} from all members: bring them to one version of lbg_runtime first"
            raise UserError(self._topic, f"control messages of {other.found}", expected)
        for member, beat in self.picture.members.items():
            count = beat.settings.get("membership.count", "")
            if count.isdecimal() and plan.to_count < min(int(count), plan.from_count):
                found = f"{plan.to_count}, and member {member} is one of {count} by membership.count"
                expected = f"{count} or more, or all members stopped and then started with a smaller membership.count"
                raise UserError("--queues", found, expected)

    @property
    def waits_for(self) -> str:
        """What a re-striping waits for before its first step, for people."""
        if self.has_heard_all and not self.is_heard:
            return self.with_hindrance("a member: none is heard, and without one no shard can move")
        return self.with_hindrance("the members to say how far they are")

    def with_hindrance(self, waiting_for: str) -> str:
        """What is waited for and, if there is one, the reason why that may not come: members speak another version, or
        a queue has stopped."""
        if not waiting_for:
            return ""
        if (other := self._reader.other_version(now_ms())) is not None:
            return f"{waiting_for} ({other})"
        now_s = asyncio.get_running_loop().time()
        stopped = sorted(one for one, at_s in self._stopped_at_s.items() if now_s - at_s < STOPPED_S)
        if not stopped:
            return waiting_for
        return f"{waiting_for} (have stopped, as `lbg group status` says: {', '.join(stopped)})"

    def insist_on_no_cut(self) -> None:
        """Raise `ConductorCutOff` if it is known that the connection is gone."""
        if self._is_cut_off:
            raise ConductorCutOff(self._group)

    def _arrived(self, message: Message) -> None:
        heard = self._reader.understand(message.payload, now_ms())
        if heard is None:
            return
        if isinstance(heard, GroupQuestion) and heard.header.life == self._life:
            # What counts is when it was sent: if we were stopped meanwhile, it may have waited long to be read.
            self._proved_at_s = max(self._asked_at_s.pop(heard.header.sequence, -inf), self._proved_at_s)
        self.picture.hear(heard)
        if isinstance(heard, Heartbeat):
            self.is_heard = True
            self.book.hear(heard.striping)
        if isinstance(heard, StoppedQueues):
            now_s = asyncio.get_running_loop().time()
            self._stopped_at_s.update(dict.fromkeys(heard.queues, now_s))
        self._has_news.set()

    def _connection_changed(self, is_up: bool) -> None:
        if not is_up:
            self._is_cut_off = True
