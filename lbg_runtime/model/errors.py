"""The root of our errors, and those that users meet or that more than one room raises or handles. Others are where they
are raised, below this root if they leave their room.

Facts are attributes; `retriable` is a property of the class. One file of more than 400 lines, so that this tree can be
read in one place.
"""

from typing import ClassVar

from lbg_runtime.model.counted import counted


class LbgError(Exception):
    """Root of every error this project raises on purpose."""

    retriable: ClassVar[bool] = False
    """Whether the same call can succeed later without the user changing anything."""

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the facts when pickled between processes; the default would call the class with the message alone."""
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[LbgError], args: tuple[object, ...], facts: dict[str, object]) -> LbgError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class UserError(LbgError):
    """A mistake that the user can fix; shown as one line without a traceback, exit code 2.

    `where` names the place (file and path of the setting, module and function), `found` is what is there, and
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
    """A handler, hook, middleware or lifespan cannot be used: wrong parameters, a topic taken, a failed import."""


class MemberSuperseded(LbgError):
    """This process stood aside for another one with its member id, and that one has gone: only a restart helps.

    This process has left in good order. Its exit code is 1, so that a process supervisor restarts it.
    """

    def __init__(self, member: str) -> None:
        super().__init__(f"member {member}: another process with this id took its place and has gone; start it again")
        self.member = member


class ConductorCutOff(LbgError):
    """A conductor of a re-striping of `group` must change nothing any more, as another one may conduct it by now.

    Not a `TransportError`: those are retried, and a retry could cut off the other conductor in turn.
    """

    def __init__(self, group: str) -> None:
        super().__init__(
            f"re-striping of group {group}: the connection was lost, or another run of this command took over; "
            "expected: look whether one runs, otherwise the same command again"
        )
        self.group = group


class TerminalFailure(LbgError):
    """Raised by a handler: no further attempt can handle this message, so its attempts end here."""

    # With a default, so that `raise TerminalFailure` is no `TypeError`, which further attempts would follow.
    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class BodyRefused(TerminalFailure):
    """The payload does not fit the handler's annotation; `expected` is the annotation, `found` what is wrong.

    Neither quotes anything of the payload.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"the body is no {expected}: {found}")
        self.expected = expected
        self.found = found


class KeyMissing(TerminalFailure):
    """A message has no key by the rule of `group.key`, which the settings declare a failure."""

    def __init__(self) -> None:
        super().__init__("no key by the rule of group.key")


class BatchCutShort(LbgError):
    """A message failed because, in its batch, another one timed out or another one's queue went away."""

    def __init__(self) -> None:
        super().__init__("the batch was cut short")


class HandlerMissing(LbgError):
    """No handler is registered for the original topic of a message."""

    def __init__(self, topic: str, subscriptions: tuple[str, ...]) -> None:
        """`subscriptions`: those of the handlers that are registered."""
        super().__init__(f"no handler for {topic}")
        self.topic = topic
        self.subscriptions = subscriptions


class TransportError(LbgError):
    """Talking to the broker failed."""


