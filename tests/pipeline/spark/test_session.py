"""What of a session needs no JVM: who hears SIGINT, what it and its streams are told, how they start, fail and end.

More than 400 lines, as it has all that can be tried without the seconds in which a JVM starts.
"""

import logging
import os
import re
import signal
import socketserver
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lbg_runtime.cli.interrupt import interrupted_when_asked
from lbg_runtime.model.errors import SparkUnavailable, StreamFailed
from lbg_runtime.pipeline.spark import session, stream
from lbg_runtime.pipeline.spark.doctor import examine
from lbg_runtime.pipeline.spark.session import (
    _hush_end_of,
    _signals_held_back,
    close_spark,
    find_master,
    open_spark,
    spark_session,
)
from lbg_runtime.pipeline.spark.stream import read_landing, reason_of, run_stream
from lbg_runtime.pipeline.spark.stream_job import Lake, StreamJob
from lbg_runtime.pipeline.spark.validation import run_tasks

JOB = StreamJob(Path("/log"), "orders", Lake.DELTA, Path("/lake"), Path("/checkpoint"), True, 0, 250)


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def of_spark(*_: object) -> None:
    """The handler that Spark sets in the place of Python's."""


def test_an_interrupt_while_it_starts_is_heard_when_it_has_started() -> None:
    heard: list[str] = []
    signal.signal(signal.SIGINT, lambda *_: heard.append("interrupt"))
    with _signals_held_back():
        signal.raise_signal(signal.SIGINT)
        heard.append("started")
        signal.signal(signal.SIGINT, of_spark)
    assert heard == ["started", "interrupt"]


def test_pythons_own_handler_makes_room_for_that_of_spark() -> None:
    with _signals_held_back():
        signal.signal(signal.SIGINT, of_spark)
    assert signal.getsignal(signal.SIGINT) is of_spark


def test_pythons_own_handler_is_back_where_spark_set_none() -> None:
    with pytest.raises(KeyboardInterrupt), _signals_held_back():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_request_to_leave_that_comes_as_it_starts_is_heard_where_interrupts_are_ignored() -> None:
    """As in what a script starts in its background; it was taken for one of them, and lost."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupted_when_asked(), pytest.raises(KeyboardInterrupt), _signals_held_back():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def interrupted_call() -> None:
    """What py4j does when it is interrupted."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        logging.exception("KeyboardInterrupt while sending command.")
        raise


def test_an_interrupt_of_a_call_makes_no_other_call_within_it_and_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[object] = []

    def opened(*_: object, **__: object) -> object:
        with _signals_held_back():
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, of_spark)
        return "spark"

    monkeypatch.setattr(session, "open_spark", opened)
    monkeypatch.setattr(session, "close_spark", closed.append)
    monkeypatch.setattr(session, "_has_session", lambda: False)
    with pytest.raises(KeyboardInterrupt), spark_session("job"):
        interrupted_call()
    assert closed == ["spark"]
    assert caplog.records == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    logging.warning("others are heard")
    assert len(caplog.records) == 1


def test_a_session_whose_jvm_has_died_is_closed_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    process = SimpleNamespace(stdin=SimpleNamespace(close=lambda: done.append("closed")), wait=done.append)

    def refuse() -> None:
        raise ConnectionRefusedError

    def fail() -> None:
        raise Py4JNetworkError

    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process, shutdown=refuse))
    monkeypatch.setattr(SparkContext, "_jvm", object())
    monkeypatch.setattr(SparkSession, "_instantiatedSession", object())
    close_spark(SimpleNamespace(stop=fail))  # type: ignore[arg-type]  # all that it needs
    assert done[0] == "closed"
    assert len(done) == 2
    assert (SparkContext._gateway, SparkContext._jvm, SparkSession._instantiatedSession) == (None, None, None)


def test_a_jvm_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def wait(timeout_s: float) -> None:
        if "killed" not in done:
            raise subprocess.TimeoutExpired("java", timeout_s)
        done.append("gone")

    process = SimpleNamespace(stdin=SimpleNamespace(close=lambda: None), wait=wait, kill=lambda: done.append("killed"))
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process, shutdown=lambda: None))
    monkeypatch.setattr(SparkContext, "_jvm", object())
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    close_spark(SimpleNamespace(stop=lambda: None))  # type: ignore[arg-type]  # all that it needs
    assert done == ["killed", "gone"]
    assert (SparkContext._gateway, SparkContext._jvm) == (None, None)


