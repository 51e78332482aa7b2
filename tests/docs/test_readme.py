"""README.md: its ten lines handle what its commands publish; what takes minutes is a command with those options.

The long ones are run by tests of their own: tests/end_to_end/test_demo.py, tests/cli/bench/.
"""

import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lbg_runtime.cli.main import command_line
from lbg_runtime.cli.reference.commands import _commands
from tests.docs.pages import ROOT, blocks, indented_lines
from tests.docs.test_start import Terminal
from tests.patience import PATIENCE_S

app = command_line()

PAGE = ROOT / "README.md"
LONG = ("lbg demo", "lbg bench")


def lbg_lines() -> list[str]:
    return [line.removeprefix(".venv/bin/") for line in indented_lines(PAGE) if line.startswith(".venv/bin/lbg ")]


@pytest.mark.real_time
@pytest.mark.end_to_end
@pytest.mark.timeout(300)
def test_the_ten_lines_handle_what_the_commands_publish(tmp_path: Path) -> None:
    lines = [line for line in lbg_lines() if not line.startswith(LONG)]
    assert [re.findall(r"lbg (\w+)", line)[0] for line in lines] == ["check", "run", "publish"]
    ten_lines = blocks(PAGE, "python")[0]
    assert len([line for line in ten_lines.splitlines() if line.strip()]) <= 10
    with ExitStack() as ending:
        terminal = Terminal(tmp_path, ending)
        (tmp_path / "handlers").mkdir()
        # A package, or that of the repository would be found instead.
        (tmp_path / "handlers" / "__init__.py").touch()
        (tmp_path / "handlers" / "orders.py").write_text(ten_lines)
        (tmp_path / "config.yaml").write_text(terminal.here((ROOT / "config.yaml").read_text()))
        for line in lines[:2]:
            terminal.type_in(line)
        # The member has the broker inside; who publishes finds it there.
        terminal.type_in("export LBG_TRANSPORT=solace")
        # So many, and not so long: a busy machine publishes fewer in a second.
        terminal.type_in(re.sub(r"--duration \d+s", "--count 90", lines[2]))
        terminal.windows[0].until('{"key":', times=90)
        terminal.close()


@pytest.mark.parametrize("line", [line for line in lbg_lines() if line.startswith(LONG)])
def test_the_long_commands_are_commands(line: str) -> None:
    answer = CliRunner().invoke(app, [*line.split()[1:], "--help"])
    assert answer.exit_code == 0, answer.output


def test_the_two_commands_set_themselves_up() -> None:
    assert [line for line in indented_lines(PAGE) if line.startswith("make ")] == ["make demo", "make test"]
    make = shutil.which("make")
    assert make is not None
    for target in ("demo", "test"):
        done = subprocess.run(
            [make, "-n", target], cwd=ROOT, check=True, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert ".venv/bin/" in done.stdout


def test_what_older_sources_in_c_became_goes_before_it_is_compiled_anew() -> None:
    make = shutil.which("make")
    assert make is not None
    for target in ("demo", "unit"):
        done = subprocess.run(
            [make, "-n", "-B", target], cwd=ROOT, check=True, capture_output=True, text=True, timeout=PATIENCE_S
        )
        before, _, after = done.stdout.partition("rm -f lbg_runtime/transport/solace/fast/*.so")
        assert "install" not in before
        assert "install -c constraints.txt" in after


def test_the_table_of_commands_has_all_of_them() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `lbg ")]
    told: set[str] = set()
    for row in rows:
        first, *others = re.findall(r"`([a-z ]+?)(?: [A-Z-].*?)?`", row)
        # Those after the first are named by their last word.
        told |= {first, *(f"{first.rpartition(' ')[0]} {name}" for name in others)}
    known = {path for path, _ in _commands("lbg", app)}
    assert {one for one in known if not one.startswith("lbg bench ")} | {"lbg bench"} == told
