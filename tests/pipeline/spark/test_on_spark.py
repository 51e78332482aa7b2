"""What only a JVM can show.

More than 400 lines, as all of it is in one module: one worker of the test run then has the one session.
"""

import asyncio
import json
import os
import runpy
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import NamedTuple

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from lbg_runtime.config.load import load_settings
from lbg_runtime.journal.layout import find_run, lay_out
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.errors import StreamFailed, UserError
from lbg_runtime.model.hashing import shard_of
from lbg_runtime.model.message import Message
from lbg_runtime.pipeline.parts import validate_locally
from lbg_runtime.pipeline.spark.checkpoint import STREAM_NOTE
from lbg_runtime.pipeline.spark.running_verdict import RunningVerdict
from lbg_runtime.pipeline.spark.session import spark_session
from lbg_runtime.pipeline.spark.stream import reason_of, run_stream, start_stream
from lbg_runtime.pipeline.spark.stream_job import Lake, StreamJob, StreamProgress
from lbg_runtime.pipeline.spark.validation import lay_out_on_spark, validate_on_spark
from lbg_runtime.runtime.session import open_session
from lbg_runtime.testing import BrokerOnPort
from lbg_runtime.testing.conformance_steps import browse
from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS
from lbg_runtime.validator.report import as_object
from tests.patience import PATIENCE_S
from tests.pipeline.landing.landed import LogOnDisk, id_of, rows
from tests.pipeline.spark.kills import Outcome as Kills
from tests.pipeline.spark.kills import Stream, ids_in_lake, kill_streams
from tests.pipeline.spark.logs import fill, not_once
from tests.pipeline.spark.validator_kills import Outcome as ValidatorKills
from tests.pipeline.spark.validator_kills import Said, Validation, kill_validators, made_run, said
from tests.processes import running
from tests.validator.history import story

# The first queries of a JVM take their time, and more where other tests have the cores.
pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

QUEUES, COUNT = 4, 100
EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "running_balance.py"


def job_of(folder: Path, lake: Lake, max_rows: int = 250) -> StreamJob:
    return StreamJob(folder / "log", "orders", lake, folder / "lake", folder / "checkpoint", True, 0, max_rows)


def forget_last_batch(job: StreamJob) -> None:
    """As after a driver that died when the lake had the batch, and Spark had not yet noted it."""
    commits = job.checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def go_on(spark: SparkSession, job: StreamJob) -> Counter[str]:
    """Run the last batch again, and what has come since; what is in the lake but the message that came since."""
    forget_last_batch(job)
    log = LogOnDisk(job.landing)
    log.lane("late", 9, queue=1).append(rows([id_of("late", 1)], queue=1))
    log.close()
    run_stream(spark, job, stopped=lambda: False)
    found = ids_in_lake(job.lake.value, job.target)
    assert found.pop(id_of("late", 1)) == 1
    return found


class Killed(NamedTuple):
    """What is being killed while the session starts."""

    stream: Stream
    stream_outcome: Future[Kills]
    validator_outcome: Future[ValidatorKills]


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """Both kinds of victims at once, and before the session, as each of the three has to start a JVM first."""
    stream = Stream(tmp_path_factory.mktemp("stream"), "delta", max_rows=200)
    validation, run = tmp_path_factory.mktemp("validation"), made_run(5, 60, has_faults=True)
    with ThreadPoolExecutor(2) as killers:
        yield Killed(
            stream,
            killers.submit(kill_streams, stream, ("driver",), Random(7), queues=2, count=1000, tries=5),
            killers.submit(kill_validators, validation, run, (("tree",),), Random(5), tries=5),
        )


@pytest.mark.end_to_end
def test_a_killed_driver_leaves_every_message_in_the_lake_once(killed: Killed, spark: SparkSession) -> None:
    """The short form of `kills.py`; and goes on after the kill as after any other end."""
    outcome = killed.stream_outcome.result()
    assert outcome.live == {"driver": 1}
    job = job_of(killed.stream.folder, Lake.DELTA, max_rows=10_000)
    run_stream(spark, job, stopped=lambda: False)
    assert not not_once(killed.stream.ids(), 2, 1000)
    assert not not_once(go_on(spark, job), 2, 1000)


