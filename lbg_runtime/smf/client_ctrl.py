"""Login: what a client says about itself, and the capabilities that the broker answers with."""

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.extended import ExtendedKind, decode_extended
from lbg_runtime.smf.frame import Frame, ParameterKind
from lbg_runtime.smf.text import closed_text, text_of

LOGIN = 0

_VERSION = 1
_HEAD_BYTES = 6
_ITEM_HEAD_BYTES = 5
# How a TLS connection goes on after the login: compressed within TLS. 0 is plain text, 1 compressed plain text.
_COMPRESSED_TLS = b"\2"


class ClientKind(IntEnum):
    """Parameters of a login body that are read or written here."""

    SOFTWARE_VERSION = 0x00
    SOFTWARE_DATE = 0x01
    PLATFORM = 0x02
    USER_ID = 0x03
    DESCRIPTION = 0x04
    CLIENT_NAME = 0x05
    VPN = 0x06
    INBOX = 0x08
    CAPABILITIES = 0x09
    VIRTUAL_ROUTER = 0x0A
    ROUTER = 0x0C
    SCHEME = 0x11
    EXTENDED_CAPABILITIES = 0x13
    AFTER_LOGIN = 0x15
    KEEP_ALIVE = 0x18


@dataclass(frozen=True, slots=True)
class ClientItem:
    """One parameter of a login body."""

    kind: int
    value: bytes
    mark: int = 0


@dataclass(frozen=True, slots=True)
class ClientCtrl:
    """A login body, request or answer, preserved bit for bit."""

    kind: int
    items: tuple[ClientItem, ...] = ()
    mark: int = 0

    def find(self, kind: int) -> bytes | None:
        """The value of the first parameter of this kind, or None."""
        for item in self.items:
            if item.kind == kind:
                return item.value
        return None


class Scheme(IntEnum):
    """How a client authenticates."""

    BASIC = 0
    """With a name and a password; also the default if a login does not say."""
    CLIENT_CERTIFICATE = 1
    """With the certificate of its TLS connection."""
    KERBEROS = 2
    OAUTH = 0x0A
    """With a token."""


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A request to log in. Its secrets appear in no representation."""

    username: str
    password: str = field(repr=False)
    client_name: str
    """Empty if the client leaves the choice to the broker."""
    vpn: str
    keep_alive_s: int
    """The client sends at least one frame in this many seconds; 0 if it promised nothing."""
    scheme: int = Scheme.BASIC
    access_token: str = field(default="", repr=False)
    wants_plain_text: bool = False
    """Whether its TLS is to give way to plain text once it is logged in."""
    wants_compression: bool = False
    """Whether both sides are to compress within its TLS what comes behind the answer to the login."""
    software_version: str = ""
    software_date: str = ""
    platform: str = ""
    user: str = ""
    """Who runs the program and where, by its own account."""
    description: str = ""


def decode_client_ctrl(body: bytes) -> ClientCtrl:
    """Read a login body; raises `ProtocolError`."""
    if len(body) < _HEAD_BYTES:
        raise ProtocolError(f"a client control body of {len(body)} bytes")
    if body[0] & 0x7F != _VERSION:
        raise ProtocolError(f"client control version {body[0] & 0x7F}")
    size = int.from_bytes(body[2:6], "big")
    if size != len(body):
        raise ProtocolError(f"a client control body says it is {size} bytes long and is {len(body)}", 2)
    items = []
    position = _HEAD_BYTES
    while position < size:
        # A length that is cut off does not fit either.
        start = position + _ITEM_HEAD_BYTES
        end = position + int.from_bytes(body[position + 1 : start], "big")
        if not start <= end <= size:
            raise ProtocolError("a client parameter with an impossible length", position)
        items.append(ClientItem(body[position] & 0x7F, body[start:end], body[position] >> 7))
        position = end
    return ClientCtrl(body[1], tuple(items), body[0] >> 7)


def encode_client_ctrl(message: ClientCtrl) -> bytes:
    items = b"".join(
        bytes((item.mark << 7 | item.kind,)) + (len(item.value) + _ITEM_HEAD_BYTES).to_bytes(4, "big") + item.value
        for item in message.items
    )
    head = bytes((message.mark << 7 | _VERSION, message.kind))
    return head + (_HEAD_BYTES + len(items)).to_bytes(4, "big") + items


def read_login(frame: Frame, message: ClientCtrl) -> LoginRequest:
    """Read a login frame and its body; raises `ProtocolError`."""
    extended = decode_extended(frame.find(ParameterKind.EXTENDED) or b"")
    return LoginRequest(
        username=_unveil(frame, ParameterKind.USERNAME),
        password=_unveil(frame, ParameterKind.PASSWORD),
        client_name=client_name_of(message.find(ClientKind.CLIENT_NAME) or b"\0"),
        vpn=closed_text(message.find(ClientKind.VPN) or b"\0"),
        keep_alive_s=_number(message, ClientKind.KEEP_ALIVE, 4),
        scheme=_number(message, ClientKind.SCHEME, 1),
        access_token=closed_text(extended.get(ExtendedKind.ACCESS_TOKEN, b"\0")),
        wants_plain_text=message.find(ClientKind.AFTER_LOGIN) not in (None, _COMPRESSED_TLS),
        wants_compression=message.find(ClientKind.AFTER_LOGIN) == _COMPRESSED_TLS,
        software_version=remark(message.find(ClientKind.SOFTWARE_VERSION)),
        software_date=remark(message.find(ClientKind.SOFTWARE_DATE)),
        platform=remark(message.find(ClientKind.PLATFORM)),
        user=remark(message.find(ClientKind.USER_ID)),
        description=remark(message.find(ClientKind.DESCRIPTION)),
    )


def client_name_of(value: bytes) -> str:
    """The name that a client gives itself; raises `ProtocolError`.

    What is no UTF-8 in it becomes U+FFFD, which no name may have: so its client is told why it does not get it.
    """
    return closed_text(value.decode(errors="replace").encode())


def remark(value: bytes | None) -> str:
    """What a client says of itself; for people only, and made of what its machine is called: no reason to refuse it."""
    return (value or b"").decode(errors="replace").rstrip("\0")


def _number(message: ClientCtrl, kind: ClientKind, size: int) -> int:
    value = message.find(kind)
    if value is None:
        return 0
    if len(value) != size:
        raise ProtocolError(f"{kind.name.lower()} of {len(value)} bytes, not {size}")
    return int.from_bytes(value, "big")


def _unveil(frame: Frame, kind: ParameterKind) -> str:
    # Base64 only protects unusual characters; it hides nothing.
    value = frame.find(kind) or b""
    try:
        return text_of(base64.b64decode(value, validate=True))
    except binascii.Error as error:
        raise ProtocolError(f"a {kind.name.lower()} that is not BASE64") from error


def encode_capabilities(booleans: Iterable[bool], values: Iterable[tuple[int, bytes]]) -> bytes:
    """The value of a capabilities parameter: numbered booleans, then typed values."""
    flags = tuple(booleans)
    packed = bytearray((len(flags) + 7) // 8)
    for position, flag in enumerate(flags):
        if flag:
            packed[position // 8] |= 0x80 >> position % 8
    typed = b"".join(bytes((kind,)) + (len(value) + 5).to_bytes(4, "big") + value for kind, value in values)
    return bytes((len(flags),)) + bytes(packed) + typed
