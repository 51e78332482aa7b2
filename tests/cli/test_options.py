"""What commands are given: read, or refused with the option's name."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lbg_runtime.cli.main import command_line
from lbg_runtime.cli.options import complain, duration_ms, insist_on_finite, listen_address, print_json, size_bytes
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import UserError

app = command_line()


def test_what_is_written_as_it_should_be_is_read() -> None:
    assert [duration_ms("--retention", text) for text in ("24h", "0.5s", "1ms", "0s")] == [86_400_000, 500, 1, 0]
    assert [duration_ms("--duration", text, 1_000, 60_000) for text in ("1s", "1m")] == [1_000, 60_000]
    assert size_bytes("--replay-log", "1.5M") == 3 << 19
    assert listen_address("--smf", "127.0.0.1:0") == ListenAddress("127.0.0.1", 0)
    assert listen_address("--smf", "[::1]:55555") == ListenAddress("::1", 55555)


def test_what_is_not_is_refused_with_the_options_name() -> None:
    for text in ("1d", "5", "0.5", "-1s", "inf", ""):
        with pytest.raises(UserError, match=rf"^--retention: '{text}'; expected a duration such as 500ms, 30s or 2m$"):
            duration_ms("--retention", text)
    with pytest.raises(UserError, match=r"^--duration: '0s'; expected 1ms or more$"):
        duration_ms("--duration", "0s", least_ms=1)
    for text in ("999ms", "61s"):
        with pytest.raises(UserError, match=rf"^--duration: '{text}'; expected 1s to 1m$"):
            duration_ms("--duration", text, 1_000, 60_000)
    with pytest.raises(UserError, match=r"^--replay-log: '100'; expected a size such as 500M or 20G"):
        size_bytes("--replay-log", "100")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("publish --topic t", "--duration"),
        ("compare", "--duration"),
        ("compare", "--work"),
        ("landing prune nowhere", "--retention"),
        ("land --dir nowhere", "--retention"),
        ("spark stream g --dir d --to parquet:d --checkpoint c", "--trigger"),
        ("validate nowhere", "--ack-window"),
        ("validate nowhere --live", "--for"),
        ("bench moves", "--steady"),
        ("bench handback", "--steady"),
        ("bench takeover", "--steady"),
        ("bench sidecar", "--duration"),
        ("bench soak", "--duration"),
    ],
)
def test_a_bare_number_is_no_length_of_time(command: str, option: str) -> None:
    error = CliRunner().invoke(app, [*command.split(), option, "5"]).exception
    assert str(error) == f"{option}: '5'; expected a duration such as 500ms, 30s or 2m"


@pytest.mark.parametrize(
    "command",
    [
        "check --config",
        "validate",
        "validate --live --for 1s",
        "advise",
        "group moves",
        "landing ls",
        "replay --to-topic t",
        "land --retention 0s --dir",
        "publish --config nowhere --topic t --ledger",
        "broker --store",
    ],
)
def test_what_may_not_be_read_is_told_by_who_reads_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, and not by typer with a page of usage; and a ledger's folder need not be readable."""
    known = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path and known(path, mode))
    monkeypatch.setattr(os, "listdir", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    told = CliRunner().invoke(app, [*command.split(), str(tmp_path)])
    assert "Usage: " not in told.output


def test_a_member_that_lands_keeps_rows_for_a_second_at_least() -> None:
    error = CliRunner().invoke(app, ["land", "--dir", "nowhere", "--retention", "0s"]).exception
    assert str(error) == "--retention: '0s'; expected 1s or more"


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


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_object_is_one_where_the_output_is_not_utf_8_too(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """What its encoding had not was there by Python's escapes, which no JSON has, and the rest in another encoding."""
    told = {"name": "ü€", "path": os.fsdecode(b"x\xff")}
    for each in (told, {"name": "ü€"}):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, "backslashreplace", write_through=True))
        print_json(each)
        assert json.loads(written.getvalue().decode("ascii")) == each


def test_an_object_with_a_path_that_is_no_text_is_printed_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"where": os.fsdecode(b"x\xff.yaml"), "ok": False}
    print_json(told)
    assert json.loads(capsys.readouterr().out) == told


def test_a_complaint_is_one_line_whatever_others_chose_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    complain(UserError("queue a\nb", "\x1b[2J", "none"))
    assert capsys.readouterr() == ("", "lbg: queue a\\nb: \\x1b[2J; expected none\n")
