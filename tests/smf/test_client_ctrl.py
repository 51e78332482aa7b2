import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.client_ctrl import (
    ClientCtrl,
    ClientItem,
    ClientKind,
    LoginRequest,
    decode_client_ctrl,
    encode_capabilities,
    encode_client_ctrl,
    read_login,
)
from lbg_runtime.smf.frame import Frame, Parameter, ParameterKind, Protocol

items = st.builds(ClientItem, st.integers(0, 127), st.binary(max_size=20), st.integers(0, 1))
bodies = st.builds(ClientCtrl, st.integers(0, 255), st.lists(items, max_size=5).map(tuple), st.integers(0, 1))


@given(body=bodies)
def test_a_login_body_is_read_as_it_was_written(body: ClientCtrl) -> None:
    assert decode_client_ctrl(encode_client_ctrl(body)) == body


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_login_body_or_a_protocol_error(data: bytes) -> None:
    for body in (data, b"\x81\0" + (6 + len(data)).to_bytes(4, "big") + data):
        try:
            decode_client_ctrl(body)
        except ProtocolError as error:
            assert error.what  # noqa: PT017  # which error it is depends on the bytes


def credentials(username: bytes, password: bytes) -> Frame:
    return Frame(
        Protocol.CLIENT_CTRL,
        (Parameter(ParameterKind.USERNAME, username), Parameter(ParameterKind.PASSWORD, password)),
    )


def test_a_login_says_who_comes() -> None:
    frame = credentials(b"dXNlcjE=", b"cHcx")
    body = ClientCtrl(
        0,
        (
            ClientItem(ClientKind.CLIENT_NAME, b"name\0"),
            ClientItem(ClientKind.VPN, b"vpn\0", 1),
            ClientItem(ClientKind.KEEP_ALIVE, b"\0\0\0\3"),
        ),
    )
    assert read_login(frame, body) == LoginRequest("user1", "pw1", "name", "vpn", 3)


def test_a_login_says_what_the_client_is_whatever_its_machine_calls_itself() -> None:
    body = ClientCtrl(
        0,
        (
            ClientItem(ClientKind.SOFTWARE_VERSION, b"1.11.0\0"),
            ClientItem(ClientKind.SOFTWARE_DATE, b"today\0"),
            ClientItem(ClientKind.PLATFORM, b"Linux"),
            ClientItem(ClientKind.USER_ID, b"J\xf6rg\0"),
            ClientItem(ClientKind.DESCRIPTION, b"\0"),
        ),
    )
    request = read_login(Frame(Protocol.CLIENT_CTRL), body)
    said = (request.software_version, request.software_date, request.platform, request.user, request.description)
    assert said == ("1.11.0", "today", "Linux", "J\N{REPLACEMENT CHARACTER}rg", "")


def test_a_login_may_say_nothing() -> None:
    assert read_login(Frame(Protocol.CLIENT_CTRL), ClientCtrl(0)) == LoginRequest("", "", "", "", 0)


@pytest.mark.parametrize("username", [b"%%%", b"abc", base64.b64encode(b"\xff")])
def test_a_username_that_is_no_text_is_refused(username: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_login(credentials(username, b""), ClientCtrl(0))


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (ClientItem(ClientKind.KEEP_ALIVE, b"\xff" * 200), "keep_alive of 200 bytes, not 4"),
        (ClientItem(ClientKind.KEEP_ALIVE, b""), "keep_alive of 0 bytes, not 4"),
        (ClientItem(ClientKind.SCHEME, b"\0\1"), "scheme of 2 bytes, not 1"),
    ],
)
def test_a_number_of_another_size_is_refused(item: ClientItem, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        read_login(Frame(Protocol.CLIENT_CTRL), ClientCtrl(0, (item,)))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("8100", "of 2 bytes"),
        ("820000000006", "version 2"),
        ("810000000007", r"7 bytes long and is 6 \(at byte 2\)"),
        ("810001000006", "16777222 bytes long and is 6"),
        ("81000000000705", "impossible length"),
        ("81000000000a05000000", "impossible length"),
        ("81000000000b0501000005", "impossible length"),
        ("81000000000b0500000004", "impossible length"),
        ("81000000000b0500000006", "impossible length"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body: str, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode_client_ctrl(bytes.fromhex(body))


def test_capabilities_are_bits_and_typed_values() -> None:
    assert encode_capabilities((True, False, True), ()).hex() == "03a0"
    assert encode_capabilities((True,) * 9, ((1, b"\7"),)).hex() == "09ff80010000000607"
    assert encode_capabilities((), ((4, b"\1\3"), (5, b"\1"))).hex() == "0004000000070103050000000601"