class RequestRefused(TransportError):
    """The broker has refused a request about a queue, and would refuse it again. `what` completes `cannot ...`."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"cannot {what}: {reason}")
        self.what = what
        self.reason = reason


class ConnectFailed(TransportError):
    """No session with the broker could be established. `permanent` tells a refusal from an outage."""

    retriable = True

    def __init__(self, host: str, reason: str, *, permanent: bool = False, expected: str | None = None) -> None:
        super().__init__(f"cannot connect to {host}: {reason}")
        self.host = host
        self.reason = reason
        self.permanent = permanent
        self.expected = expected
        """What would have been right, if more is known about it."""


NOT_CONNECTED = "not connected"
"""The reason of a call that was not made, as there was no connection. Logs leave it out: the loss of the connection and
its return are logged once, for all calls."""


class BindFailed(TransportError):
    """The broker refused a bind, or did not answer. `permanent` tells a refusal from an outage."""

    retriable = True

    def __init__(self, queue: str, reason: str, *, permanent: bool = False) -> None:
        super().__init__(f"cannot bind to {queue}: {reason}")
        self.queue = queue
        self.reason = reason
        self.permanent = permanent


class SubscribeFailed(TransportError):
    """The broker refused a direct subscription, or did not answer. `permanent` tells a refusal from an outage."""

    retriable = True

    def __init__(self, subscription: str, reason: str, *, permanent: bool = False) -> None:
        super().__init__(f"cannot subscribe to {subscription}: {reason}")
        self.subscription = subscription
        self.reason = reason
        self.permanent = permanent


class PublishFailed(TransportError):
    """The message may or may not be on the broker: publishing it again may create a duplicate."""

    retriable = True

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"cannot publish to {topic}: {reason}")
        self.topic = topic
        self.reason = reason


class PublishRefused(PublishFailed):
    """The broker refused this message; it is not spooled anywhere."""

    retriable = False

    @property
    def is_for_size(self) -> bool:
        """Whether the broker might take the message with fewer bytes."""
        return "too large" in self.reason.lower()


class MessageUnsendable(PublishRefused, TerminalFailure):
    """No transport can carry this message; the broker was not asked. A handler that publishes it is not tried again."""

    @property
    def is_for_size(self) -> bool:
        """See `PublishRefused.is_for_size`. True for other faults as well, as another try costs little."""
        return True


class PublisherClosed(LbgError):
    """The publisher is closed or closing; the message was not sent."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"cannot publish to {topic}: the publisher is closed")
        self.topic = topic


class ProtocolError(LbgError):
    """A peer sent bytes that violate the protocol; its connection is closed. `offset` is within the frame."""

    def __init__(self, what: str, offset: int = 0) -> None:
        super().__init__(f"{what} (at byte {offset})")
        self.what = what
        self.offset = offset


class RestripeRecordRefused(LbgError):
    """A message on the topic of a re-striping is not a record that this version knows."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(f"no record of a re-striping: {payload!r}")
        self.payload = payload


class ParkingNotReady(TransportError):
    """A message cannot be parked now; `reason` says what has to happen first.

    `was_sent`: it may be parked nevertheless.
    """

    retriable = True

    def __init__(self, queue: str, reason: str, *, was_sent: bool = False) -> None:
        super().__init__(f"cannot park in {queue}: {reason}")
        self.queue = queue
        self.reason = reason
        self.was_sent = was_sent


class BrokerRefusal(LbgError):
    """The development broker refuses a request; `code` and `text` are those that PubSub+ uses on the wire."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class StoreFailed(LbgError):
    """The development broker cannot write its store; what was not written must not be confirmed to anybody."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"store {path}: {reason}")
        self.path = path
        self.reason = reason


class SempError(LbgError):
    """Administering the broker over SEMP failed."""


class SempUnreachable(SempError):
    """Nothing at the address answers with SEMP, or the broker stayed unready for as long as was tried."""

    retriable = True

    def __init__(self, url: str, reason: str, expected: str | None = None) -> None:
        super().__init__(f"no SEMP answer from {url}: {reason}{f'; expected {expected}' if expected else ''}")
        self.url = url
        self.reason = reason
        self.expected = expected
        """What would have been right, if more is known about it."""


class SempElsewhere(SempError):
    """The broker whose management API is at `url` does not know a client: it is connected elsewhere, or to none.

    So what that API says of queues and clients, or does to them, has nothing to do with the client's broker.
    """

    # Of a pair of brokers, the client and the API's address lead to the same one again after a while.
    retriable = True

    def __init__(self, url: str, client: str) -> None:
        super().__init__(
            f"semp.url: {url} is of a broker that does not know client {client}, which is connected to another one, or "
            "has no connection at the moment; expected the one that connection.host leads to: of a redundant pair, the "
            "one that is active"
        )
        self.url = url
        self.client = client


class VpnNotUp(SempError):
    """Nothing was deleted: the VPN is not `up` at the broker whose management API is at `url`.

    The standby of a pair has all queues without their messages, and what is deleted there is deleted at both.
    """

    def __init__(self, url: str, vpn: str, state: str) -> None:
        super().__init__(
            f"semp.url: {url} is of a broker where VPN {vpn} is {state}; "
            "expected up: a standby knows of no messages. --force deletes whatever the queues hold"
        )
        self.url = url
        self.vpn = vpn
        self.state = state


class MembersNotSeen(SempError):
    """Nothing was deleted: these queues are empty and had messages, but nobody was bound since their broker counts.

    So whoever took the messages was bound before the broker started or took over, and may be about to come back.
    """

    def __init__(self, queues: tuple[str, ...]) -> None:
        super().__init__(
            f"{', '.join(queues)}: there were messages, and nobody has been bound to any queue of the group since the"
            " broker started, took over or had its counts cleared, so members may be about to come back; expected"
            " members that were seen and have left. --force deletes the group if none runs, and whatever the queues"
            " hold"
        )
        self.queues = queues


class SempRefused(SempError):
    """The broker understood and refused. Branch on `code`; `status` and `description` are for people, and may change.

    `code` is 0 if the answer contained no SEMP error; `http_status` tells the rest. `is_repeated`: the request had been
    sent before and answered with 503, and that first request may have been carried out.
    """

    def __init__(
        self, request: str, http_status: int, code: int, status: str, description: str, *, is_repeated: bool = False
    ) -> None:
        super().__init__(f"{request}: {status} ({code}): {description}")
        self.request = request
        self.http_status = http_status
        self.code = code
        self.status = status
        self.description = description
        self.is_repeated = is_repeated


class SempMissing(SempRefused):
    """The object, or one above it, does not exist."""


class SempExists(SempRefused):
    """The object that was to be created exists already."""


class QueueMissing(SempError):
    """The queue does not exist."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {queue} does not exist")
        self.queue = queue


