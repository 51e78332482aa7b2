"""The action API: requests that are carried out once and leave no setting behind."""

from collections.abc import Callable, Mapping

from lbg_runtime.broker.engine.effects import CarryOut, Effect
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.semp import reply
from lbg_runtime.broker.semp.access import Administrator
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.message_ids import after_message
from lbg_runtime.broker.semp.query import number_of
from lbg_runtime.broker.semp.replay_logs import cancel_replay, check_names, start_replay, trim_logged_messages
from lbg_runtime.broker.semp.reply import Request
from lbg_runtime.broker.semp.schema import Json, Row
from lbg_runtime.broker.semp.target import decode
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.semp_code import SempCode

_Act = Callable[[Engine, tuple[str, ...]], list[Effect]]
"""Carries an action out, given the names along the path to its object, the VPN's first; `BrokerRefusal` if it is
missing."""

_ActWith = Callable[[Engine, tuple[str, ...], Mapping[str, Json]], list[Effect]]
"""The same for one that also needs the request's body."""


class Action:
    """Called by the HTTP front end, on the loop's thread."""

    def __init__(self, engine: Engine, carry_out: CarryOut) -> None:
        self._engine = engine
        self._carry_out = carry_out

    def handle(self, request: Request, administrator: Administrator) -> Row:
        """Answer a request; raises `SempFault`."""
        *path, verb = request.segments or ("",)
        names = tuple(decode(segment) for segment in path[1::2])
        kinds = (*path[::2], verb)
        if kinds not in _ACTS or len(path) % 2 or request.method != "PUT":
            raise SempFault(SempCode.NOT_SUPPORTED, f"{request.method} {'/'.join(request.segments)} is no action here")
        administrator.check_write(names[0])
        body = reply.read_body(request.body or b"{}")
        try:
            if kinds in _ACTS_WITH:
                effects = _ACTS_WITH[kinds](self._engine, names, body)
            else:
                # An unknown attribute must not be ignored: a request to delete some messages would delete all.
                check_names(body, ())
                effects = _ACTS_WITHOUT[kinds](self._engine, names)
        except BrokerRefusal:
            # The queue, or the VPN, is what is missing: for an object below a queue there is another fault.
            depth = 1 if names[0] in self._engine.administration.vpn_names() else 0
            raise SempFault(SempCode.NOT_FOUND, f"{names[depth]} does not exist in {kinds[depth]}") from None
        self._carry_out(effects)
        return reply.done(request)


def _delete_messages(engine: Engine, names: tuple[str, ...]) -> list[Effect]:
    vpn, queue = names
    return engine.administration.delete_messages(vpn, QueueName(queue))


def _delete_message(engine: Engine, names: tuple[str, ...]) -> list[Effect]:
    vpn, queue, number = names
    place = number_of(number)
    behind = engine.administration.queue_messages(vpn, QueueName(queue), 0 if place is None else place - 1)
    # The first of them, or it is not there.
    found = next(behind, None)
    if found is None or str(found.sequence) != number:
        raise SempFault(SempCode.NOT_FOUND, f"queue {queue} has no message {number}")
    return engine.administration.delete_messages(vpn, QueueName(queue), {found.sequence})


def _copy_message(engine: Engine, names: tuple[str, ...], body: Mapping[str, Json]) -> list[Effect]:
    vpn, queue = names
    known = ("sourceQueueName", "replicationGroupMsgId")
    check_names(body, known)
    engine.queue_depth(vpn, QueueName(queue))  # A missing queue is reported before anything else that is wrong.
    for name in known:
        if name not in body:
            raise SempFault(SempCode.MISSING_PARAMETER, f"{name} is needed")
    source = str(body["sourceQueueName"])
    message = after_message("replicationGroupMsgId", body["replicationGroupMsgId"])
    if source == queue:
        raise SempFault(SempCode.NOT_ALLOWED, f"queue {queue} is where the message is; expected another one")
    if source not in engine.queue_names(vpn):
        raise SempFault(SempCode.NOT_FOUND, f"{source} does not exist in queues")
    number = message.number if message.spooler == engine.spooler else 0
    try:
        return engine.administration.copy_message(vpn, QueueName(source), number, QueueName(queue))
    except LookupError:
        text = body["replicationGroupMsgId"]
        raise SempFault(SempCode.NOT_FOUND, f"queue {source} has no message {text}") from None
    except BrokerRefusal as refusal:
        raise SempFault(SempCode.NOT_ALLOWED, f"queue {queue}: {refusal.text}") from None


def _clear_stats(engine: Engine, names: tuple[str, ...]) -> list[Effect]:
    vpn, queue = names
    engine.administration.clear_counts(vpn, QueueName(queue))
    return []


def _reset_groups(engine: Engine, names: tuple[str, ...]) -> list[Effect]:
    vpn, queue = names
    return engine.administration.reset_groups(vpn, QueueName(queue))


def _reset_group(engine: Engine, names: tuple[str, ...]) -> list[Effect]:
    vpn, queue, group = names
    if group not in {each.group for each in engine.administration.groups(vpn, QueueName(queue))}:
        raise SempFault(SempCode.NOT_FOUND, f"queue {queue} has no message group {group}")
    return engine.administration.reset_groups(vpn, QueueName(queue), group)


def _disconnect(engine: Engine, names: tuple[str, ...]) -> list[Effect]:
    vpn, client = names
    return engine.administration.end_client(vpn, client)


_ACTS_WITHOUT: Mapping[tuple[str, ...], _Act] = {
    ("msgVpns", "queues", "deleteMsgs"): _delete_messages,
    ("msgVpns", "queues", "msgs", "delete"): _delete_message,
    ("msgVpns", "queues", "clearStats"): _clear_stats,
    ("msgVpns", "queues", "resetMessageGroups"): _reset_groups,
    ("msgVpns", "queues", "messageGroups", "reset"): _reset_group,
    ("msgVpns", "queues", "cancelReplay"): cancel_replay,
    ("msgVpns", "clients", "disconnect"): _disconnect,
}
_ACTS_WITH: Mapping[tuple[str, ...], _ActWith] = {
    ("msgVpns", "queues", "copyMsgFromQueue"): _copy_message,
    ("msgVpns", "queues", "startReplay"): start_replay,
    ("msgVpns", "replayLogs", "trimLoggedMsgs"): trim_logged_messages,
}
_ACTS = _ACTS_WITHOUT.keys() | _ACTS_WITH.keys()