@pytest.mark.end_to_end
def test_a_killed_validator_says_in_the_end_what_one_process_says(killed: Killed, spark: SparkSession) -> None:
    """The short form of `validator_kills.py`. Who goes on tells what was found before, and nothing twice."""

    def judge(validation: Validation) -> Said:
        running = RunningVerdict(spark, validation.growing, validation.checkpoint, DEFAULT_ACK_WINDOW_MS)
        running.catch_up()
        standing, findings = running.look(0.01)
        running.stop()
        return said(standing, findings)

    outcome = killed.validator_outcome.result()
    outcome.finish(judge)
    assert outcome.wrong == []
    assert outcome.expected[1].total() > 5
    assert outcome.live == {"tree": 1}


def test_a_lake_has_every_message_once_through_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """Of Parquet; of Delta it is the test of a killed driver."""
    job = job_of(tmp_path, Lake.PARQUET)
    fill(job.landing, QUEUES, COUNT)
    told: list[StreamProgress] = []
    progress = run_stream(spark, job, stopped=lambda: False, on_progress=told.append)
    # Copies that were landed by both members count where limits do, and are no rows.
    assert progress.rows == QUEUES * COUNT
    assert progress.behind == 0
    assert len(told) >= 2
    assert told[0].behind > told[-1].behind
    assert not not_once(go_on(spark, job), QUEUES, COUNT)


def test_a_folder_of_parquet_takes_nothing_of_another_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Whose batch has the number of the last one there, for which Spark's file sink takes it, and leaves it out."""
    job, other = job_of(tmp_path / "one", Lake.PARQUET), job_of(tmp_path / "other", Lake.PARQUET)
    for each in (job, other):
        fill(each.landing, 1, 20)
        run_stream(spark, each, stopped=lambda: False)
    forget_last_batch(other)
    with pytest.raises(UserError, match="is the folder of another checkpoint"):
        run_stream(spark, replace(other, target=job.target), stopped=lambda: False)
    # The note is that of the query, as Spark has taken the one that was made for it.
    notes = [json.loads(path.read_bytes()) for path in (job.checkpoint / "metadata", job.target / STREAM_NOTE)]
    assert notes[0] == notes[1]
    assert not not_once(go_on(spark, job), 1, 20)


def test_a_stream_ends_with_the_error_of_its_log_and_names_it(spark: SparkSession, tmp_path: Path) -> None:
    job = job_of(tmp_path, Lake.PARQUET)
    fill(job.landing, 1, 20, flush=5)
    (segment,) = job.landing.glob("queue=000/lane=a-*/*.arrow")
    content = bytearray(segment.read_bytes())
    content[-20] ^= 1
    segment.write_bytes(content)
    with pytest.raises(StreamFailed, match="have a wrong CRC") as raised:
        run_stream(spark, job, stopped=lambda: False)
    assert str(segment) in raised.value.reason
    assert "\n" not in raised.value.reason


def test_a_stream_begins_where_a_driver_died_as_it_noted_the_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    """And its batches are told from others of their numbers, for which the sink needs to know the checkpoint."""
    job = job_of(tmp_path, Lake.DELTA)
    fill(job.landing, 1, 20)
    (job.checkpoint / "offsets").mkdir(parents=True)
    (job.checkpoint / "offsets" / ".0.093a5eaf.tmp").touch()
    run_stream(spark, job, stopped=lambda: False)
    assert not not_once(ids_in_lake(job.lake.value, job.target), 1, 20)
    forget_last_batch(job)
    note = job.checkpoint / "offsets" / "0"
    (job.checkpoint / "offsets" / ".0.crc").unlink()
    # One row less of the second of its lanes.
    known = note.read_text()
    assert '": 12}' in known
    note.write_text(known.replace('": 12}', '": 11}'))
    with pytest.raises(StreamFailed, match="its batch 0 is not the one that"):
        run_stream(spark, job, stopped=lambda: False)


