"""`lbg bench pipeline`: the part about landing, in small."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lbg_runtime.cli.bench import pipeline, pipeline_landing, pipeline_spark
from lbg_runtime.cli.bench.processes import BenchFailed
from lbg_runtime.cli.main import command_line
from lbg_runtime.model.errors import UserError

app = command_line()


def test_the_landing_part_counts_what_landed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_landing, "MESSAGES", 2_000)
    found = pipeline_landing.landing(tmp_path, 1)
    assert found.wrong == []
    assert {row.arm for row in found.rows} == {"handlers", "rows", "bytes"}
    assert all(value > 0 for row in found.rows for value in row.values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [0, 1])
def test_the_two_logs_stand_alike_in_a_round_and_the_first_is_the_other_one_in_the_next(number: int) -> None:
    order = pipeline_spark.turns(number)
    logs = [arm for arm in order if arm.endswith("queues")]
    assert logs == logs[::-1]
    assert set(logs) == {"4 queues", "32 queues"}
    assert set(order) - set(logs) == {"parquet", "prefetch"}
    assert order[0] != pipeline_spark.turns(number + 1)[0]


@pytest.mark.real_time
def test_a_command_that_dies_without_a_word_is_named_with_its_exit_code() -> None:
    with pytest.raises(BenchFailed, match="local: it left with exit code 3 and printed nothing"):
        pipeline_spark.timed("local", [sys.executable, "-c", "raise SystemExit(3)"])
    seconds, peak_mb, said = pipeline_spark.timed("local", [sys.executable, "-c", "print('{}')"])
    assert (seconds > 0, peak_mb > 0, said) == (True, True, {})


def test_a_part_that_is_none_is_the_users_mistake() -> None:
    ended = CliRunner().invoke(app, ["bench", "pipeline", "--only", "swimming", "--json"])
    assert isinstance(ended.exception, UserError)
    assert "--only: swimming; expected one of landing" in str(ended.exception)
    assert ended.stdout == ""


def test_what_a_part_needs_is_looked_for_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda _: None)
    monkeypatch.setattr(pipeline, "_parts", lambda: dict.fromkeys(("landing", "source", "validator")))
    without = CliRunner().invoke(app, ["bench", "pipeline"])
    assert isinstance(without.exception, UserError)
    assert "pip install 'lbg-runtime[bench]'" in str(without.exception)

    def refuse() -> None:
        raise SystemExit(3)

    monkeypatch.setattr(pipeline, "require_spark", refuse)
    assert CliRunner().invoke(app, ["bench", "pipeline", "--only", "source"]).exit_code == 3
