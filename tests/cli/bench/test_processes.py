"""What is told of processes of a bench that end, or hang."""

import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryFile

import pytest

from lbg_runtime.cli.bench import processes
from lbg_runtime.cli.bench.processes import BenchFailed, ask, end_of, hear, run_arm, run_broker
from tests.patience import PATIENCE_S
from tests.processes import running

pytestmark = pytest.mark.real_time


def saying(code: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    return running([sys.executable, "-uc", code], stdin=PIPE, stdout=PIPE)


def test_what_is_asked_is_answered() -> None:
    with saying("print('{}')\nfor line in iter(input, ''): print('{\"you\": \"' + line + '\"}')") as process:
        assert hear("it", process) == {}
        assert ask("it", process, "a") == {"you": "a"}


def test_one_that_hangs_does_not_hang_the_bench() -> None:
    silent = saying("import time; time.sleep(100)")
    with silent as process, pytest.raises(BenchFailed, match=r"the broker: it said nothing for 0\.1 s"):
        hear("the broker", process, 0.1)


def test_one_that_ends_instead_of_answering_is_told() -> None:
    with saying("input()") as process, pytest.raises(BenchFailed, match="a member: it ended"):
        ask("a member", process)


def test_one_that_has_ended_before_it_is_asked_is_told() -> None:
    with saying("") as process:
        process.wait(PATIENCE_S)
        with pytest.raises(BenchFailed, match="a member: it ended"):
            ask("a member", process)
        # What could not be written is still there, and must not be met by the end of the context.
        process.communicate()


def test_a_broker_with_a_store_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with run_broker("lbg_runtime.cli.bench.arms.measured_broker", "stored", 1) as broker:
        assert broker.ask()["depth"] == 0
        assert list(tmp_path.rglob("store"))
    assert list(tmp_path.iterdir()) == []


def test_an_arm_that_fails_is_told_with_its_last_line() -> None:
    with (
        pytest.raises(BenchFailed, match=r"nonsense: .*there is no arm 'nonsense'"),
        run_broker("lbg_runtime.cli.bench.arms.measured_broker", "bare", 0) as broker,
    ):
        run_arm("nonsense", "lbg_runtime.cli.bench.arms.broker", broker.host)


def test_an_arm_that_hangs_is_said_to_and_its_log_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 0.1)
    with TemporaryFile() as log, saying("import time; time.sleep(100)") as process:
        log.write(b"connected\n")
        with pytest.raises(BenchFailed, match=r"callback: it did not end within 0\.1 s"):
            end_of("callback", process, log)
    assert capsys.readouterr().err == "connected\n"
