"""Asking a group from outside: a session, no flow, one question, and what is heard for a while."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lbg_runtime.config.settings import RebindMode, Settings, TransportKind
from lbg_runtime.core.group.control_codec import ControlMessageRefused, decode, encode
from lbg_runtime.core.group.control_messages import (
    GroupQuestion,
    Header,
    Inquiry,
    KeyAnswer,
    KeyQuestion,
    Life,
    QuestionId,
    is_valid_text,
)
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.clock import wall_us
from lbg_runtime.runtime.session import open_session
from lbg_runtime.transport.base import Messenger

LAST_ANSWERS_S = 0.2


class Observer:
    """Asks one question in its life, on an open session, and changes nothing in the group.

    Members take no notice of who asks: a question reaches none of their machines.
    """

    def __init__(self, session: Messenger, settings: Settings) -> None:
        """Raises `ConfigError` where the members of the group do not talk to each other."""
        if settings.rebind.mode is not RebindMode.COOPERATIVE:
            raise ConfigError("rebind.mode", settings.rebind.mode.value, "cooperative: others answer no questions")
        self._session = session
        self._topic = settings.group.control_topic_name
        self._group = GroupName(settings.group.name)
        name = MemberId(f"observer-{socket.gethostname()[:90]}-{os.getpid()}")
        nonce = random.getrandbits(53)
        self._header = Header(self._group, name, Life(wall_us(), nonce), 1)
        self._question = QuestionId(f"{name}/{nonce}")
        self._picture = GroupPicture()
        self._answers: list[KeyAnswer] = []
        self._is_enough = asyncio.Event()

    async def look_at_group(self, listen_s: float) -> GroupPicture:
        """What members say of the group within the time; raises `TransportError` where the topic is refused."""
        await self._ask(GroupQuestion(self._header, self._question), listen_s)
        return self._picture

    async def look_for_key(self, key: str, listen_s: float) -> tuple[list[KeyAnswer], GroupPicture]:
        """What members answer about a key, until soon after the one that owns its queue, and who was heard at all.

        Raises `UserError` for a key that no control message can carry, `TransportError` where the topic is refused.
        """
        if not is_valid_text(key):
            raise UserError("key", ascii(key)[:80], "1 to 250 printable characters, as a question can carry them")
        await self._ask(KeyQuestion(self._header, self._question, key), listen_s)
        return self._answers, self._picture

    async def _ask(self, question: Inquiry, listen_s: float) -> None:
        await self._session.subscribe(self._topic, self._arrived)
        self._session.send_direct(Message(self._topic, encode(question)))
        try:
            async with asyncio.timeout(listen_s):
                await self._is_enough.wait()
                # The others answer at the same time; a handler that outlived its flow is with one of them.
                await asyncio.sleep(LAST_ANSWERS_S)
        except TimeoutError:
            pass

    def _arrived(self, message: Message) -> None:
        try:
            heard = decode(message.payload, self._group)
        except ControlMessageRefused:
            # Another group's, or no control message at all: the members log it.
            return
        self._picture.hear(heard)
        if isinstance(heard, KeyAnswer) and heard.question == self._question:
            self._answers.append(heard)
            if heard.flow is not None and heard.flow.is_owner:
                self._is_enough.set()


@asynccontextmanager
async def observing(settings: Settings) -> AsyncIterator[Observer]:
    """An observer on a session of its own; raises `ConfigError` where nobody answers at the broker's address."""
    # A group with the embedded broker has it in a member's process. The client name of the settings is the member's: a
    # second client of that name would end its session.
    connection = settings.connection.model_copy(update={"transport": TransportKind.SOLACE, "client_name": None})
    async with open_session(connection, f"lbg-observer-{socket.gethostname()}-{os.getpid()}") as session:
        yield Observer(session, settings)
