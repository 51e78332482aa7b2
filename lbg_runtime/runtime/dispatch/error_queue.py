"""Moves messages whose attempts have ended to another queue: published there, and let go when that is confirmed."""

from collections.abc import Set
from dataclasses import dataclass, replace

import structlog

from lbg_runtime.config.settings import Provision, Settings
from lbg_runtime.model.errors import BindFailed, ConfigError, PublishRefused, RequestRefused
from lbg_runtime.model.failure import (
    ERROR_ATTEMPTS_PROPERTY,
    ERROR_KEY_PROPERTY,
    ERROR_KEY_SEQUENCE_PROPERTY,
    ERROR_MEMBER_PROPERTY,
    ERROR_PROPERTY,
    ERROR_PUBLISHER_PROPERTY,
    ERROR_QUEUE_PROPERTY,
    ERROR_STACK_PROPERTY,
    ERROR_TOPIC_PROPERTY,
    QUEUE_ADDRESS_PREFIX,
    Then,
)
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PUBLISHER_PROPERTY, Message, PropertyValue
from lbg_runtime.runtime.provisioning import provision_queue, refusal_of
from lbg_runtime.runtime.runners.failure_report import FailureReport, escaped
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.runtime.session import Session

_log = structlog.get_logger(__name__)

_STAMPS = {ERROR_PUBLISHER_PROPERTY: PUBLISHER_PROPERTY, ERROR_KEY_SEQUENCE_PROPERTY: KEY_SEQUENCE_PROPERTY}
"""The stamps of the original, by the names that they have in a copy."""

_IN_FULL_ONLY = (
    *_STAMPS,
    ERROR_ATTEMPTS_PROPERTY,
    ERROR_PROPERTY,
    ERROR_STACK_PROPERTY,
    ERROR_QUEUE_PROPERTY,
    ERROR_MEMBER_PROPERTY,
)
"""What a copy can do without: where the message belongs is not among them, and the log has the rest."""


class ErrorQueue:
    """The error queue, the dead message queue, or both. One per member; called by the dispatcher, which settles a
    message only after `take` has returned.

    Both get a copy that is confirmed before the original is accepted. The move to the dead message queue is not left to
    the broker by settling `REJECTED`: the client would send the rejection ahead of earlier acceptances, and a broker
    drops what it cannot move.
    """

    def __init__(self, session: Session, settings: Settings, moves: Set[Then], member: MemberId) -> None:
        """`moves`: those of the two ends that handlers ask for."""
        self._session = session
        self._member = member
        self._may_create = settings.group.provision is Provision.CREATE_MISSING
        self._targets = {then: target for then, target in _targets(settings).items() if then in moves}

    async def take(self, handling: Handling, report: FailureReport) -> QueueName:
        """Return when the broker has confirmed the message; raises `PublishFailed`.

        It keeps payload, properties, message id, time stamp and headers, and says in addition where it comes from and
        why. Its stamps get other names, so that it has no fencing token. Where all that makes it too large, it has only
        the topic and the key of the original. If this is cancelled or fails, it may have been published nevertheless:
        the next try then makes a duplicate.
        """
        # No bound: a message sent twice is worse than one that waits for the broker to come back. The transport answers
        # every send, at the latest when it is closed, and a recall of the delivery cancels this.
        copy = self._moved(handling, report)
        try:
            await self._session.send(copy)
        except PublishRefused as refusal:
            if not refusal.is_for_size:
                raise
            # What came fitted into a queue: without what was added, its key need not wait for a larger limit.
            told = {name: value for name, value in copy.properties.items() if name not in _IN_FULL_ONLY}
            await self._session.send(replace(copy, properties=told))
        return self._targets[report.then].queue

    def _moved(self, handling: Handling, report: FailureReport) -> Message:
        message = handling.delivery.message
        told: dict[str, PropertyValue] = {
            **message.properties,
            ERROR_TOPIC_PROPERTY: message.topic,
            ERROR_ATTEMPTS_PROPERTY: report.attempts,
            ERROR_PROPERTY: report.error,
            ERROR_STACK_PROPERTY: report.stack,
            ERROR_QUEUE_PROPERTY: handling.queue,
            ERROR_MEMBER_PROPERTY: self._member,
        }
        for name, stamp in _STAMPS.items():
            # Whoever publishes the copy again, as it is, must not make a message that a guard takes for an old one.
            told.pop(name, None)
            if stamp in told:
                told[name] = told.pop(stamp)
        told.pop(ERROR_KEY_PROPERTY, None)
        if handling.key is not None:
            # A key from a JSON payload may contain characters that no property can.
            told[ERROR_KEY_PROPERTY] = escaped(handling.key)
        topic = self._targets[report.then].topic
        return Message(topic, message.payload, told, message.message_id, message.sent_at_ms, message.headers)

    async def prepare(self) -> None:
        """Make sure that the queues exist; create those that are missing, with their subscriptions, if members may.

        Raises `ConfigError` if one does not exist. A client cannot find out what the error queue subscribes to: the
        broker confirms what no queue attracts, so one made by hand without its subscription loses what is moved there.
        The dead message queue needs none.
        """
        for target in self._targets.values():
            if self._may_create:
                try:
                    await provision_queue(self._session, target.queue, target.subscriptions)
                except RequestRefused as error:
                    expected = "a user who may create queues, or one made beforehand"
                    raise ConfigError(target.setting, str(error), expected) from error
            elif (refusal := await refusal_of(self._session, target.queue)) is not None:
                _judge(refusal, target)


@dataclass(frozen=True, slots=True)
class _Target:
    setting: str
    queue: QueueName
    topic: str
    """The topic to publish on."""
    subscriptions: tuple[str, ...]
    """What the queue must subscribe to."""


def _judge(refusal: BindFailed, target: _Target) -> None:
    if not refusal.permanent:
        _log.warning("error_queue_not_looked_at", queue=target.queue, reason=refusal.reason)
    # A queue that only its owner may read does exist.
    elif "Permission Not Allowed" not in refusal.reason:
        wanted = "".join(f", with a subscription to {each}" for each in target.subscriptions)
        found, expected = f"{target.queue}: {refusal.reason}", f"a queue that may be bound{wanted}"
        raise ConfigError(target.setting, found, expected)


def _targets(settings: Settings) -> dict[Then, _Target]:
    errors, dead = settings.error_topic, settings.dead_message_queue
    return {
        Then.ERROR_QUEUE: _Target("failure.error_queue", settings.error_queue, errors, (errors,)),
        Then.DMQ: _Target("failure.dead_message_queue", dead, f"{QUEUE_ADDRESS_PREFIX}{dead}", ()),
    }
