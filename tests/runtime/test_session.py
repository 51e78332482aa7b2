"""The session that the settings ask for."""

import pytest

from lbg_runtime.model.errors import ConfigError
from lbg_runtime.runtime.session import embedded_address


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("tcp://127.0.0.1:0", ("127.0.0.1", 0)),
        ("127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("tcp://localhost", ("localhost", 55555)),
    ],
)
def test_an_embedded_broker_listens_where_the_host_says(host, address):
    assert embedded_address(host) == address


@pytest.mark.parametrize("host", ["tcps://127.0.0.1:1", "tcp://a:b", "tcp://a:99999", "ws://a:1"])
def test_what_it_cannot_listen_on_is_one_line(host):
    with pytest.raises(ConfigError, match=r"connection\.host: .* as transport is embedded"):
        embedded_address(host)