class QueueUnfit(SempError):
    """The queue exists, but a group cannot use it.

    `is_limit`: because of a limit that is too low, which `lbg group plan` and `apply` leave alone.
    """

    def __init__(self, queue: str, found: str, expected: str, *, is_limit: bool = False) -> None:
        super().__init__(f"queue {queue} has {found}; expected {expected}")
        self.queue = queue
        self.found = found
        self.expected = expected
        self.is_limit = is_limit


class QueueInUse(SempError):
    """The queue was not deleted: it still has messages or bound flows."""

    def __init__(self, queue: str, message_count: int, flow_count: int) -> None:
        super().__init__(
            f"queue {queue} has {counted(message_count, 'message')} and {counted(flow_count, 'bound flow')} left"
        )
        self.queue = queue
        self.message_count = message_count
        self.flow_count = flow_count


class GroupRefused(SempError):
    """A group was not created or changed, because of the state of the broker or the settings; nothing was touched."""

    def __init__(self, problems: tuple[UserError, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class GroupInUse(SempError):
    """A group was not deleted: messages or bound flows are left; `left` has their counts by queue.

    `only_parking`: nothing but messages in parking queues is left.
    """

    def __init__(self, left: dict[str, tuple[int, int]], *, only_parking: bool = False) -> None:
        queues = ", ".join(
            f"{queue} ({counted(messages, 'message')}, {counted(flows, 'flow')})"
            for queue, (messages, flows) in left.items()
        )
        way_out = "expected no messages, and members that have left"
        if only_parking:
            # The fence of its last owner always stays in a parking queue.
            way_out = "if `lbg parked list` says that nothing is parked, only marks are left: --force"
        super().__init__(f"still in use: {queues}; {way_out}")
        self.left = left
        self.only_parking = only_parking


class GroupReopened(SempError):
    """A deletion has stopped at a queue that it had closed: somebody else has opened it again."""

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"queue {queue} takes messages again, which this command had closed; "
            "expected nobody else to work on the group while it is deleted"
        )
        self.queue = queue


class PlanOutdated(SempError):
    """A plan was not carried on: so much time has passed that the group may be another one by now."""

    # The next run makes a plan of its own.
    retriable = True

    def __init__(self, since_s: float) -> None:
        super().__init__(
            f"this command stood still for {since_s:.0f} s, and somebody else may have changed the group meanwhile; "
            "expected the same command again"
        )
        self.since_s = since_s


class GroupMissing(SempError):
    """Nothing of the group is on the broker."""

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group} is not on the broker; `lbg group list` has those that are")
        self.group = group


