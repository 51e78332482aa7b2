"""Messages whose attempts have ended, moved to the error queue: published there, and let go when that is confirmed."""

import structlog

from lbg_runtime.config.settings import Provision, Settings
from lbg_runtime.model.errors import BindFailed, ConfigError, TransportError
from lbg_runtime.model.failure import (
    ERROR_ATTEMPTS_PROPERTY,
    ERROR_KEY_PROPERTY,
    ERROR_MEMBER_PROPERTY,
    ERROR_PROPERTY,
    ERROR_QUEUE_PROPERTY,
    ERROR_STACK_PROPERTY,
    ERROR_TOPIC_PROPERTY,
)
from lbg_runtime.model.ids import Epoch, MemberId
from lbg_runtime.model.message import Message, PropertyValue
from lbg_runtime.runtime.failure_report import FailureReport
from lbg_runtime.runtime.handling import Handling
from lbg_runtime.runtime.session import Session

_log = structlog.get_logger(__name__)


class ErrorQueue:
    """One per member; called by the dispatcher, which settles only what `take` has returned from."""

    def __init__(self, session: Session, topic: str, member: MemberId) -> None:
        self._session = session
        self._topic = topic
        self._member = member

    async def take(self, handling: Handling, report: FailureReport) -> None:
        """Return when the broker has confirmed the message; raises `PublishFailed`.

        It keeps payload, properties, message id and time stamp, and says besides where it comes from and why. Where
        this is cancelled or fails, it may have been published all the same: the next time makes a duplicate.
        """
        # No bound: a message that was sent twice is worse than one that waits for the broker to come back. The
        # transport answers each, at the latest when it is closed, and a recall of the delivery cancels this.
        await self._session.send(self._moved(handling, report))

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
        told.pop(ERROR_KEY_PROPERTY, None)
        if handling.key is not None:
            told[ERROR_KEY_PROPERTY] = handling.key
        return Message(self._topic, message.payload, told, message.message_id, message.sent_at_ms)


async def prepare_error_queue(session: Session, settings: Settings) -> None:
    """See to it that there is one, as far as members may: where they create queues, with its subscription.

    Raises `ConfigError` where there is none. What it subscribes to cannot be found out by a client: the broker confirms
    what no queue attracts, so an error queue made by hand without its subscription loses what is moved there.
    """
    queue, topic = settings.error_queue, settings.error_topic
    if settings.group.provision is Provision.CREATE_MISSING:
        try:
            await session.provision(queue, [topic])
        except TransportError as error:
            expected = "a user who may create queues, or one made beforehand"
            raise ConfigError("failure.error_queue", str(error), expected) from error
        return
    try:
        flow = await session.bind(queue, Epoch(1), lambda _: None)
    except BindFailed as refusal:
        if refusal.permanent:
            found = f"{queue}: {refusal.reason}"
            expected = f"a queue that may be bound, with a subscription to {topic}"
            raise ConfigError("failure.error_queue", found, expected) from None
        _log.warning("error_queue_not_looked_at", queue=queue, reason=refusal.reason)
        return
    await flow.unbind()