def test_the_end_of_the_jvm_is_no_traceback_of_pysparks(capsys: pytest.CaptureFixture[str]) -> None:
    server = socketserver.BaseServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
    _hush_end_of(SimpleNamespace(_accumulatorServer=server))  # type: ignore[arg-type]  # all that it needs
    for error in (EOFError(), ValueError("something else")):
        try:
            raise error
        except (EOFError, ValueError):
            server.handle_error(b"", ("127.0.0.1", 1))
    shown = capsys.readouterr().err
    assert "EOFError" not in shown
    assert "ValueError: something else" in shown
    assert sys.exception() is None


def test_what_spark_refuses_to_start_with_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Py4JError(
            "An error occurred while calling None.X.\n: java.lang.BadError: 1m is too little\n\tat a.b(C.java:1)"
        )

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(SparkContext, "getOrCreate", fail)
    with pytest.raises(SparkUnavailable) as raised:
        open_spark("test")
    assert raised.value.missing.endswith(": java.lang.BadError: 1m is too little")


@pytest.mark.parametrize("given", [None, "/opt/ours/bin/python"], ids=["this-python", "theirs"])
def test_a_session_on_a_cluster_can_be_reached_from_it_and_asks_for_a_python_that_it_has(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    asked: dict[str, str] = {}
    # Without what a session of another test has left in this process.
    monkeypatch.setattr("pyspark.SparkConf", partial(SparkConf, loadDefaults=False))

    def fail(conf: SparkConf) -> None:
        asked.update(conf.getAll())
        raise Py4JError("enough")

    ours = {"LBG_SPARK_MASTER": "spark://master:7077", **({} if given is None else {"PYSPARK_PYTHON": given})}
    others = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    monkeypatch.setattr(os, "environ", others | ours)
    monkeypatch.setattr(SparkContext, "getOrCreate", fail)
    with pytest.raises(SparkUnavailable, match="with the master spark://master:7077: enough"):
        open_spark("test")
    assert asked["spark.master"] == "spark://master:7077"
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & asked.keys()
    assert "SPARK_LOCAL_IP" not in os.environ
    assert os.environ["PYSPARK_PYTHON"] == (given or sys.executable)


@pytest.mark.parametrize("master", ["foo", "spark://master", "master:7077", "local[x]"])
def test_a_variable_that_names_no_master_is_told_by_name_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "LBG_SPARK_MASTER": master})
    monkeypatch.setattr(session, "find_java", lambda: pytest.fail("a Java was looked for"))
    with pytest.raises(SparkUnavailable, match=re.escape(f"LBG_SPARK_MASTER is {master!r}")):
        open_spark("test")
    told = [finding for finding in examine({**os.environ, "JAVA_HOME": "/nothing"}) if finding.what == "master"]
    assert [(finding.fine, finding.needed) for finding in told] == [(False, True)]


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2, 3]", "local-cluster[2,1,1024]", "yarn", "spark://a:1,b:2", "k8s://https://a"],
)
def test_what_spark_takes_as_a_master_is_taken(master: str) -> None:
    assert find_master({"LBG_SPARK_MASTER": master}) == master


@pytest.mark.parametrize(("given", "wanted"), [({}, ["3"]), ({"spark.sql.shuffle.partitions": "50"}, [])])
def test_the_partitions_of_a_shuffle_are_left_where_a_settings_file_of_spark_has_them(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], wanted: list[str]
) -> None:
    chosen: list[str] = []

    def choose(name: str, value: str) -> None:
        assert name == "spark.sql.shuffle.partitions"
        chosen.append(value)

    def start(conf: SparkConf) -> SimpleNamespace:
        assert not conf.contains("spark.sql.shuffle.partitions")
        return SimpleNamespace(_accumulatorServer=None, getConf=lambda: SparkConf(False).setAll(list(given.items())))

    opened = SimpleNamespace(conf=SimpleNamespace(set=choose))
    builder = SimpleNamespace(config=lambda **_: SimpleNamespace(getOrCreate=lambda: opened))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(SparkContext, "getOrCreate", start)
    monkeypatch.setattr(SparkSession, "builder", builder)
    monkeypatch.setattr(session, "register", lambda _: None)
    open_spark("test", cores=3)
    assert chosen == wanted
    # Spark gives them to a session that is there already, and does not note them in its context.
    monkeypatch.setattr(SparkContext, "getOrCreate", lambda _: start(SparkConf(False)))
    open_spark("test", cores=3, extra={"spark.sql.shuffle.partitions": "8"})
    assert chosen == wanted


