"""The monitor API, read-only: queues, flows, messages, replay logs and clients as they are, the rest as configured.

More than 400 lines, as each kind of object is a row of names that stand here alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from zlib import crc32

from lbg_runtime.broker.engine.answers import Death, QueueStatus
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.intake import Obstacle
from lbg_runtime.broker.engine.rates import Rates
from lbg_runtime.broker.engine.replay.log import NS_PER_S
from lbg_runtime.broker.engine.replay.progress import ReplayStatus
from lbg_runtime.broker.semp import reply
from lbg_runtime.broker.semp.access import AccessLevel, Administrator
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.message_ids import message_id
from lbg_runtime.broker.semp.objects import VPN
from lbg_runtime.broker.semp.query import Item, Listed, Query, number_of
from lbg_runtime.broker.semp.queues import row_of
from lbg_runtime.broker.semp.replay_logs import log_row
from lbg_runtime.broker.semp.reply import Request
from lbg_runtime.broker.semp.schema import Row
from lbg_runtime.broker.semp.target import decode, encode_key
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.semp_code import SempCode

_Told = tuple[Row, Mapping[str, int] | None]
"""The attributes of an object, and how many objects are below it, if that is told."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One object."""

    name: str
    """In its collection."""
    look: Callable[[], _Told]
    """Looks at it, which may cost much: of a thousand, a page or a request for one shows few."""
    is_whole: bool = True
    """Whether what is below it is found there, and so linked to."""


def _seen(name: str, row: Row, counts: Mapping[str, int] | None = None) -> _Seen:
    """One that has been looked at."""
    return _Seen(name, lambda: (row, counts))


_Look = Callable[[Engine, tuple[str, ...]], Iterator[_Seen]]
"""Finds all objects of one kind, given the names of those above, the VPN's first."""

_LookForMessages = Callable[[Engine, tuple[str, ...], int], Iterator[_Seen]]
"""Finds messages in their order, those behind a number: of very many, a page costs no more than its own."""


class Monitor:
    """Called by the HTTP front end, on the loop's thread."""

    def __init__(self, engine: Engine, show_configured: Callable[[Request, Administrator], Row]) -> None:
        """`show_configured` answers for kinds of objects that are nothing but their configuration."""
        self._engine = engine
        self._show_configured = show_configured

    def handle(self, request: Request, administrator: Administrator) -> Row:
        """Answer a request; raises `SempFault`."""
        if request.method != "GET":
            raise SempFault(SempCode.NOT_SUPPORTED, f"{request.method} is not for the monitor API")
        kinds = request.segments[::2]
        names = tuple(decode(segment) for segment in request.segments[1::2])
        if kinds not in _KINDS:
            return self._show_configured(request, administrator)
        if names:
            administrator.check_read(names[0])
        above = names[: len(kinds) - 1]
        self._check_above(kinds, above)
        query = Query.parse(request.query)
        if len(names) < len(kinds):
            visible = (
                each for each in self._look(kinds, above, query.behind) if _is_visible(administrator, kinds, each)
            )
            page = query.page_of(_listed(kinds, above, visible), are_in_order=kinds in _MESSAGES)
            return reply.many(request, page, query)
        found = self._find(kinds, above, names[-1])
        if found is None:
            raise _missing(kinds, names[-1])
        [(_, look)] = _listed(kinds, above, (found,))
        return reply.one(request, look(), query)

    def _find(self, kinds: tuple[str, ...], above: tuple[str, ...], name: str) -> _Seen | None:
        if kinds not in _MESSAGES:
            return next((each for each in self._look(kinds, above) if each.name == name), None)
        number = number_of(name)
        # The first behind the number before its own, or it is not there.
        first = next(self._look(kinds, above, 0 if number is None else number - 1), None)
        return first if first is not None and first.name == name else None

    def _look(self, kinds: tuple[str, ...], above: tuple[str, ...], behind: int = 0) -> Iterator[_Seen]:
        if (look_for_messages := _MESSAGES.get(kinds)) is not None:
            return look_for_messages(self._engine, above, behind)
        return _LOOKS[kinds](self._engine, above)

    def _check_above(self, kinds: tuple[str, ...], above: tuple[str, ...]) -> None:
        for depth, name in enumerate(above, start=1):
            # By names only: there may be a thousand queues, and a request for something below each of them.
            if name not in _NAMES[kinds[:depth]](self._engine, above[: depth - 1]):
                raise _missing(kinds[:depth], name)


def _is_visible(administrator: Administrator, kinds: tuple[str, ...], seen: _Seen) -> bool:
    return len(kinds) > 1 or administrator.level_in(seen.name).includes(AccessLevel.READ_ONLY)


