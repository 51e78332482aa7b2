"""`lbg spark` and the engines of `lbg validate`: what is said before Spark starts, and where it cannot."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
import typer
from typer.testing import CliRunner, Result

from lbg_runtime.cli.main import command_line
from lbg_runtime.cli.running_verdict import leaving_without_verdict
from lbg_runtime.model.errors import StreamFailed, UserError
from lbg_runtime.pipeline.spark import session, validation
from lbg_runtime.pipeline.spark import stream as spark_stream
from lbg_runtime.pipeline.spark.checkpoint import sole_stream
from lbg_runtime.pipeline.spark.stream_job import StreamJob, StreamProgress
from tests.pipeline.landing.landed import LogOnDisk
from tests.validator.history import story

app = command_line()

NO_JAVA = {"LBG_JAVA_HOME": "/nothing"}


def lbg(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], env=environment)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    story().write(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    LogOnDisk(tmp_path / "log").close()
    return tmp_path / "log"


def stream(
    landing: Path,
    *more: object,
    group: str = "orders",
    to: str = "delta:lake",
    checkpoint: str = "checkpoint",
    **environment: str,
) -> Result:
    return lbg(
        "spark",
        "stream",
        group,
        "--dir",
        landing,
        "--to",
        to,
        "--checkpoint",
        landing / checkpoint,
        *more,
        **environment,
    )


def test_the_doctor_tells_programs_too() -> None:
    report = orjson.loads(lbg("spark", "doctor", "--json").stdout)
    assert report["runs"] is True
    assert {finding["what"].partition(" ")[0] for finding in report["findings"]} >= {"pyspark", "java"}
    without = lbg("spark", "doctor", "--json", **NO_JAVA)
    assert without.exit_code == 3
    assert orjson.loads(without.stdout)["remedies"] == ["set it to the home of a Java 17 or newer, or unset it"]


def test_a_stream_without_java_leaves_with_3_and_one_line(landing: Path) -> None:
    done = stream(landing, **NO_JAVA)
    assert done.exit_code == 3
    assert done.stderr.count("\n") == 1
    assert "LBG_JAVA_HOME: /nothing/bin/java cannot be run" in done.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"group": "bills"}, "option group: 'bills'; expected orders"),
        ({"to": "lake"}, "--to: 'lake'; expected parquet:DIR or delta:DIR"),
        ({"to": "iceberg:lake"}, "--to: 'iceberg:lake'"),
    ],
)
def test_a_wrong_stream_is_refused_before_spark_starts(landing: Path, given: dict[str, str], expected: str) -> None:
    done = stream(landing, **given)
    assert isinstance(done.exception, UserError)
    assert expected in str(done.exception)


@pytest.mark.parametrize("memory", ["abc", "2", "512mb", "1.5g", "0g", ""])
def test_a_limit_of_memory_that_no_jvm_takes_is_refused_before_one_starts(landing: Path, memory: str) -> None:
    done = stream(landing, "--driver-memory", memory)
    assert str(done.exception) == f"--driver-memory: {memory!r}; expected a number and k, m, g or t, such as 2g"


@pytest.mark.parametrize("below", ["", "/lake"])
def test_a_file_where_a_folder_has_to_be_is_refused_before_spark_starts(landing: Path, below: str) -> None:
    file = landing.parent / "file"
    file.touch()
    for given in ({"to": f"parquet:{file}{below}"}, {"to": f"delta:{file}{below}"}, {"checkpoint": f"{file}{below}"}):
        done = stream(landing, **given)
        assert isinstance(done.exception, UserError)
        assert f"{file} is no folder" in str(done.exception)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_lake_in_the_folder_of_its_checkpoint_is_refused_before_spark_starts(landing: Path, kind: str) -> None:
    done = stream(landing, to=f"{kind}:{landing}/checkpoint")
    assert isinstance(done.exception, UserError)
    assert "which is the folder of --checkpoint too" in str(done.exception)


def test_a_second_stream_on_a_checkpoint_is_refused_before_spark_starts(landing: Path) -> None:
    checkpoint = landing.parent / "checkpoint"
    with sole_stream(checkpoint):
        done = stream(landing, checkpoint=str(checkpoint))
    assert isinstance(done.exception, UserError)
    assert f"{checkpoint}, on which another stream runs" in str(done.exception)
    with sole_stream(checkpoint):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stream_that_is_to_end_while_spark_starts_ends_with_0(
    landing: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    @contextmanager
    def starting(*_: object, **__: object) -> Iterator[None]:
        signal.raise_signal(number)
        yield

    def run(*_: object, stopped: Callable[[], bool], **__: object) -> StreamProgress:
        assert stopped()
        return StreamProgress(-1, 0, None)

    monkeypatch.setattr(session, "spark_session", starting)
    monkeypatch.setattr(spark_stream, "run_stream", run)
    done = stream(landing)
    assert (done.exit_code, done.stdout) == (0, "0 rows written, no batch was finished\n")


@pytest.mark.parametrize(("given", "skips"), [([], False), (["--skip-pruned"], True)])
def test_a_stream_skips_what_was_pruned_only_if_it_is_told_to(
    landing: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], skips: bool
) -> None:
    jobs: list[StreamJob] = []

    def run(_: object, job: StreamJob, **__: object) -> StreamProgress:
        jobs.append(job)
        return StreamProgress(0, 0, 0)

    monkeypatch.setattr(session, "spark_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(spark_stream, "run_stream", run)
    assert stream(landing, *given).exit_code == 0
    assert [job.skips_pruned for job in jobs] == [skips]


def test_a_verdict_so_far_whose_query_fails_is_unknown_and_not_invalid(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as raised, leaving_without_verdict():
        raise StreamFailed("checkpoint", "no room")
    assert raised.value.exit_code == 3
    assert capsys.readouterr().err == "lbg: the stream to checkpoint failed: no room\n"


def test_a_run_is_laid_out_and_judged_again_from_there(run: Path, tmp_path: Path) -> None:
    first = lbg("validate", run, "--json")
    laid = lbg("validate", run, "--json", "--layout", tmp_path / "laid")
    again = lbg("validate", tmp_path / "laid", "--json", "--engine", "local")
    verdicts = [{**orjson.loads(each.stdout), "witnesses": None} for each in (first, laid, again)]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert first.exit_code == laid.exit_code == again.exit_code
    twice = lbg("validate", tmp_path / "laid", "--layout", tmp_path / "other")
    assert "which is laid out" in str(twice.exception)


def test_a_wish_for_spark_is_not_met_by_something_else(run: Path) -> None:
    done = lbg("validate", run, "--engine", "spark", **NO_JAVA)
    assert (done.exit_code, done.stdout) == (3, "")


def test_a_demo_that_spark_is_to_judge_says_before_it_plays_that_there_is_none() -> None:
    done = lbg("demo", "--engine", "spark", **NO_JAVA)
    assert done.exit_code == 3
    assert done.stderr.count("\n") == 1
    assert "LBG_JAVA_HOME: /nothing/bin/java cannot be run" in done.stderr


def test_a_large_run_without_spark_is_judged_here(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = orjson.loads(lbg("validate", run, "--json").stdout)["verdict"]
    monkeypatch.setattr("lbg_runtime.cli.validate.SPARK_RECORDS", 1)
    monkeypatch.setattr("lbg_runtime.cli.validate.SPARK_CORES", 1)
    done = lbg("validate", run, "--json", **NO_JAVA)
    assert "without Spark" in done.stderr
    assert orjson.loads(done.stdout)["verdict"] == expected


def test_spark_that_dies_while_it_judges_is_no_traceback(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise ConnectionRefusedError(111, "refused")

    @contextmanager
    def dying(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(range=die)

    expected = orjson.loads(lbg("validate", run, "--json").stdout)["verdict"]
    monkeypatch.setattr(session, "spark_session", dying)
    done = lbg("validate", run, "--engine", "spark")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "the JVM of Spark does not answer any more" in done.stderr
    monkeypatch.setattr("lbg_runtime.cli.validate.SPARK_RECORDS", 1)
    monkeypatch.setattr("lbg_runtime.cli.validate.SPARK_CORES", 1)
    done = lbg("validate", run, "--json")
    assert "without Spark, as Spark failed" in done.stderr
    assert orjson.loads(done.stdout)["verdict"] == expected


def test_what_only_tasks_find_wrong_is_the_users_mistake_or_judged_here(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where executors do not share the folder; with `auto` it is judged in this process."""

    def find_nothing(*_: object) -> None:
        raise UserError("/data/run", "No such file or directory", "a readable record file")

    expected = orjson.loads(lbg("validate", run, "--json").stdout)["verdict"]
    monkeypatch.setattr(session, "spark_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(validation, "run_tasks", find_nothing)
    done = lbg("validate", run, "--engine", "spark")
    assert isinstance(done.exception, UserError)
    monkeypatch.setattr("lbg_runtime.cli.validate.SPARK_RECORDS", 1)
    monkeypatch.setattr("lbg_runtime.cli.validate.SPARK_CORES", 1)
    done = lbg("validate", run, "--json")
    assert "without Spark, as /data/run: No such file or directory" in done.stderr
    assert orjson.loads(done.stdout)["verdict"] == expected
