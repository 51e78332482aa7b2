"""A client of the broker's protocol on a plain socket, for `lbg bench broker`: frames are made before the clock starts.

It blocks, never reconnects, and decodes only what it needs to check counts and order, so that it costs far less than
any broker. One thread, one connection.
"""

import base64
import socket
from collections.abc import Iterable, Iterator

from lbg_runtime.model.errors import LbgError
from lbg_runtime.smf.assured_items import (
    AssuredKind,
    ItemKind,
    assured_body,
    decode_assured,
)
from lbg_runtime.smf.client_ctrl import LOGIN, ClientCtrl, ClientItem, ClientKind, encode_client_ctrl
from lbg_runtime.smf.frame import (
    ASSURED,
    DEAD_MESSAGE_ELIGIBLE,
    Frame,
    FrameReader,
    LightKind,
    Parameter,
    ParameterKind,
    Protocol,
    decode_frame,
    encode_frame,
    protocol_of,
)
from lbg_runtime.smf.response import OK, response_of
from lbg_runtime.smf.smp import SubscriptionFlag, SubscriptionKind, SubscriptionRequest, encode_subscription

WINDOW = 255
PAYLOAD_BYTES = 256
NUMBER_BYTES = 8
"""Every payload begins with the number of its message."""
FLOW = 1
"""Number of the flow if the peer assigns no numbers."""

_CHUNK_BYTES = 256 * 1024
_PATIENCE_S = 60.0
_ID_AT = slice(14, 22)
"""Where the id is in a delivery of the development broker."""
_TAG = Parameter(LightKind.CORRELATION_TAG, b"\0\0\7", light=True)


class UnexpectedAnswer(LbgError):
    """The broker refused something, or sent something other than expected."""


