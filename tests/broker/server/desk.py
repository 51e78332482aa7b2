"""Sessions without sockets on a real engine, and the frames that a client sends and is sent."""

import base64
import struct
from collections.abc import Iterable

from lbg_runtime.broker.engine.effects import ClientId, Effect
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.server.session import Session
from lbg_runtime.model.ids import QueueName
from lbg_runtime.smf.assured_items import (
    AssuredKind,
    ItemKind,
    assured_body,
    decode_assured,
)
from lbg_runtime.smf.client_ctrl import LOGIN, ClientCtrl, ClientItem, ClientKind, encode_client_ctrl
from lbg_runtime.smf.frame import (
    ASSURED,
    Frame,
    FrameReader,
    LightKind,
    Parameter,
    ParameterKind,
    Protocol,
    decode_frame,
    encode_frame,
)
from lbg_runtime.smf.response import OK, response_of
from lbg_runtime.smf.transactions import TransactionKind

TAG = Parameter(LightKind.CORRELATION_TAG, b"\0\0\7", light=True)


class Desk:
    """An engine and the sessions at it."""

    def __init__(self) -> None:
        self.engine = Engine()
        self._sessions: dict[ClientId, Session] = {}

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._sessions[effect.client].apply([effect])

    def new_session(self) -> Session:
        session = Session(
            self.engine, self.carry_out, lambda client: self._sessions.update({client: session}), "anonymous"
        )
        return session

    def log_in(self, name: str = "client", username: str = "user") -> Session:
        session = self.new_session()
        session.receive(login(name, username=username))
        assert response_of(answers(session)[0]) == OK
        return session

    def create_queue(self, name: str, *subscriptions: str, **queue_settings) -> None:
        self.engine.create_queue("default", QueueName(name), QueueSettings(**queue_settings))
        for subscription in subscriptions:
            self.engine.add_queue_subscription("default", QueueName(name), subscription)

    def depth(self, name: str) -> int:
        return self.engine.queue_depth("default", QueueName(name))


def answers(session: Session) -> list[Frame]:
    """What the session has written since the last call, frame by frame."""
    reader = FrameReader(1 << 30)
    while session.outbox:
        reader.feed(b"".join(session.outbox.take()))
    frames = []
    while (raw := reader.next_frame()) is not None:
        frames.append(decode_frame(raw))
    return frames


def login(name: str, *more: ClientItem, vpn: str = "default", keep_alive_s: int = 3, username: str = "user") -> bytes:
    items = (
        *more,
        ClientItem(ClientKind.CLIENT_NAME, name.encode() + b"\0"),
        ClientItem(ClientKind.VPN, vpn.encode() + b"\0", 1),
        ClientItem(ClientKind.KEEP_ALIVE, keep_alive_s.to_bytes(4, "big")),
    )
    credentials = (
        Parameter(ParameterKind.USERNAME, base64.b64encode(username.encode())),
        Parameter(ParameterKind.PASSWORD, base64.b64encode(b"password")),
    )
    return encode_frame(Frame(Protocol.CLIENT_CTRL, credentials, encode_client_ctrl(ClientCtrl(LOGIN, items, 1))))


def control(kind: int, *items: tuple[ItemKind, bytes], tag: bool = True) -> bytes:
    body = assured_body(kind, *items)
    return encode_frame(Frame(Protocol.ASSURED_CTRL, (TAG,) if tag else (), body, mark=0))


def transaction(kind: int, session_id: int = 0, *parts: tuple[ItemKind, bytes]) -> bytes:
    """A request about a transacted session; `consumed` and `put` make its parts."""
    items = [(ItemKind.TRANSACTION_REQUEST, bytes((kind,))), (ItemKind.TRANSACTED_SESSION, u32(session_id))]
    if kind in (TransactionKind.COMMIT, TransactionKind.ROLLBACK):
        items.append((ItemKind.TRANSACTION, bytes(4)))
    body = assured_body(AssuredKind.TRANSACTION, *items, *parts)
    return encode_frame(Frame(Protocol.ASSURED_PASS_THROUGH, (TAG,), body))