def _missing(kinds: tuple[str, ...], name: str) -> SempFault:
    return SempFault(SempCode.NOT_FOUND, f"{name} does not exist in {kinds[-1]}")


def _listed(kinds: tuple[str, ...], above: tuple[str, ...], seen: Iterable[_Seen]) -> Iterator[Listed]:
    # Once for all of them: there may be very many.
    path = tuple(part for kind, name in zip(kinds, above, strict=False) for part in (kind, encode_key((name,))))
    configured = (each.collection for each in VPN.children if kinds == ("msgVpns",))
    below = tuple(dict.fromkeys((*(each[-1] for each in _KINDS if each[:-1] == kinds), *configured)))
    for each in seen:
        whole_path = (*path, kinds[-1], encode_key((each.name,)))
        yield whole_path, partial(_item, whole_path, each, below if each.is_whole else ())


def _item(path: tuple[str, ...], seen: _Seen, below: tuple[str, ...]) -> Item:
    row, counts = seen.look()
    return Item(path, row, below, counts)


# -- the objects of each kind


def _vpns(engine: Engine, above: tuple[str, ...]) -> Iterator[_Seen]:  # noqa: ARG001  # there is nothing above
    for vpn in engine.administration.vpn_names():
        yield _seen(vpn, {"msgVpnName": vpn, "enabled": True, "state": "up"})


def _queues(engine: Engine, above: tuple[str, ...]) -> Iterator[_Seen]:
    (vpn,) = above
    for queue in engine.queue_names(vpn):
        # Once for the queue and all its partitions, which there may be hundreds of.
        look = cache(partial(engine.queue_status, vpn, queue))
        yield _Seen(queue, partial(_queue, engine, vpn, look))
        settings = engine.queue_settings(vpn, queue)
        for number in range(settings.partition_count if settings.is_partitioned else 0):
            yield _Seen(_partition_name(queue, number), partial(_partition, engine, vpn, look, number), is_whole=False)


def _queue(engine: Engine, vpn: str, look: Callable[[], QueueStatus]) -> _Told:
    status = look()
    row = _NO_PARTITION | _queue_row(vpn, status) | _replay_row(engine.replays.status(vpn, status.name))
    return row, {"msgs": status.depth, "subscriptions": len(status.subscriptions), "txFlows": len(status.flows)}


_NO_PARTITION: Row = dict.fromkeys(
    (
        "partitionOperationalCount",
        "partitionRebalanceStatus",
        "partitionScaleStatus",
        "partitionNumber",
        "partitionQueueName",
        "partitionStatus",
        "partitionClientName",
    )
)
"""What a queue without partitions, that is none itself, says of them."""


def _partition_name(queue: QueueName, number: int) -> str:
    return f"#pq/{crc32(queue.encode()):08x}/{number:05d}"


def _partition(engine: Engine, vpn: str, look: Callable[[], QueueStatus], number: int) -> _Told:
    """A partition appears as a queue of its own next to its queue, as on PubSub+."""
    status = look()
    partition = status.partitions[number]
    row: Row = {
        **dict.fromkeys(_queue(engine, vpn, look)[0]),
        "msgVpnName": vpn,
        "queueName": _partition_name(status.name, number),
        **row_of(replace(status.settings, partition_count=0)),
        "durable": status.settings.durable,
        "partitionNumber": partition.number,
        "partitionQueueName": status.name,
        "partitionStatus": partition.state.value,
        "partitionClientName": partition.client_name,
        "bindCount": int(partition.flow is not None),
    }
    # Its messages and its flow are found below the queue.
    return row, {"msgs": partition.depth, "txFlows": int(partition.flow is not None)}


