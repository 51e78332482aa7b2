"""What commands are given: read, or refused with the option's name."""

import pytest

from lbg_runtime.cli.options import duration_ms, duration_s, insist_on_finite, listen_address, print_json, size_bytes
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import UserError


def test_what_is_written_as_it_should_be_is_read() -> None:
    assert duration_ms("--keep", "24h") == 86_400_000
    assert [duration_s("--duration", text) for text in ("5", "0.5", "5s", "2m", "1ms")] == [5, 0.5, 5, 120, 0.001]
    assert size_bytes("--replay-log", "1.5M") == 3 << 19
    assert listen_address("--smf", "127.0.0.1:0") == ListenAddress("127.0.0.1", 0)
    assert listen_address("--smf", "[::1]:55555") == ListenAddress("::1", 55555)


def test_what_is_not_is_refused_with_the_options_name() -> None:
    with pytest.raises(UserError, match=r"^--keep: '1d'; expected a duration such as"):
        duration_ms("--keep", "1d")
    for text in ("inf", "nan", "0", "0s", "-1"):
        with pytest.raises(UserError, match=rf"^--duration: '{text}'; expected a duration of 1ms or more"):
            duration_s("--duration", text)
    with pytest.raises(UserError, match=r"^--duration: '1d'; expected a duration such as"):
        duration_s("--duration", "1d")
    with pytest.raises(UserError, match=r"^--replay-log: '100'; expected a size such as 500M or 20G"):
        size_bytes("--replay-log", "100")


@pytest.mark.parametrize("text", ["55555", "127.0.0.1:" + "9" * 5_000, "[::1:5", "::1:5", "a b@c:1", "a:65536"])
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(UserError, match=r"^--smf: .*; expected HOST:PORT with a port from 0 to 65535"):
        listen_address("--smf", text)


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_what_is_endless_or_no_number_is_refused(number: float) -> None:
    with pytest.raises(UserError, match=rf"^--rate: {number}; expected a finite number"):
        insist_on_finite("--rate", number)


@pytest.mark.parametrize("number", [None, 0.001, 1e300])
def test_every_other_number_is_taken(number: float | None) -> None:
    insist_on_finite("--rate", number)


def test_an_object_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "ü", "lines": ["a\nb"]})
    assert capsys.readouterr().out == '{"name":"ü","lines":["a\\nb"]}\n'
