import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.client_ctrl import ClientCtrl, ClientItem, ClientKind, Scheme, read_login
from lbg_runtime.smf.extended import ExtendedKind, decode_extended
from lbg_runtime.smf.frame import Frame, Parameter, ParameterKind, Protocol

# As the official client sent them, with an issuer, an access token and an OpenID token.
CAPTURED = b"\xe0/\x00\x08iss\x00`1\x00\x0ctok-abc\x00`0\x00\nidtok\x00"


def test_values_are_found_by_their_kind() -> None:
    assert decode_extended(CAPTURED) == {
        ExtendedKind.OAUTH_ISSUER: b"iss\0",
        ExtendedKind.ACCESS_TOKEN: b"tok-abc\0",
        ExtendedKind.OPENID_TOKEN: b"idtok\0",
    }
    assert decode_extended(bytes.fromhex("302e00000001 0001 1002ff 500306aabbcc")) == {
        0x2E: b"\0\0\0\1",
        1: b"",
        2: b"\xff",
        3: b"\xaa\xbb\xcc",
    }


@pytest.mark.parametrize("stream", ["00", "60", "6031", "603100", "60310009", "60310003", "7031000005", "302e0000"])
def test_impossible_lengths_are_refused(stream: str) -> None:
    with pytest.raises(ProtocolError, match="extended parameter"):
        decode_extended(bytes.fromhex(stream))


@given(st.binary(max_size=64))
def test_any_bytes_are_values_or_a_protocol_error(stream: bytes) -> None:
    try:
        values = decode_extended(stream)
    except ProtocolError:
        return
    assert sum(map(len, values.values())) <= len(stream)


def test_a_login_with_a_token_shows_it_to_nobody_else() -> None:
    frame = Frame(Protocol.CLIENT_CTRL, (Parameter(ParameterKind.EXTENDED, CAPTURED),))
    login = read_login(frame, ClientCtrl(0, (ClientItem(ClientKind.SCHEME, b"\x0a", 1),)))
    assert (login.scheme, login.access_token) == (Scheme.OAUTH, "tok-abc")
    assert "tok-abc" not in repr(login)