def _queue_row(vpn: str, status: QueueStatus) -> Row:
    binds, deaths, discards = status.binds, status.deaths, status.discards
    partitions: Row = {}
    if status.rebalance is not None:
        partitions = {
            "partitionOperationalCount": len(status.partitions),
            "partitionRebalanceStatus": status.rebalance.value,
            "partitionScaleStatus": "ready",
        }
    elif status.settings.partition_count:
        partitions = {"partitionScaleStatus": "invalid-exclusive"}
    return {
        "msgVpnName": vpn,
        "queueName": status.name,
        **row_of(status.settings),
        **partitions,
        "durable": status.settings.durable,
        "msgSpoolUsage": status.spooled_bytes,
        "spooledMsgCount": status.spooled_count,
        "txUnackedMsgCount": status.unacked_count,
        "lowestMsgId": status.first_sequence if status.depth else 0,
        "lastSpooledMsgId": status.last_sequence,
        "redeliveredMsgCount": status.redelivered_count,
        **_rates_row(status.rates),
        "maxTtlExpiredToDmqMsgCount": deaths.buried[Death.EXPIRED],
        "maxTtlExpiredDiscardedMsgCount": deaths.discarded[Death.EXPIRED],
        "maxRedeliveryExceededToDmqMsgCount": deaths.buried[Death.WORN_OUT],
        "maxRedeliveryExceededDiscardedMsgCount": deaths.discarded[Death.WORN_OUT],
        "maxMsgSpoolUsageExceededDiscardedMsgCount": discards[Obstacle.OVER_QUOTA],
        "maxMsgSizeExceededDiscardedMsgCount": discards[Obstacle.TOO_LARGE],
        "disabledDiscardedMsgCount": discards[Obstacle.SHUT],
        "topicSubscriptionCount": len(status.subscriptions),
        "bindCount": sum(not flow.browser for flow in status.flows),
        "bindRequestCount": binds.requested,
        "bindSuccessCount": binds.succeeded,
        "disabledBindFailureCount": binds.disabled,
        "maxBindCountExceededBindFailureCount": binds.max_exceeded,
        "otherBindFailureCount": binds.other,
    }


def _rates_row(rates: Rates) -> Row:
    current, average = rates.current, rates.average
    return {
        "rxMsgRate": current.received_count,
        "rxByteRate": current.received_bytes,
        "txMsgRate": current.sent_count,
        "txByteRate": current.sent_bytes,
        "averageRxMsgRate": average.received_count,
        "averageRxByteRate": average.received_bytes,
        "averageTxMsgRate": average.sent_count,
        "averageTxByteRate": average.sent_bytes,
    }


def _replay_row(status: ReplayStatus) -> Row:
    return {
        "replayState": status.state.value,
        "replayStartCount": status.started_count,
        "replaySuccessCount": status.succeeded_count,
        "replayFailureCount": status.failed_count,
        "replayedTxMsgCount": status.sent_count,
        "replayedAckedMsgCount": status.gone_count,
    }


def _flows_of_queue(engine: Engine, above: tuple[str, ...]) -> Iterator[_Seen]:
    vpn, queue = above
    for flow in engine.queue_flows(vpn, QueueName(queue)):
        activity = "active-browser" if flow.browser else "active-consumer" if flow.active else "inactive"
        row: Row = {
            "msgVpnName": vpn,
            "queueName": queue,
            "flowId": flow.flow,
            "clientName": flow.client_name,
            "activityState": activity,
            "activityUpdateState": "synchronized",
            "windowSize": flow.window_size,
            "usedWindowSize": flow.used_window_size,
            "unackedMsgCount": flow.unacked_count,
            "redeliveredMsgCount": flow.redelivered_count,
        }
        yield _seen(str(flow.flow), row)


def _subscriptions_of_queue(engine: Engine, above: tuple[str, ...]) -> Iterator[_Seen]:
    vpn, queue = above
    for topic in engine.queue_subscriptions(vpn, QueueName(queue)):
        # Who made the subscription is not kept; the rest is answered.
        row: Row = {"msgVpnName": vpn, "queueName": queue, "subscriptionTopic": topic, "createdByManagement": None}
        yield _seen(topic, row)


def _messages(engine: Engine, above: tuple[str, ...], behind: int) -> Iterator[_Seen]:
    vpn, queue = above
    for spooled in engine.administration.queue_messages(vpn, QueueName(queue), behind):
        message = spooled.message
        row: Row = {
            "msgVpnName": vpn,
            "queueName": queue,
            "msgId": spooled.sequence,
            "attachmentSize": message.size_bytes,
            "undelivered": spooled.is_undelivered,
            "replicationGroupMsgId": message_id(engine.spooler, message.number),
        }
        if message.spooled_at_s is not None:
            row["spooledTime"] = message.spooled_at_s
        yield _seen(str(spooled.sequence), row)


def _replay_logs(engine: Engine, above: tuple[str, ...]) -> Iterator[_Seen]:
    (vpn,) = above
    log = engine.replays.log(vpn)
    if log is not None:
        row: Row = {
            "msgVpnName": vpn,
            "replayLogName": log.settings.name,
            **log_row(log.settings),
            "msgSpoolUsage": log.size_bytes,
        }
        yield _seen(log.settings.name, row, {"msgs": log.message_count})