def test_a_stream_is_stopped_by_whoever_asks(spark: SparkSession, tmp_path: Path) -> None:
    job = job_of(tmp_path, Lake.PARQUET)
    fill(job.landing, 1, 20)
    endless = StreamJob(job.landing, job.group, job.lake, job.target, job.checkpoint, False, 50, 100)
    seen: list[StreamProgress] = []
    run_stream(spark, endless, stopped=lambda: bool(seen), on_progress=seen.append)
    assert not spark.streams.active


def test_a_batch_read_has_typed_columns_and_order_per_queue(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "log", 2, 40)
    frame = spark.read.format("lbg").option("path", str(tmp_path / "log")).option("decode", "utf8").load()
    found = frame.where("queue = 1").select("seq", "payload", "t_land", "headers").collect()
    assert [row["seq"] for row in found] == list(range(1, 41))
    assert found[0]["payload"] == id_of("q1-0", 1)
    nothing = spark.read.format("lbg").option("path", str(tmp_path / "log")).option("queues", "7").load()
    assert nothing.count() == 0
    with pytest.raises(PySparkException) as raised:
        spark.read.format("lbg").option("path", str(tmp_path)).load()
    assert "no landing.json in it" in reason_of(raised.value)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerOnPort]:
    with BrokerOnPort() as running:
        yield running


def config_of(broker: BrokerOnPort, folder: Path, group: str) -> Path:
    """Settings of a group whose queues are on the broker."""
    path = folder / f"{group}.yaml"
    path.write_text(
        f"connection: {{transport: solace, host: '{broker.url}'}}\n"
        f"group: {{name: {group}, hash_prefix: {group}, hash_count: 8, queue_count: 2}}\n"
        "handlers: [handlers.orders]\n"
    )
    shape = load_settings(path).group.shape()
    for index in range(shape.queue_count):
        broker.create_queue(shape.queue_name(index), *shape.subscriptions(index))
    return path


def messages_on(broker: BrokerOnPort, config: Path) -> list[Message]:
    """What lies on the queues of a group, one queue after the other."""

    async def browse_all() -> list[Message]:
        settings = load_settings(config)
        depths = {name: broker.queue_status(name).depth for name in settings.group.shape().queue_names()}
        async with open_session(settings.connection, "test-browser") as session:
            return [each for name, depth in depths.items() if depth for each in await browse(session, depth, name)]

    return asyncio.run(browse_all())


def test_rows_of_a_batch_are_published_in_order_to_the_shard_of_their_key(
    spark: SparkSession, broker: BrokerOnPort, tmp_path: Path
) -> None:
    config = config_of(broker, tmp_path, "batch")
    frame = spark.range(0, 60).select(
        f.concat(f.lit("k"), f.col("id") % 6).alias("key"),
        (59 - f.col("id")).alias("position"),
        f.col("id").cast("string").alias("payload"),
        f.lit("orders/new").alias("kind"),
    )
    writer = frame.repartition(2, "key").write.format("lbg").mode("append").option("config", str(config))
    writer.option("topicColumn", "kind").option("orderColumn", "position").save()
    found = messages_on(broker, config)
    assert sorted(int(each.payload) for each in found) == list(range(60))
    group = load_settings(config).group
    for each in found:
        shard = shard_of(group.hash_function, each.key or "", 8)
        assert each.topic == f"batch/{shard}/orders/new"
    for key in {each.key for each in found}:
        of_key = [each for each in found if each.key == key]
        assert [int(each.payload) for each in of_key] == sorted((int(each.payload) for each in of_key), reverse=True)
        assert [each.key_sequence for each in of_key] == list(range(1, 11))