def consumed(
    flow: int, first: int, last: int, count: int, received: int = 0, window: int = 255
) -> tuple[ItemKind, bytes]:
    return ItemKind.CONSUMED_PARTS, struct.pack(">IQQIQI", flow, first, last, count, received, window)


def put(flow: int, count: int, last_id: int) -> tuple[ItemKind, bytes]:
    return ItemKind.PUBLISHED_PARTS, struct.pack(">IIQ", flow, count, last_id)


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def published(flow: int, message_id: int, topic: str, body: bytes = b"body", *, resent: bool = False) -> bytes:
    parameters = [
        Parameter(ParameterKind.TOPIC, text(topic), mark=2),
        Parameter(ParameterKind.PRIORITY, b"\4"),
        Parameter(ParameterKind.DELIVERY_MODE, b"\1", mark=2),
        Parameter(ParameterKind.FLOW_ID, u32(flow)),
        Parameter(ParameterKind.PREVIOUS_ID, u64(message_id - 1), mark=2),
        Parameter(ParameterKind.MESSAGE_ID, u64(message_id), mark=2),
    ]
    if resent:
        parameters.append(Parameter(ParameterKind.REDELIVERED, mark=2))
    return encode_frame(Frame(Protocol.MESSAGE, tuple(parameters), body, flags=ASSURED | 8))


def item(frame: Frame, kind: ItemKind) -> int:
    return next(int.from_bytes(i.value, "big") for i in decode_assured(frame.body).items if i.kind == kind)


def text_item(frame: Frame, kind: ItemKind) -> str:
    return next(i.value.decode()[:-1] for i in decode_assured(frame.body).items if i.kind == kind)


def kind_of(frame: Frame) -> int:
    return decode_assured(frame.body).kind if frame.protocol == Protocol.ASSURED_CTRL else -1


def open_flow(session: Session, name: str = "") -> tuple[int, str, int]:
    session.receive(control(AssuredKind.OPEN_FLOW, (ItemKind.FLOW_NAME, text(name)), tag=False))
    (answer,) = answers(session)
    assert response_of(answer) == OK
    return item(answer, ItemKind.FLOW_ID), text_item(answer, ItemKind.FLOW_NAME), item(answer, ItemKind.LAST_ACKED)


def bind(session: Session, queue: str, *, window: int = 255, last_received: int | None = None) -> int:
    extra = () if last_received is None else ((ItemKind.LAST_RECEIVED, u64(last_received)),)
    session.receive(
        control(
            AssuredKind.BIND,
            (ItemKind.QUEUE, text(queue)),
            (ItemKind.WINDOW, bytes((0 if last_received is None else window,))),
            (ItemKind.DURABILITY, b"\1"),
            (ItemKind.WANTS_CHANGES, b"\1"),
            *extra,
        )
    )
    answer = answers(session)[0]
    assert response_of(answer) == OK
    assert answer.tag == TAG.value
    flow = item(answer, ItemKind.FLOW_ID)
    if last_received is None:
        session.receive(ack(flow, window=window))
    return flow


def ack(flow: int, received: int | None = None, window: int | None = None, ranges: tuple[bytes, ...] = ()) -> bytes:
    items: list[tuple[ItemKind, bytes]] = [(ItemKind.FLOW_ID, u32(flow))]
    if received is not None:
        items.append((ItemKind.LAST_ACKED, u64(received)))
    if window is not None:
        items.append((ItemKind.WINDOW, bytes((window,))))
    items += [(ItemKind.APPLICATION_ACK, value) for value in ranges]
    return control(AssuredKind.CLIENT_ACK, *items, tag=False)


def delivered(frame: Frame) -> tuple[int, int, bool]:
    """Id, previous id and flag of a delivery."""
    message_id, previous = frame.find(ParameterKind.MESSAGE_ID), frame.find(ParameterKind.PREVIOUS_ID)
    assert message_id is not None
    assert previous is not None
    redelivered = frame.find(ParameterKind.REDELIVERED) is not None
    return int.from_bytes(message_id, "big"), int.from_bytes(previous, "big"), redelivered
