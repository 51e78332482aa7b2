"""`lbg land`: what cannot be is said in one line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lbg_runtime.cli.main import command_line
from lbg_runtime.cli.sizes import bytes_text, parse_bytes
from lbg_runtime.model.errors import UserError
from tests.pipeline.landing.landed import LogOnDisk, id_of, rows

app = command_line()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--quota", "20"), "--quota: '20'; expected a size such as 500M or 20G"),
        (("--quota", "0G"), "--quota: '0G'"),
        (("--quota", "8388608T"), "--quota: '8388608T'; expected a size such as 500M or 20G"),
        (("--retention", "1d"), "--retention: '1d'; expected a duration such as"),
        (("--config", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_options_that_cannot_be_are_the_users_mistake(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    ended = CliRunner().invoke(app, ["land", "--dir", str(tmp_path / "log"), *options])
    assert isinstance(ended.exception, UserError)
    assert problem in str(ended.exception)


@pytest.mark.parametrize("command", ["run", "land"])
def test_a_status_port_where_nothing_has_one_is_the_users_mistake(tmp_path: Path, command: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("group: {name: o, hash_prefix: h, hash_count: 4, queue_count: 1}\nhandlers: [shop]\n")
    where = ("--dir", str(tmp_path / "log")) if command == "land" else ()
    ended = CliRunner().invoke(app, [command, "--config", str(config), "--status-port", "9000", *where])
    assert isinstance(ended.exception, UserError)
    assert str(ended.exception).startswith("--status-port: 9000, and no ops.status; expected ")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1K", 1024), ("500M", 500 << 20), ("1.5G", 3 << 29), ("2TB", 2 << 40), ("8388607T", (1 << 63) - (1 << 40))],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (3 << 40, "3.0 TB")])
def test_sizes_are_told_in_their_unit(size: int, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_id_with_a_key_that_looks_like_a_verdict_is_written_out(tmp_path: Path, options: tuple[str, ...]) -> None:
    log = LogOnDisk(tmp_path / "log")
    key = "a\nwhole: 9 rows\x1b[2J"
    log.lane().append(rows([id_of(key, 1), id_of(key, 1)]))
    log.close()
    ended = CliRunner().invoke(app, ["landing", "verify", str(log.root), *options])
    assert ended.exit_code == 0
    assert all(line.isprintable() for line in ended.output.split("\n"))
    assert "\nwhole: 9" not in ended.output
