"""A flame graph is drawn, and who cannot have one is told so before anything is measured."""

import subprocess
import sys
from pathlib import Path

import pytest

from lbg_runtime.cli.bench import profile
from lbg_runtime.model.errors import UserError
from tests.processes import running

BUSY = "import sys\ndef busy_function():\n    while True: sum(range(1000))\nprint('on', flush=True)\nbusy_function()"


def test_without_a_file_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "_py_spy", lambda: None)
    profile.check(None)
    with profile.profiled(None, 0):
        pass


def test_without_py_spy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profile, "_py_spy", lambda: None)
    with pytest.raises(UserError, match="the extra `profile`"):
        profile.check(tmp_path / "picture.svg")


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no directory"):
        profile.check(tmp_path / "nowhere" / "picture.svg")


@pytest.mark.real_time
def test_a_process_that_is_not_there_is_told(tmp_path: Path) -> None:
    with running([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with pytest.raises(UserError, match="--profile"), profile.profiled(tmp_path / "picture.svg", ended.pid):
        pytest.fail("it must not come this far")


@pytest.mark.real_time
@pytest.mark.parametrize("ends_first", [False, True], ids=["it goes on", "it ends first"])
def test_a_flame_graph_shows_what_the_process_did(tmp_path: Path, ends_first: bool) -> None:
    picture = tmp_path / "picture.svg"
    with running([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with profile.profiled(picture, process.pid):
            burn()
            if ends_first:
                process.kill()
    assert "<svg" in picture.read_text()
    assert "busy_function" in picture.read_text()


def burn() -> None:
    """Long enough for some samples, by work and not by the clock."""
    for _ in range(400):
        sum(range(20_000))