def test_a_jvm_that_dies_as_soon_as_it_has_started_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionRefusedError(111, "refused")

    opened = SimpleNamespace(conf=SimpleNamespace(set=refuse))
    builder = SimpleNamespace(config=lambda **_: SimpleNamespace(getOrCreate=lambda: opened))
    started = SimpleNamespace(_accumulatorServer=None, getConf=lambda: SparkConf(False))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(SparkContext, "getOrCreate", lambda _: started)
    monkeypatch.setattr(SparkSession, "builder", builder)
    monkeypatch.setattr(session, "register", refuse)
    with pytest.raises(SparkUnavailable) as raised:
        open_spark("test")
    assert raised.value.missing.endswith(": the JVM of Spark does not answer any more")


def options_of(job: StreamJob, master: str = "local[2,3]") -> dict[str, str]:
    """What a stream tells the source."""
    given: dict[str, str] = {}

    def option(name: str, value: str) -> SimpleNamespace:
        given[name] = value
        return reader

    reader = SimpleNamespace(option=option, load=lambda: None)
    spark = SimpleNamespace(
        sparkContext=SimpleNamespace(master=master), readStream=SimpleNamespace(format=lambda _: reader)
    )
    read_landing(spark, job)  # type: ignore[arg-type]  # no JVM
    return given


@pytest.mark.parametrize(("master", "told"), [("spark://master:7077", {"queuesPerPartition": "1"}), ("local[2,3]", {})])
def test_a_stream_on_a_cluster_does_not_count_the_cores_of_this_machine(master: str, told: dict[str, str]) -> None:
    expected = {"path": "/log", "group": "orders", "maxRowsPerBatch": "250", "failOnDataLoss": "true", **told}
    assert options_of(JOB, master) == expected


def test_a_stream_goes_on_without_pruned_rows_if_it_is_told_to() -> None:
    assert options_of(replace(JOB, skips_pruned=True))["failOnDataLoss"] == "false"


class Query:
    """A query that has ended this batch, and the 99 before it, when it is looked at for the first time."""

    def __init__(self, *looks: int) -> None:
        self.looks = list(looks)
        self.converted = 0

    def awaitTermination(self, _: float) -> bool:  # noqa: N802  # as Spark calls it
        self.last = self.looks.pop(0)
        return not self.looks

    def progress(self, number: int) -> SimpleNamespace:
        self.converted += 1
        facts = f'{{"batchId": {number}, "numInputRows": 10, "sources": [{{"endOffset": null, "latestOffset": null}}]}}'
        return SimpleNamespace(batchId=number, json=facts)

    @property
    def lastProgress(self) -> SimpleNamespace | None:  # noqa: N802  # as Spark calls it
        return None if self.last < 0 else self.progress(self.last)

    @property
    def recentProgress(self) -> list[SimpleNamespace]:  # noqa: N802  # as Spark calls it
        return [self.progress(number) for number in range(max(0, self.last - 99), self.last + 1)]


