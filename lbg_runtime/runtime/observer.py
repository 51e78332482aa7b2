"""Asks a group questions from outside, and listens to what its members say: with a session, but without a flow."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import assert_never

from lbg_runtime.config.broker_names import program_name
from lbg_runtime.config.settings import GroupBackend, RebindMode, Settings
from lbg_runtime.core.group.control_codec import encode
from lbg_runtime.core.group.control_messages import (
    ControlMessage,
    GroupQuestion,
    Header,
    Inquiry,
    KeyAnswer,
    KeyDetail,
    KeyQuestion,
    Life,
    ParkingWaits,
    QuestionId,
    QueueStopped,
    is_valid_text,
)
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.clock import now_ms, wall_us
from lbg_runtime.runtime.control_reader import ControlReader, OtherVersion
from lbg_runtime.runtime.kept_subscription import KeptSubscription
from lbg_runtime.runtime.session import open_session
from lbg_runtime.transport.base import ConnectionSink, Messenger

LAST_ANSWERS_S = 0.2


Heard = Callable[[ControlMessage | Inquiry], None]

Answer = KeyAnswer | ParkingWaits | KeyDetail | QueueStopped
"""What a member says to a question about a key; only the asker takes it in. The `KeyAnswer` comes last."""


@dataclass(slots=True)
class _Question:
    """A question under way, and what was heard since it was asked."""

    picture: GroupPicture = field(default_factory=GroupPicture)
    answers: list[KeyAnswer] = field(default_factory=list)
    waits: dict[MemberId, ParkingWaits] = field(default_factory=dict)
    """What members said before their answers, as is `stopped`."""
    details: dict[MemberId, KeyDetail] = field(default_factory=dict)
    stopped: set[MemberId] = field(default_factory=set)
    is_enough: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, heard: Answer) -> None:
        """Take in what a member says to this question."""
        member = heard.header.member
        match heard:
            case ParkingWaits():
                self.waits[member] = heard
            case KeyDetail():
                self.details[member] = heard
            case QueueStopped():
                self.stopped.add(member)
            case KeyAnswer():
                waits, detail = self.waits.get(member), self.details.get(member)
                answer = replace(
                    heard,
                    wait=None if waits is None else waits.waits.get(heard.queue),
                    is_stopped=member in self.stopped,
                    sight=heard.sight if detail is None else detail.added_to(heard.sight),
                )
                self.answers.append(answer)
                if answer.is_of_owner:
                    self.is_enough.set()
            case _:
                assert_never(heard)


class Observer:
    """Asks and listens on an open session. Used on one event loop.

    It changes nothing in the group: members answer its questions, but their machines do not see them.
    """

    def __init__(self, session: Messenger, settings: Settings, client_name: str) -> None:
        """`client_name`: that of the session. Raises `ConfigError` if the members of the group do not talk to each
        other."""
        if settings.group.backend is not GroupBackend.EXCLUSIVE:
            expected = "exclusive: members of a partitioned group answer no questions"
            raise ConfigError("group.backend", settings.group.backend.value, expected)
        if settings.rebind.mode is not RebindMode.COOPERATIVE:
            expected = "cooperative: members in cycle mode answer no questions"
            raise ConfigError("rebind.mode", settings.rebind.mode.value, expected)
        self.client_name = client_name
        """The name by which the members' broker knows us."""
        self._session = session
        self._topic = settings.group.control_topic_name
        group = GroupName(settings.group.name)
        self._reader = ControlReader(group, MembershipTiming(heartbeat_ms=settings.membership.heartbeat_ms))
        name = MemberId(f"observer-{socket.gethostname()[:90]}-{os.getpid()}")
        self._header = Header(group, name, Life(wall_us(), random.getrandbits(53)), 1)
        self._questions: dict[QuestionId, _Question] = {}
        self._question_count = 0
        self._on_heard: Heard | None = None
        self._subscription = KeptSubscription(session, self._topic, self._arrived)
        self._subscribing = asyncio.Lock()
        self._is_subscribed = False

    async def begin_to_follow(self, on_heard: Heard) -> None:
        """Call `on_heard` with everything said in the group, until the session ends; ask all members once.

        It is called on the loop, and must not raise or block. Raises `TransportError` if the topic is refused.
        """
        self._on_heard = on_heard
        await self._subscribe()
        self.ask_again()

    def ask_again(self) -> None:
        """After `begin_to_follow`: ask every member once more for its state."""
        self._say(GroupQuestion(self._header, self._new_question()))

    async def keep_following(self, on_hearing: ConnectionSink) -> None:
        """After `begin_to_follow`: hear the group again after every outage, until cancelled.

        `on_hearing` is called now and at each change with whether the group can be heard, which is so once the broker
        has confirmed the subscription on the present connection. A refusal is logged, and the attempt repeated.
        """

        def connection_changed(is_up: bool) -> None:
            self._subscription.connection_changed(is_up)
            if not is_up:
                on_hearing(False)

        self._session.watch_connection(connection_changed)
        await self._subscription.keep(None, lambda _: on_hearing(True))

    @property
    def other_version(self) -> OtherVersion | None:
        """Not None if members of another version spoke lately: then what is told of the group is not all of it."""
        return self._reader.other_version(now_ms())

    async def look_at_group(self, listen_s: float) -> GroupPicture:
        """What members say about the group within the time; raises `TransportError` if the topic is refused."""
        return (await self._ask(GroupQuestion(self._header, self._new_question()), listen_s)).picture

    async def look_for_key(self, key: str, listen_s: float) -> tuple[list[KeyAnswer], GroupPicture]:
        """What members answer about a key, and who was heard, within the time or until shortly after the answer of the
        queue's owner.

        Raises `UserError` for a key that no control message can carry, `TransportError` if the topic is refused.
        """
        if not is_valid_text(key):
            raise UserError("key", ascii(key)[:80], "1 to 250 printable characters, as a question can carry them")
        asked = await self._ask(KeyQuestion(self._header, self._new_question(), key), listen_s)
        return asked.answers, asked.picture

    async def _ask(self, inquiry: GroupQuestion | KeyQuestion, listen_s: float) -> _Question:
        await self._subscribe()
        question = self._questions[inquiry.question] = _Question()
        self._say(inquiry)
        try:
            async with asyncio.timeout(listen_s):
                await question.is_enough.wait()
                # Wait for the others, which answer at about the same time: a handler of one may have outlived its flow.
                await asyncio.sleep(LAST_ANSWERS_S)
        except TimeoutError:
            pass
        finally:
            del self._questions[inquiry.question]
        return question

    async def _subscribe(self) -> None:
        # A second question waits for this as well, or its answers would come before they can be heard.
        async with self._subscribing:
            if not self._is_subscribed:
                await self._session.subscribe(self._topic, self._arrived)
                self._is_subscribed = True

    def _say(self, inquiry: Inquiry) -> None:
        self._session.send_direct(Message(self._topic, encode(inquiry)))

    def _new_question(self) -> QuestionId:
        self._question_count += 1
        return QuestionId(f"{self._header.member}/{self._header.life.nonce}/{self._question_count}")

    def _arrived(self, message: Message) -> None:
        heard = self._reader.understand(message.payload, now_ms())
        if heard is None:
            return
        if self._on_heard is not None:
            self._on_heard(heard)
        for each in self._questions.values():
            each.picture.hear(heard)
        if isinstance(heard, Answer) and (question := self._questions.get(heard.question)) is not None:
            question.take(heard)


@asynccontextmanager
async def observing(settings: Settings) -> AsyncIterator[Observer]:
    """An observer on a session of its own; raises `ConfigError` if nobody answers at the broker's address."""
    # An embedded broker runs in a member's process, so this only connects to it. The client name in the settings is the
    # member's: a second client with that name would end the member's session.
    name = program_name("observer")
    async with open_session(settings.outside_connection, name, settings.transport.client_path) as session:
        yield Observer(session, settings, name)
