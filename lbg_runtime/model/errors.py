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


class TransportError(LbgError):
    """Talking to the broker failed."""


class ConnectFailed(TransportError):
    """No session with the broker could be made. `permanent` tells a refusal from an outage."""

    retriable = True

    def __init__(self, host: str, reason: str, *, permanent: bool = False) -> None:
        super().__init__(f"cannot connect to {host}: {reason}")
        self.host = host
        self.reason = reason
        self.permanent = permanent


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


class BrokerRefusal(LbgError):
    """The development broker says no; `code` and `text` are the ones PubSub+ uses on the wire."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class InvariantViolated(LbgError):
    """A machine was given an event that cannot happen: a bug of ours, never a user's."""