def test_a_batch_of_a_stream_that_is_run_again_publishes_the_same_messages(
    spark: SparkSession, broker: BrokerOnPort, tmp_path: Path
) -> None:
    config = config_of(broker, tmp_path, "stream")
    job = job_of(tmp_path, Lake.PARQUET)
    fill(job.landing, 2, 20)

    def run() -> None:
        frame = spark.readStream.format("lbg").option("path", str(job.landing)).load()
        writer = frame.writeStream.format("lbg").option("checkpointLocation", str(job.checkpoint))
        writer = writer.option("config", str(config)).option("topic", "copies").option("orderColumn", "seq")
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    first = messages_on(broker, config)
    assert Counter(each.payload.decode() for each in first) == Counter(
        id_of(f"q{queue}-{number % 5}", number + 1) for queue in range(2) for number in range(20)
    )
    forget_last_batch(job)
    run()
    both = Counter(
        (each.message_id, each.publisher_id, each.key, each.key_sequence, each.payload)
        for each in messages_on(broker, config)
    )
    assert len(both) == 40
    assert set(both.values()) == {2}


def test_a_query_stops_when_its_group_hashes_in_another_way_and_goes_on_so_when_it_is_started_again(
    spark: SparkSession, broker: BrokerOnPort, tmp_path: Path
) -> None:
    config, log, checkpoints = config_of(broker, tmp_path, "changed"), tmp_path / "log", tmp_path / "checkpoints"
    fill(log, 1, 5)
    frame = spark.readStream.format("lbg").option("path", str(log)).load()
    writer = frame.writeStream.format("lbg").option("config", str(config)).option("topic", "t")

    spark.conf.set("spark.sql.streaming.checkpointLocation", checkpoints.as_uri())
    try:
        query = writer.queryName("named").start()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    query.processAllAvailable()
    config.write_text(config.read_text().replace("hash_count: 8", "hash_count: 16"))
    landing = LogOnDisk(log)
    landing.lane("late", 9, queue=0).append(rows([id_of("late", 1)], queue=0))
    landing.close()
    with pytest.raises(PySparkException) as raised:
        query.processAllAvailable()
    assert reason_of(raised.value).startswith("group.hash_count: 16, and the query has published with 8")
    assert len(messages_on(broker, config)) == 5

    query = writer.option("checkpointLocation", str(checkpoints / "named")).start()
    query.processAllAvailable()
    query.stop()
    [late] = [each for each in messages_on(broker, config) if each.key == "late"]
    group = load_settings(config).group
    assert late.topic == f"changed/{shard_of(group.hash_function, late.key or '', 16)}/t"


def test_a_sink_fails_loudly(spark: SparkSession, broker: BrokerOnPort, tmp_path: Path) -> None:
    config = config_of(broker, tmp_path, "loud")

    def reason(frame: str, **options: str) -> str:
        writer = spark.sql(frame).write.format("lbg").mode("append").option("config", str(config))
        with pytest.raises(PySparkException) as raised:
            writer.options(**{"topic": "t", **options}).save()
        return reason_of(raised.value)

    assert "no column 'id'; expected one of key, payload" in reason("SELECT 'a' key, 'x' payload", keyColumn="id")
    nothing = "SELECT IF(id = 1, NULL, 'a') key, 'x' payload FROM range(2)"
    assert "has nothing in column 'key'" in reason(nothing)
    split = "SELECT 'a' key, 'x' payload FROM range(0, 2, 1, 2)"
    assert "1 keys of one batch were in more than one partition" in reason(split)


def test_the_verdict_is_the_same_on_every_engine(spark: SparkSession, tmp_path: Path) -> None:
    story().write(tmp_path)
    expected = as_object(validate(read_run(tmp_path)))
    here = lay_out(tmp_path, tmp_path / "here")
    there = lay_out_on_spark(spark, tmp_path, tmp_path / "there")
    assert find_run(tmp_path / "there") == there
    assert here.name == there.name
    assert _of_any_order(as_object(validate_locally(here))) == _of_any_order(expected)
    assert _of_any_order(as_object(validate_on_spark(spark, there))) == _of_any_order(expected)
    shutil.rmtree(here)