def _logged_messages(engine: Engine, above: tuple[str, ...], behind: int) -> Iterator[_Seen]:
    vpn, name = above
    log = engine.replays.log(vpn)
    traits_of = engine.surroundings.traits_of
    for entry in () if log is None else log.entries(behind):
        traits = traits_of(entry.message)
        row: Row = {
            "msgVpnName": vpn,
            "replayLogName": name,
            "msgId": entry.message.number,
            "replicationGroupMsgId": message_id(engine.spooler, entry.message.number),
            "attachmentSize": entry.message.size_bytes,
            "dmqEligible": traits.may_go_to_dead_messages,
            "priority": traits.priority,
            "spooledTime": entry.came_ns // NS_PER_S,
        }
        yield _seen(str(entry.message.number), row)


def _replay_log_names(engine: Engine, above: tuple[str, ...]) -> Iterator[str]:
    return (seen.name for seen in _replay_logs(engine, above))


def _groups(engine: Engine, above: tuple[str, ...]) -> Iterator[_Seen]:
    vpn, queue = above
    for group in engine.administration.groups(vpn, QueueName(queue)):
        row: Row = {
            "msgVpnName": vpn,
            "queueName": queue,
            "messageGroup": group.group,
            "clientName": group.client_name,
            "flowId": group.flow,
        }
        yield _seen(group.group, row, {"msgs": group.depth})


def _clients(engine: Engine, above: tuple[str, ...]) -> Iterator[_Seen]:
    (vpn,) = above
    for name in engine.administration.client_names(vpn):
        yield _Seen(name, partial(_client, engine, vpn, name))


def _client(engine: Engine, vpn: str, name: str) -> _Told:
    client = engine.administration.client(vpn, name)
    row: Row = {
        "msgVpnName": vpn,
        "clientName": client.name,
        "clientId": client.client,
        "clientUsername": client.account,
        "originalClientUsername": client.username,
        "clientAddress": client.address,
        "softwareVersion": client.introduction.software_version,
        "softwareDate": client.introduction.software_date,
        "platform": client.introduction.platform,
        "user": client.introduction.user,
        "description": client.introduction.description,
        "uptime": (engine.surroundings.timetable.now() - client.connected_ms) // 1_000,
        "rxFlowCount": client.publisher_flow_count,
        "txFlowCount": len(client.flows),
        "subscriptionCount": len(client.subscriptions),
    }
    return row, {"subscriptions": len(client.subscriptions), "txFlows": len(client.flows)}


def _flows_of_client(engine: Engine, above: tuple[str, ...]) -> Iterator[_Seen]:
    vpn, client = above
    for queue, flow in engine.administration.client(vpn, client).flows:
        row: Row = {
            "msgVpnName": vpn,
            "clientName": client,
            "flowId": flow.flow,
            "endpointName": queue,
            "endpointType": "queue",
        }
        yield _seen(str(flow.flow), row)


def _subscriptions_of_client(engine: Engine, above: tuple[str, ...]) -> Iterator[_Seen]:
    vpn, client = above
    for topic in engine.administration.client(vpn, client).subscriptions:
        yield _seen(topic, {"msgVpnName": vpn, "clientName": client, "subscriptionTopic": topic})


_NAMES: Mapping[tuple[str, ...], Callable[[Engine, tuple[str, ...]], Iterable[str]]] = {
    ("msgVpns",): lambda engine, _: engine.administration.vpn_names(),
    ("msgVpns", "queues"): lambda engine, above: engine.queue_names(above[0]),
    ("msgVpns", "replayLogs"): _replay_log_names,
    ("msgVpns", "clients"): lambda engine, above: engine.administration.client_names(above[0]),
}
"""For the kinds that have something below them."""

_LOOKS: Mapping[tuple[str, ...], _Look] = {
    ("msgVpns",): _vpns,
    ("msgVpns", "queues"): _queues,
    ("msgVpns", "queues", "txFlows"): _flows_of_queue,
    ("msgVpns", "queues", "subscriptions"): _subscriptions_of_queue,
    ("msgVpns", "queues", "messageGroups"): _groups,
    ("msgVpns", "replayLogs"): _replay_logs,
    ("msgVpns", "clients"): _clients,
    ("msgVpns", "clients", "txFlows"): _flows_of_client,
    ("msgVpns", "clients", "subscriptions"): _subscriptions_of_client,
}

_MESSAGES: Mapping[tuple[str, ...], _LookForMessages] = {
    ("msgVpns", "queues", "msgs"): _messages,
    ("msgVpns", "replayLogs", "msgs"): _logged_messages,
}

_KINDS = (*_LOOKS, *_MESSAGES)
