"""The one tree of errors. Facts are attributes; `retriable` is a property of the class."""

from typing import ClassVar


class LbgError(Exception):
    """Root of every error this project raises on purpose."""

    retriable: ClassVar[bool] = False
    """Whether the same call can succeed later with nothing changed by the user."""

    def __reduce__(self) -> tuple[object, ...]:
        """Travel between processes with the facts: the default would call the class with the message alone."""
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[LbgError], args: tuple[object, ...], facts: dict[str, object]) -> LbgError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class UserError(LbgError):
    """A mistake the user can mend; shown as one line without a traceback, exit code 2.

    `where` names the place (file and path of the setting, module and function), `found` what stands there,
    `expected` what would have been right.
    """

    def __init__(self, where: str, found: str, expected: str) -> None:
        super().__init__(f"{where}: {found}; expected {expected}")
        self.where = where
        self.found = found
        self.expected = expected


class ConfigError(UserError):
    """A setting is missing, unknown, or has a value that cannot be used."""


class HandlerError(UserError):
    """A handler cannot be registered: not async, the topic taken, its module fails to import."""


class TerminalFailure(LbgError):
    """Raised by a handler: no further attempt can handle this message, so its attempts end here."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BodyRefused(TerminalFailure):
    """The payload is not what the handler's annotation says; `expected` is the annotation, `found` what is wrong.

    Neither has anything of the payload in it.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"the body is no {expected}: {found}")
        self.expected = expected
        self.found = found


class KeyMissing(TerminalFailure):
    """A message has no key by the rule of `group.key`, and the settings have that count as failed."""

    def __init__(self) -> None:
        super().__init__("no key by the rule of group.key")


class HandlerMissing(LbgError):
    """No handler is registered for the original topic of a message."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"no handler for {topic}")
        self.topic = topic


class TransportError(LbgError):
    """Talking to the broker failed."""


class ConnectFailed(TransportError):
    """No session with the broker could be made. `permanent` tells a refusal from an outage."""

    retriable = True

    def __init__(self, host: str, reason: str, *, permanent: bool = False, expected: str | None = None) -> None:
        super().__init__(f"cannot connect to {host}: {reason}")
        self.host = host
        self.reason = reason
        self.permanent = permanent
        self.expected = expected
        """What would have been right, where more of it is known."""


class BindFailed(TransportError):
    """The broker refused a bind, or did not answer. `permanent` tells a refusal from an outage."""

    retriable = True

    def __init__(self, queue: str, reason: str, *, permanent: bool = False) -> None:
        super().__init__(f"cannot bind to {queue}: {reason}")
        self.queue = queue
        self.reason = reason
        self.permanent = permanent


class PublishFailed(TransportError):
    """The message is not known to be on the broker; it may be: publishing it again can make a duplicate."""

    retriable = True

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"cannot publish to {topic}: {reason}")
        self.topic = topic
        self.reason = reason


class PublishRefused(PublishFailed):
    """The broker said no to this message; it is not spooled anywhere."""

    retriable = False


class PublisherClosed(LbgError):
    """The publisher is closed or closing; the message was not sent."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"cannot publish to {topic}: the publisher is closed")
        self.topic = topic


class ProtocolError(LbgError):
    """A peer sent bytes that are not the protocol; its connection is closed. `offset` is within the frame."""

    def __init__(self, what: str, offset: int = 0) -> None:
        super().__init__(f"{what} (at byte {offset})")
        self.what = what
        self.offset = offset


class RestripeRecordRefused(ProtocolError):
    """A message on the topic of a re-striping is no record of one that this version knows."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(f"no record of a re-striping: {payload!r}")


class ParkingEntryRefused(ProtocolError):
    """A message in a parking queue is neither a parked one nor an order that this version knows."""


class ParkingNotReady(TransportError):
    """A message cannot be parked now; `reason` says what that waits for."""

    retriable = True

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(f"cannot park in {queue}: {reason}")
        self.queue = queue
        self.reason = reason


class BrokerRefusal(LbgError):
    """The development broker says no; `code` and `text` are the ones PubSub+ uses on the wire."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class SempError(LbgError):
    """Administering the broker over SEMP failed."""


class SempUnreachable(SempError):
    """Nobody answers at the address, or not with SEMP, or the broker stayed unready for as long as was tried."""

    retriable = True

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"no SEMP answer from {url}: {reason}")
        self.url = url
        self.reason = reason


class SempRefused(SempError):
    """The broker understood and said no. Branch on `code`; `status` and `description` are for people, and may change.

    `code` is 0 where the answer had no SEMP error in it; `http_status` tells the rest.
    """

    def __init__(self, request: str, http_status: int, code: int, status: str, description: str) -> None:
        super().__init__(f"{request}: {status} ({code}): {description}")
        self.request = request
        self.http_status = http_status
        self.code = code
        self.status = status
        self.description = description


class QueueMissing(SempError):
    """The queue does not exist."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {queue} does not exist")
        self.queue = queue


class QueueUnfit(SempError):
    """The queue exists and is not one that a group can use."""

    def __init__(self, queue: str, found: str, expected: str) -> None:
        super().__init__(f"queue {queue} has {found}; expected {expected}")
        self.queue = queue
        self.found = found
        self.expected = expected


class QueueInUse(SempError):
    """The queue was not deleted: messages or bound flows are left."""

    def __init__(self, queue: str, message_count: int, flow_count: int) -> None:
        super().__init__(f"queue {queue} has {message_count} messages and {flow_count} bound flows left")
        self.queue = queue
        self.message_count = message_count
        self.flow_count = flow_count


class GroupRefused(SempError):
    """A group was not created or changed, because of what is on the broker or in the settings; nothing was touched."""

    def __init__(self, problems: tuple[UserError, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class GroupInUse(SempError):
    """A group was not deleted: messages or bound flows are left in these queues, by their counts."""

    def __init__(self, left: dict[str, tuple[int, int]]) -> None:
        queues = ", ".join(f"{queue} ({messages} messages, {flows} flows)" for queue, (messages, flows) in left.items())
        super().__init__(f"still in use: {queues}")
        self.left = left


class GroupMissing(SempError):
    """Nothing of the group is on the broker."""

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group} is not on the broker")
        self.group = group


class InvariantViolated(LbgError):
    """A machine was given an event that cannot happen: a bug of ours, never a user's."""