def test_a_stream_is_not_asked_again_and_again_for_batches_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has all its offsets, with a name for every lane of the log."""
    query = Query(-1, 0, *range(100, 200), *[200] * 50, 203)
    monkeypatch.setattr(stream, "start_stream", lambda *_: query)
    monkeypatch.setattr(stream, "release_lake", lambda _: None)
    told: list[int] = []
    progress = run_stream(None, JOB, stopped=lambda: False, on_progress=lambda at: told.append(at.batch))  # type: ignore[arg-type]  # no JVM
    assert (progress.batch, progress.rows) == (203, 2040)
    assert told == list(range(204))
    assert query.converted < 400


@pytest.mark.parametrize("error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111)])
def test_a_stream_whose_jvm_dies_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(stream, "start_stream", lambda *_: SimpleNamespace(awaitTermination=fail))
    with pytest.raises(StreamFailed) as raised:
        run_stream(None, SimpleNamespace(target="lake"), stopped=lambda: False)  # type: ignore[arg-type]  # no JVM
    assert raised.value.reason == "the JVM of Spark does not answer any more"


def spark_error(message: str, *causes: str) -> PySparkException:
    """As what the JVM has raised, with what it had behind it."""
    cause = None
    for description in reversed(causes):
        cause = SimpleNamespace(_desc=description, _cause=cause)
    error = PySparkException(message)
    error._cause = cause  # type: ignore[attr-defined]  # as that of the JVM
    return error


FAILED = "[STREAM_FAILED] Query [id = 1b51, runId = 7616] terminated with exception: "
FULL = "java.io.IOException: No space left on device"


def test_a_failure_is_told_with_what_was_behind_it_and_without_what_says_nothing() -> None:
    what = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake. SQLSTATE: 58030"
    error = spark_error(
        f"{FAILED}{what} SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 1b51]",
        f"org.apache.spark.SparkException: {what}",
        f"org.apache.hadoop.fs.FSError: {FULL}",
        f"{FULL}\n\tat java.base",
    )
    assert reason_of(error) == f"[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake. {FULL}"
    assert reason_of(spark_error(f"{FAILED}{FULL} SQLSTATE: XXKST", FULL)) == FULL
    stack = 'Traceback (most recent call last):\n  File "x.py"\nValueError: no number'
    of_python = spark_error(
        f"{FAILED}Job aborted\n{stack}\n", f"org.apache.spark.api.python.PythonException: {stack}\n"
    )
    assert reason_of(of_python) == "ValueError: no number"
    assert reason_of(PySparkException("")) == "PySparkException"
    assert reason_of(PySparkException("[NO_CAUSE] Nothing is known.")) == "[NO_CAUSE] Nothing is known."


def test_a_disk_that_java_does_not_name_is_one_of_those_that_a_stream_writes_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise spark_error(f"{FAILED}{FULL} SQLSTATE: XXKST", FULL)

    monkeypatch.setattr(stream, "start_stream", lambda *_: SimpleNamespace(awaitTermination=fail))
    monkeypatch.setattr(stream, "release_lake", lambda _: None)
    with pytest.raises(StreamFailed, match=f"{FULL}, in /lake, /checkpoint or the folder for temporary files"):
        run_stream(None, JOB, stopped=lambda: False)  # type: ignore[arg-type]  # no JVM


UNHEARD = "java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back"


def unheard(*_: object) -> None:
    what = "Python worker failed to connect back."
    raise spark_error(f"{FAILED}{what} SQLSTATE: XXKST", f"org.apache.spark.SparkException: {what}", UNHEARD)


def test_a_stream_is_started_again_where_a_process_of_python_starts_too_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own ten seconds for it were over on a busy machine, and the command ended with 1."""
    starts = [SimpleNamespace(awaitTermination=unheard), SimpleNamespace(awaitTermination=unheard), Query(-1, 0)]
    monkeypatch.setattr(stream, "start_stream", lambda *_: starts.pop(0))
    monkeypatch.setattr(stream, "release_lake", lambda _: None)
    assert run_stream(None, JOB, stopped=lambda: False).rows == 10  # type: ignore[arg-type]  # no JVM
    assert starts == []


@pytest.mark.parametrize(("is_stopped", "count"), [(False, stream.STARTS), (True, 1)])
def test_a_stream_that_starts_too_slowly_again_and_again_or_is_to_end_is_not_started_once_more(
    monkeypatch: pytest.MonkeyPatch, is_stopped: bool, count: int
) -> None:
    starts: list[object] = []
    monkeypatch.setattr(
        stream, "start_stream", lambda *_: starts.append(1) or SimpleNamespace(awaitTermination=unheard)
    )
    monkeypatch.setattr(stream, "release_lake", lambda _: None)
    with pytest.raises(StreamFailed, match="failed to connect back"):
        run_stream(None, JOB, stopped=lambda: is_stopped)  # type: ignore[arg-type]  # no JVM
    assert len(starts) == count


def test_tasks_whose_jvm_dies_end_as_where_there_is_no_spark() -> None:
    def fail(*_: object) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    with pytest.raises(SparkUnavailable, match="the JVM of Spark does not answer any more"):
        run_tasks(SimpleNamespace(range=fail), [1], lambda _: None)  # type: ignore[arg-type]  # no JVM