class RawClient:
    """One connection. With `name` None nothing is sent before the first message: for a peer that is not a broker."""

    def __init__(self, host: str, name: str | None) -> None:
        address, _, port = host.removeprefix("tcp://").rpartition(":")
        self._socket = socket.create_connection((address, int(port)), timeout=_PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader(1 << 30)
        self._is_plain = name is None
        if name is not None:
            try:
                self._log_in(name)
            except UnexpectedAnswer:
                self.close()
                raise

    def close(self) -> None:
        """Cut the connection."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def frames(self) -> Iterator[bytes]:
        """The complete frames that have come; waits until there is one."""
        while (raw := self._reader.next_frame()) is None:
            data = self._socket.recv(_CHUNK_BYTES)
            if not data:
                raise UnexpectedAnswer("the broker closed the connection")
            self._reader.feed(data)
        while raw is not None:
            yield raw
            raw = self._reader.next_frame()

    # -- publishing

    def open_publisher(self) -> int:
        """Open a publisher flow and return its number."""
        if self._is_plain:
            return FLOW
        self.send(_control(AssuredKind.OPEN_FLOW, (ItemKind.FLOW_NAME, b"\0"), tagged=True))
        return _number(self._answer(), ItemKind.FLOW_ID)

    def confirmed(self) -> int:
        """The number up to which all messages are confirmed by the frames that have come; waits for frames."""
        last = 0
        for raw in self.frames():
            if protocol_of(raw) == Protocol.ASSURED_CTRL:
                frame = decode_frame(raw)
                if response_of(frame) != OK:
                    raise UnexpectedAnswer(f"a message was refused: {response_of(frame)}")
                last = _number(frame, ItemKind.LAST_ACKED)
        return last

    # -- consuming

    def bind_all(self, queues: list[str]) -> list[int]:
        """Bind to all of these at once; return the numbers of the flows, whose windows are closed."""
        self.send(
            b"".join(
                _control(
                    AssuredKind.BIND,
                    (ItemKind.QUEUE, queue.encode() + b"\0"),
                    (ItemKind.WINDOW, b"\0"),
                    (ItemKind.DURABILITY, b"\1"),
                    (ItemKind.WANTS_CHANGES, b"\1"),
                    tagged=True,
                )
                for queue in queues
            )
        )
        flows: list[int] = []
        while len(flows) < len(queues):
            for raw in self.frames():
                frame = decode_frame(raw)
                if frame.tag is not None:
                    if response_of(frame) != OK:
                        raise UnexpectedAnswer(f"a bind was refused: {response_of(frame)}")
                    flows.append(_number(frame, ItemKind.FLOW_ID))
        return flows

    def open_window(self, flow: int, received: int = 0, settled: tuple[int, int] | None = None) -> None:
        """Allow a full window beyond `received`, and settle from the first to the last id."""
        items = [(ItemKind.FLOW_ID, flow.to_bytes(4, "big"))]
        items += [(ItemKind.LAST_ACKED, received.to_bytes(8, "big"))] if received else []
        items += [(ItemKind.WINDOW, bytes((WINDOW,)))]
        if settled is not None:
            first, last = settled
            value = first.to_bytes(8, "big") + last.to_bytes(8, "big") + b"\0"
            items.append((ItemKind.APPLICATION_ACK, value))
        self.send(_control(AssuredKind.CLIENT_ACK, *items))

    def subscribe(self, topics: Iterable[str]) -> None:
        """Have the direct messages on these topics sent to this client."""
        frames = [
            Frame(
                Protocol.SUBSCRIPTION,
                (_TAG,),
                encode_subscription(
                    SubscriptionRequest(
                        SubscriptionKind.ADD, SubscriptionFlag.TOPIC | SubscriptionFlag.ANSWER_WANTED, topic
                    )
                ),
            )
            for topic in topics
        ]
        self.send(b"".join(encode_frame(frame) for frame in frames))
        answered = 0
        while answered < len(frames):
            for raw in self.frames():
                if response_of(decode_frame(raw)) != OK:
                    raise UnexpectedAnswer(f"a subscription was refused: {response_of(decode_frame(raw))}")
                answered += 1

    # -- parts

    def _log_in(self, name: str) -> None:
        items = (
            ClientItem(ClientKind.CLIENT_NAME, name.encode() + b"\0"),
            ClientItem(ClientKind.VPN, b"default\0", 1),
        )
        credentials = (
            Parameter(ParameterKind.USERNAME, base64.b64encode(b"bench")),
            Parameter(ParameterKind.PASSWORD, base64.b64encode(b"bench")),
        )
        body = encode_client_ctrl(ClientCtrl(LOGIN, items, 1))
        self.send(encode_frame(Frame(Protocol.CLIENT_CTRL, credentials, body)))
        self._answer()

    def _answer(self) -> Frame:
        frames = [decode_frame(raw) for raw in self.frames()]
        if len(frames) != 1 or response_of(frames[0]) != OK:
            raise UnexpectedAnswer(f"{len(frames)} answers, the first: {response_of(frames[0])}")
        return frames[0]


def message_frame(flow: int, message_id: int, topic: str, payload: bytes) -> bytes:
    """A persistent message as a client sends it."""
    parameters = (
        Parameter(ParameterKind.TOPIC, topic.encode() + b"\0", mark=2),
        Parameter(ParameterKind.PRIORITY, b"\4"),
        Parameter(ParameterKind.DELIVERY_MODE, b"\1", mark=2),
        Parameter(ParameterKind.FLOW_ID, flow.to_bytes(4, "big")),
        Parameter(ParameterKind.PREVIOUS_ID, (message_id - 1).to_bytes(8, "big"), mark=2),
        Parameter(ParameterKind.MESSAGE_ID, message_id.to_bytes(8, "big"), mark=2),
    )
    return encode_frame(Frame(Protocol.MESSAGE, parameters, payload, flags=ASSURED | DEAD_MESSAGE_ELIGIBLE))


def direct_frame(topic: str, payload: bytes) -> bytes:
    """A direct message as a client sends it."""
    parameters = (
        Parameter(ParameterKind.TOPIC, topic.encode() + b"\0", mark=2),
        Parameter(ParameterKind.PRIORITY, b"\4"),
    )
    return encode_frame(Frame(Protocol.MESSAGE, parameters, payload))


def topic_of(queue: int) -> str:
    """The topic to which only the queue with this number subscribes."""
    return f"bench/{queue}/orders"


def queue_name(queue: int) -> str:
    return f"bench/{queue}"


def numbered(number: int, size: int) -> bytes:
    """A payload of this many bytes that contains the number of its message."""
    return number.to_bytes(NUMBER_BYTES, "big") + bytes(size - NUMBER_BYTES)


def delivery_id(raw: bytes) -> int:
    """The id of a delivery of the development broker."""
    return int.from_bytes(raw[_ID_AT], "big")


def is_message(raw: bytes) -> bool:
    return protocol_of(raw) == Protocol.MESSAGE


def number_in(raw: bytes) -> int:
    """The number in a message whose payload has `PAYLOAD_BYTES`."""
    return int.from_bytes(raw[-PAYLOAD_BYTES:][:NUMBER_BYTES], "big")


def _control(kind: AssuredKind, *items: tuple[ItemKind, bytes], tagged: bool = False) -> bytes:
    body = assured_body(kind, *items)
    return encode_frame(Frame(Protocol.ASSURED_CTRL, (_TAG,) if tagged else (), body, mark=0))


def _number(frame: Frame, kind: ItemKind) -> int:
    for item in decode_assured(frame.body).items:
        if item.kind == kind:
            return int.from_bytes(item.value, "big")
    raise UnexpectedAnswer(f"an answer without {kind.name.lower()}")
