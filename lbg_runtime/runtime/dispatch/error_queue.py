"""Moves a message whose attempts have ended to the error queue or the dead message queue, by publishing it there."""

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
"""What a copy can do without if it is too large, as the log has it. Where the message belongs is not among these."""


class ErrorQueue:
    """The error queue, the dead message queue, or both. One per member; called by the dispatcher, which settles a
    message only after `take` has returned.

    Both get a copy that is confirmed before the original is accepted. The move to the dead message queue is not left to
    the broker by settling `REJECTED`: the client would send the rejection ahead of earlier acceptances, and a broker
    drops what it cannot move.
    """

    def __init__(self, session: Session, settings: Settings, moves: Set[Then], member: MemberId) -> None:
        """`moves`: which of the two ends (`ERROR_QUEUE`, `DMQ`) the policies of the handlers use."""
        self._session = session
        self._member = member
        self._may_create = settings.group.provision is Provision.CREATE_MISSING
        self._targets = {then: target for then, target in _targets(settings).items() if then in moves}

    async def take(self, handling: Handling, report: FailureReport) -> QueueName:
        """Publish a copy of the message, and return its new queue when the broker has confirmed it; raises
        `PublishFailed`.

        The copy has payload, properties, message id, time stamp and headers of the original, and says where it comes
        from and why. The stamps have other names in it, so that it has no fencing token. If that makes it too large,
        only the topic and the key of the original are added. If this call is cancelled or fails, the copy may have been
        published nevertheless, and the next try makes a duplicate.
        """
        # No bound: a duplicate is worse than a message that waits for the broker to come back. The transport answers
        # every send, at the latest when it is closed, and a recall of the delivery cancels this.
        copy = self._moved(handling, report)
        try:
            await self._session.send(copy)
        except PublishRefused as refusal:
            if not refusal.is_for_size:
                raise
            # The original fitted into a queue, so try without most of what was added: otherwise its key would have to
            # wait until somebody raises the limit.
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
            # If somebody publishes the copy again as it is, a guard must not take it for an old message.
            told.pop(name, None)
            if stamp in told:
                told[name] = told.pop(stamp)
        told.pop(ERROR_KEY_PROPERTY, None)
        if handling.key is not None:
            # A key from a JSON payload may contain characters that no property can hold.
            told[ERROR_KEY_PROPERTY] = escaped(handling.key)
        topic = self._targets[report.then].topic
        return Message(topic, message.payload, told, message.message_id, message.sent_at_ms, message.headers)

    async def prepare(self) -> None:
        """Make sure that the queues exist; create those that are missing, with their subscriptions, if members may.

        Raises `ConfigError` if one does not exist, or cannot be created. It cannot find out what the error queue
        subscribes to. If that was made by hand without its subscription, what is moved there is lost, as the broker
        confirms even messages that no queue attracts. The dead message queue needs no subscription.
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
    # A queue that only its owner may read exists all the same.
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
