"""The broker's half of a login: who the client is and what it can do."""

from functools import cache
from zlib import crc32

from lbg_runtime.broker.engine.accounts import Accounts, ClientProfile
from lbg_runtime.broker.engine.settings import LARGEST_MESSAGE_BYTES
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.smf.client_ctrl import (
    LOGIN,
    ClientCtrl,
    ClientItem,
    ClientKind,
    LoginRequest,
    Scheme,
    encode_capabilities,
    encode_client_ctrl,
)
from lbg_runtime.smf.text import close_text

ROUTER = "lbg"
VIRTUAL_ROUTER = f"v:{ROUTER}"

# 27 booleans, first bit first. Left out: compression (clients that ask for it get it anyway), subscriptions on behalf
# of others, and not to send a client what it publishes itself (one that asks for that would believe that it had it).
_CAPABILITY_COUNT = 0x1B
_CAPABILITY_BITS = bytes((0xBF, 0xED, 0xFF, 0xE0))
_RECEIVE, _TEMPORARY_ENDPOINTS, _PUBLISH, _ENDPOINT_MANAGEMENT, _TRANSACTIONS = 2, 3, 4, 6, 13
"""Numbers of the booleans that a client profile can take away."""

_LIMITS = (
    (0, (10_000).to_bytes(4, "big")),  # port speed
    (1, b"\0"),  # port type
    (2, LARGEST_MESSAGE_BYTES.to_bytes(4, "big")),  # largest message of a queue
    (3, LARGEST_MESSAGE_BYTES.to_bytes(4, "big")),  # largest direct message
)
# Versions, from and to: 4 is assured control, 5 distributed transactions.
_EXTENDED_CAPABILITIES = encode_capabilities((), ((4, b"\x01\x03"), (5, b"\x01\x01")))


def inbox_of(client_name: str) -> str:
    """The topic prefix of a client's own inboxes; the same after a reconnect, so that late replies arrive."""
    return f"#P2P/{VIRTUAL_ROUTER}/{crc32(client_name.encode()):08x}/{client_name}"


def who_is(request: LoginRequest, accounts: Accounts, name_on_certificate: str | None) -> tuple[str, str | None]:
    """The username, and the password that is still to be checked, if any; 401 `Unauthorized`.

    `name_on_certificate` is that of the verified certificate that the peer has presented.
    """
    if request.scheme == Scheme.BASIC:
        return request.username, request.password
    username: str | None = None
    if request.scheme == Scheme.CLIENT_CERTIFICATE and accounts.takes_certificates:
        # Not the name that the client gives: anyone with a certificate could then be anybody.
        username = name_on_certificate
    elif request.scheme == Scheme.OAUTH:
        username = accounts.tokens.get(request.access_token)
    if not username:
        raise BrokerRefusal(401, "Unauthorized")
    return username, None


def login_body(request: LoginRequest, profile: ClientProfile) -> bytes:
    """The body that answers a successful login, with what the client's profile lets it do."""
    return encode_client_ctrl(
        ClientCtrl(
            LOGIN,
            (
                ClientItem(ClientKind.SOFTWARE_VERSION, close_text("10.8.1.0")),
                ClientItem(ClientKind.SOFTWARE_DATE, close_text("Jan 1 2025")),
                ClientItem(ClientKind.PLATFORM, close_text("lbg development broker")),
                ClientItem(ClientKind.CLIENT_NAME, close_text(request.client_name)),
                ClientItem(ClientKind.VPN, close_text(request.vpn)),
                ClientItem(ClientKind.INBOX, close_text(inbox_of(request.client_name))),
                ClientItem(ClientKind.VIRTUAL_ROUTER, close_text(VIRTUAL_ROUTER)),
                ClientItem(ClientKind.ROUTER, close_text(ROUTER)),
                ClientItem(ClientKind.CAPABILITIES, _capabilities(profile)),
                ClientItem(ClientKind.EXTENDED_CAPABILITIES, _EXTENDED_CAPABILITIES),
            ),
        )
    )


@cache
def _capabilities(profile: ClientProfile) -> bytes:
    # A client asks for nothing that it was not offered: if it may not publish, it opens no publisher flow.
    denied = {
        _RECEIVE: not profile.may_receive,
        _PUBLISH: not profile.may_send,
        _TEMPORARY_ENDPOINTS: not profile.may_create_queues,
        _ENDPOINT_MANAGEMENT: not profile.may_create_queues,
        _TRANSACTIONS: not profile.may_use_transactions,
    }
    booleans = (
        bool(_CAPABILITY_BITS[n // 8] & 0x80 >> n % 8) and not denied.get(n, False) for n in range(_CAPABILITY_COUNT)
    )
    return encode_capabilities(booleans, _LIMITS)


REFUSED_LOGIN_BODY = encode_client_ctrl(ClientCtrl(LOGIN))