def _of_any_order(verdict: dict[str, object]) -> dict[str, object]:
    """Which of many findings of a law are shown depends on the parts."""
    return {name: value for name, value in verdict.items() if name != "witnesses"}


def test_a_session_that_was_there_is_left_open(spark: SparkSession) -> None:
    with spark_session("another") as same:
        assert same.range(3).count() == 3
    assert spark.range(4).count() == 4


def test_its_processes_import_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    """From the archive of the same that Spark puts first on their path, each start takes twice as long and more."""
    places = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).collect()
    assert places == [pyspark.__file__]


def test_what_is_started_with_a_wrong_option_says_so(spark: SparkSession, tmp_path: Path) -> None:
    job = job_of(tmp_path, Lake.DELTA)
    with pytest.raises(PySparkException) as raised:
        start_stream(spark, job).awaitTermination(PATIENCE_S)
    assert "no such folder" in reason_of(raised.value)


@pytest.mark.end_to_end
def test_the_worked_example_of_the_docs(spark: SparkSession, broker: BrokerOnPort, tmp_path: Path) -> None:
    """Orders in, balances out, a handler behind, and the validator over both groups."""
    # Under a name that no worker can import, as that of a script, so that its classes travel with the job.
    example = SimpleNamespace(**runpy.run_path(str(EXAMPLE), run_name="running_balance"))
    orders, balances = config_of(broker, tmp_path, "orders"), config_of(broker, tmp_path, "balances")
    balances.write_text(balances.read_text().replace("handlers.orders", "handlers.balances"))
    runs, landing, database = tmp_path / "runs", tmp_path / "landing", tmp_path / "balances.db"
    lines = "".join(f'{{"account": "a{number % 7}", "cents": {number}}}\n' for number in range(210))
    publish = ["publish", "--config", orders, "--topic", "orders/booked", "--key-from", "json:/account"]
    land = ["land", "--config", orders, "--dir", landing, "--member-id", "l", "--journal", runs / "orders"]
    member = ["run", "--config", balances, "--member-id", "m", "--journal", runs / "balances"]
    # All start at once; what none of them needs to wait for, the test does not.
    with lbg_running(*member, BALANCES_DB=str(database)):
        with lbg_running(*land):
            lbg(*publish, "--ledger", runs / "orders", stdin=lines)
            for queue in ("orders/0", "orders/1"):
                broker.wait_until(queue, lambda status: status.depth == 0, PATIENCE_S)
        for name, value in example.STATE.items():
            spark.conf.set(name, value)
        frame = example.changes(spark, landing)
        query = example.publish(frame, balances, tmp_path / "checkpoint", runs / "balances")
        query.processAllAvailable()
        query.stop()
        for queue in ("balances/0", "balances/1"):
            broker.wait_until(queue, lambda status: status.depth == 0, PATIENCE_S)
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT account, orders, cents, seen FROM balances ORDER BY account").fetchall()
    assert found == [(f"a{each}", 30, sum(range(each, 210, 7)), 30) for each in range(7)]
    for group in ("orders", "balances"):
        assert as_object(validate(read_run(runs / group)))["verdict"] == "valid"


def lbg(*arguments: object, stdin: str = "") -> None:
    command = [sys.executable, "-m", "lbg_runtime.cli", *map(str, arguments)]
    subprocess.run(command, input=stdin, text=True, check=True, timeout=PATIENCE_S)


@contextmanager
def lbg_running(*arguments: object, **environment: str) -> Iterator[None]:
    """A member that is asked to leave in the end, and leaves in order."""
    command = [sys.executable, "-m", "lbg_runtime.cli", *map(str, arguments)]
    with running(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL) as process:
        yield
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
