import pytest

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import UserError


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:9280", "127.0.0.1", 9280, True),
        ("127.9.9.9:0", "127.9.9.9", 0, True),
        ("[::1]:65535", "::1", 65535, True),
        ("localhost:1", "localhost", 1, True),
        ("0.0.0.0:1", "0.0.0.0", 1, False),  # noqa: S104 - read, and not listened on
        ("[::]:1", "::", 1, False),
        ("localhost.example:1", "localhost.example", 1, False),
        ("127.1:1", "127.1", 1, False),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int, is_loopback: bool) -> None:
    address = ListenAddress.parse(text)
    assert (address.host, address.port, address.is_loopback, str(address)) == (host, port, is_loopback, text)


@pytest.mark.parametrize(
    "text",
    ["", ":", "9280", "127.0.0.1", ":9280", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "::1:80", "[::1]", "[]:80",
     "[::1:80", "::1]:80", "[127.0.0.1]:80", "a b:80", "http://a:80", "user@a:80", "127.0.0.1:-1", "127.0.0.1:٣",
     f"a:{'0' * 99}", "a\n:80", "ü..b:80", f"{'ü' * 63}:80", ".a:80"],
)  # fmt: skip
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT with a port from 0 to 65535"):
        ListenAddress.parse(text)
