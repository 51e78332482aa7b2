"""What the conductor of a re-striping hears: the members, and the loss of its connection."""

import asyncio
import secrets

from lbg_runtime.core.group.control_codec import encode
from lbg_runtime.core.group.control_messages import GroupQuestion, Header, Life, QuestionId
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.errors import ConductorCutOff
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.clock import wall_us
from lbg_runtime.runtime.hearsay import Hearsay
from lbg_runtime.runtime.session import Session

LOOK_AGAIN_S = 0.05
ASK_AGAIN_S = 1.0
"""Between two questions to the members; what they say unasked comes as often."""


class Hearing:
    """Owned by one restriper, on its event loop; hears from `begin` on."""

    def __init__(self, shape: GroupShape, control_topic: str, session: Session) -> None:
        self.book = StripingBook(1, shape.hash_count)
        self.picture = GroupPicture()
        self.is_heard = False
        """Whether a member has said anything."""
        self._group = GroupName(shape.name)
        self._hearsay = Hearsay(self._group)
        self._topic = control_topic
        self._session = session
        self._has_news = asyncio.Event()
        self._is_cut_off = False

    async def begin(self) -> None:
        """Begin to listen."""
        self._session.watch_connection(self._connection_changed)
        await self._session.subscribe(self._topic, self._arrived)

    async def ask_now_and_then(self) -> None:
        """Ask the members how they stand, until cancelled."""
        number = 0
        life = Life(wall_us(), secrets.randbits(53))
        name = MemberId(f"restriper-{life.nonce}")
        while True:
            number += 1
            question = GroupQuestion(Header(self._group, name, life, number), QuestionId(f"{name}/{number}"))
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

    def insist_on_connection(self) -> None:
        """Raise `ConductorCutOff` if the connection is gone: nobody refuses what is sent over SEMP, so it must not be
        sent in competition with a conductor that may have replaced us."""
        if self._is_cut_off:
            raise ConductorCutOff(self._group)

    def _arrived(self, message: Message) -> None:
        heard = self._hearsay.understand(message.payload)
        if heard is None:
            return
        self.picture.hear(heard)
        for beat in self.picture.members.values():
            self.is_heard = True
            self.book.hear(beat.striping)
        self._has_news.set()

    def _connection_changed(self, is_up: bool) -> None:
        if not is_up:
            self._is_cut_off = True
