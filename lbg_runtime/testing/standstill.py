"""Where the unsettled messages are, and what keeps them there: the text of a failed wait."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lbg_runtime.config.settings import Settings
from lbg_runtime.core.group.control_messages import LaneHead
from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.core.parking.identity import identity_of
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.testing.group_broker import GroupBroker
from lbg_runtime.testing.handler_watch import Attempt
from lbg_runtime.testing.life import Life, LifeState

_KEYS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why something did not happen."""

    lines: tuple[str, ...]
    error: BaseException | None = None
    """The cause, if known: its traceback tells more."""


class Standstill:
    """Only reads; changes nothing."""

    def __init__(
        self, settings: Settings, handlers: Handlers, broker: GroupBroker, members: Mapping[str, Life], now_s: float
    ) -> None:
        """`members` has the latest life of each."""
        self._settings = settings
        self._shape = settings.group.shape()
        self._handlers = handlers
        self._broker = broker
        self._members = members
        self._now_s = now_s
        self._error: BaseException | None = None
        """The first one raised by the handler of a waiting message."""

    def reasons(self) -> Reasons:
        """A line for each of the first few waiting keys; none if nothing waits."""
        self._error = None
        lines = list(self._every_line())
        if len(lines) > _KEYS_SHOWN:
            lines[_KEYS_SHOWN:] = [f"and {len(lines) - _KEYS_SHOWN} more keys"]
        if not self._broker.is_reachable:
            lines.append("the broker has failed, and was not restored: group.broker.restore()")
        return Reasons(tuple(lines), self._error)

    def _every_line(self) -> Iterator[str]:
        for queue in self._shape.queue_names():
            keys: dict[str | None, list[Message]] = {}
            for message in self._broker.left_on(queue):
                keys.setdefault(self._key_of(message), []).append(message)
            for key, messages in keys.items():
                behind = f", {len(messages) - 1} more of its key behind it" if len(messages) > 1 else ""
                yield f"{queue}: {_name(key, messages[0])} {self._reason(queue, key, messages[0])}{behind}"

    def _reason(self, queue: QueueName, key: str | None, message: Message) -> str:
        topic = self._topic_of(message)
        if self._handlers.find(topic) is None:
            subscriptions = ", ".join(self._handlers.subscriptions)
            return f"is wanted by no handler: its topic is {topic}, handlers take {subscriptions}"
        owner = self._owner(queue, key)
        if owner is None:
            return f"waits for an owner of its queue; {_states(list(self._members.values()))}"
        if owner.state is LifeState.PAUSED:
            return f"is with {owner.member}, which is paused"
        if key is None or owner.supervisor is None:
            return f"is with {owner.member}"
        sight = owner.supervisor.status()
        head = sight.key(key).sight.head
        if head is None or head.number != message.key_sequence:
            return self._reason_without_lane(owner, message)
        is_stopped = any(flow.is_stopped for flow in sight.picture().flows if flow.queue == queue)
        return self._reason_in_lane(owner, message, head, is_stopped=is_stopped)

    def _reason_in_lane(self, owner: Life, message: Message, head: LaneHead, *, is_stopped: bool) -> str:
        attempts = [attempt for attempt in owner.watch.attempts if attempt.identity == identity_of(message)]
        match head.stage:
            case LaneStage.RUNNING:
                for_s = self._now_s - attempts[-1].started_s if attempts else 0
                return f"is handled by {owner.member} for {for_s:g} s now, attempt {head.attempts}"
            case LaneStage.DELAYED if is_stopped and head.attempts == 0:
                return f"waits at {owner.member}: its queue is stopped (then: stop)"
            case LaneStage.READY if attempts and attempts[-1].is_running:
                return f"waits at {owner.member} for its batch, or for the turn of that"
            case LaneStage.READY if head.attempts == 0:
                return f"waits for a runner at {owner.member}: dispatch.runners is {self._settings.dispatch.runners}"
            case LaneStage.DELAYED | LaneStage.READY:
                follows = f"next attempt in {(head.retry_in_ms or 0) / 1_000:g} s"
                if is_stopped and head.retry_in_ms is None:
                    follows = "its queue is stopped (then: stop)"
                self._error = self._error or (attempts[-1].error if attempts else None)
                words = _last_words(attempts[-1]) if attempts else ""
                reason = f", at last with {words}" if words else ""
                times = "once" if head.attempts == 1 else f"{head.attempts} times"
                return f"failed {times} at {owner.member}{reason}; {follows}"

    def _reason_without_lane(self, owner: Life, message: Message) -> str:
        done = [
            ending
            for ending in owner.records.endings
            if ending.record.outcome == "accepted" and ending.record.message_id == message.message_id
        ]
        if done:
            return f"was handled by {owner.member}; the settlement is on its way"
        return f"is on its way to {owner.member}, which owns its queue"

    def _owner(self, queue: QueueName, key: str | None) -> Life | None:
        client = self._broker.fed_with(queue, key)
        return next((life for life in self._members.values() if life.client_name == client), None)

    def _key_of(self, message: Message) -> str | None:
        return self._settings.group.key.extract(self._topic_of(message), message.properties, message.payload)

    def _topic_of(self, message: Message) -> str:
        split = self._shape.split_topic(message.topic)
        return message.topic if split is None else split[1]


def _last_words(attempt: Attempt) -> str:
    error = attempt.error
    if error is None or isinstance(error, asyncio.CancelledError):
        # A time-out, or middleware that failed behind the handler: the runtime knows.
        return getattr(attempt.handling, "last_error", "")
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _name(key: str | None, message: Message) -> str:
    return f"{key or '(no key)'} #{message.key_sequence or '?'}"


def _states(lives: Sequence[Life]) -> str:
    return ", ".join(f"{life.member} is {life.state.value}" for life in lives) or "the group has no member"