class SparkUnavailable(LbgError):
    """Spark cannot run here, or failed; commands exit with code 3. `remedy` is the one line that fixes it."""

    def __init__(self, missing: str, remedy: str) -> None:
        super().__init__(f"{missing}; to mend it: {remedy}")
        self.missing = missing
        self.remedy = remedy


class SinkRowRefused(LbgError):
    """A row to be published has no value in a required column; `row` counts within its Spark partition.

    Nothing of that partition was published.
    """

    def __init__(self, column: str, row: int) -> None:
        super().__init__(f"row {row} has nothing in column {column!r}, so its partition was not published")
        self.column = column
        self.row = row


class SinkKeySplit(LbgError):
    """Keys of one batch were published by several Spark tasks at once, so their order is not known."""

    def __init__(self, key_count: int) -> None:
        super().__init__(
            f"{key_count} keys of one batch were in more than one partition, so their order is not kept; "
            "repartition by the key column before the sink"
        )
        self.key_count = key_count


class StreamFailed(LbgError):
    """A stream ended with an error; what it had committed to `target` stays, and its checkpoint continues there."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"the stream to {target} failed: {reason}")
        self.target = target
        self.reason = reason


class PayloadNotText(LbgError):
    """A payload that is to be read as text is not text; the stream stops there, and nothing is skipped."""

    def __init__(self, queue: int, broker_id: str) -> None:
        super().__init__(f"the payload of {broker_id} in queue {queue} is no UTF-8; read it with option decode none")
        self.queue = queue
        self.broker_id = broker_id


class LakeWriteFailed(LbgError):
    """Rows of a stream could not be written to a lake; nothing of their batch is in it. `reason` is the system's."""

    retriable = True

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be written: {reason}")
        self.path = path
        self.reason = reason


class CheckpointForeign(LbgError):
    """A stream's checkpoint belongs to another landing log, or to an unknown version; `where` names the log."""

    def __init__(self, where: str, found: str) -> None:
        super().__init__(
            f"{where}: the checkpoint has {found}; use the log it was made with, or a new checkpoint, and for parquet "
            "a new folder too"
        )
        self.where = where
        self.found = found


class LandingError(LbgError):
    """The landing log is faulty or cannot be written; `path` is the file or folder."""

    def __init__(self, path: str, what: str, remedy: str) -> None:
        super().__init__(f"{path}: {what}; {remedy}")
        self.path = path
        self.what = what
        self.remedy = remedy


class LandingDamaged(LandingError):
    """Bytes of a segment are not those that were written, or rows that were announced to a reader are gone.

    Nothing of the queue beyond the damage is read.
    """


class LandingVersionUnknown(LandingError):
    """A part of the log was written in a format that this version does not read."""


class LandingRowsPruned(LandingError):
    """Pruning has removed rows that were asked for; the first row of `lane` that is left is `first_row`."""

    def __init__(self, path: str, lane: str, row: int, first_row: int) -> None:
        super().__init__(
            path,
            f"row {row} of {lane} is pruned, the first that is left is {first_row}",
            "start from the rows that are left (in Spark: failOnDataLoss false, or `lbg spark stream --skip-pruned`), "
            "and keep rows longer than readers lag",
        )
        self.lane = lane
        self.row = row
        self.first_row = first_row


class LandingWriteFailed(LandingError):
    """Rows could not be made durable; none of them was acknowledged. `reason` is the system's."""

    retriable = True

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, f"cannot be written: {reason}", "messages stay in the broker until it can")
        self.reason = reason


class InvariantViolated(LbgError):
    """A machine was given an event that cannot happen: a bug of ours, never a user's."""
