"""A Spark session with the settings that this project's jobs are made for, on this machine or on a cluster.

Imports pyspark when a session is opened. If the user's own code creates the session, for instance on a cluster,
`register` is all that `format("lbg")` needs.
"""

import logging
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from lbg_runtime.model.errors import SparkUnavailable
from lbg_runtime.pipeline.spark.java import INSTALL_LINE, find_java
from lbg_runtime.pipeline.spark.worker_python import worker_python

if TYPE_CHECKING:
    from socket import socket

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

MASTER_VARIABLE = "LBG_SPARK_MASTER"
DEFAULT_DRIVER_MEMORY = "2g"
TASK_ATTEMPTS = 3
"""In local mode, Spark gives a task one attempt unless told otherwise."""
_POLLING_DELAY_MS = 100
"""Between two looks for new rows while there are none; Spark's own default looks a hundred times a second."""
_EXIT_S = 20.0
_MASTER = re.compile(r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[.+\]|yarn|spark://\S+:\d+|k8s://\S+")
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_LOG_SETTINGS = Path(__file__).with_name("quiet-log4j2.properties")


def settings(cores: int, driver_memory: str, java_options: str, master: str | None) -> Mapping[str, str]:
    """The settings of a session on this machine, or on the cluster of a master, whose executors can reach us."""
    # Without these, Spark listens on the address of the host's name.
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return {
        "spark.master": master or f"local[{cores},{TASK_ATTEMPTS}]",
        "spark.driver.memory": driver_memory,
        **(loopback if is_local(master) else {}),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} {java_options}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.pollingDelay": str(_POLLING_DELAY_MS),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A batch of 10,000 rows of a megabyte would not fit anywhere.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    }


def find_master(environ: Mapping[str, str]) -> str | None:
    """The master that the environment names, None for this machine; raises `SparkUnavailable` if it is none."""
    master = environ.get(MASTER_VARIABLE) or None
    if master is not None and not _MASTER.fullmatch(master):
        masters = "spark://HOST:PORT, yarn, k8s://URL or local[N]"
        found = f"{MASTER_VARIABLE} is {master!r}, where Spark takes {masters}"
        raise SparkUnavailable(found, f"export {MASTER_VARIABLE}=spark://HOST:7077")
    return master


def is_local(master: str | None) -> bool:
    """Whether all of Spark runs on this machine."""
    return master is None or master.startswith("local")


def open_spark(
    name: str,
    *,
    cores: int | None = None,
    driver_memory: str = DEFAULT_DRIVER_MEMORY,
    java_options: str = "",
    extra: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Start Spark in this process, with `format("lbg")` known; takes about five seconds. One session per process.

    Sets `JAVA_HOME` and Spark's choice of Python in this process's environment, as Spark reads them from there. `extra`
    are Spark settings that override `settings`. `LBG_SPARK_MASTER` in the environment names the master of a cluster; a
    `PYSPARK_PYTHON` is then left as it is. SIGINT and SIGTERM take effect when Spark has started. The caller's
    handlers stay, except for Python's default, which Spark replaces by one that also cancels jobs. Raises
    `SparkUnavailable`.
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        from lbg_runtime.pipeline.spark.stream import SPARK_FAILURES, reason_of
    except ImportError:
        raise SparkUnavailable("pyspark is not installed", INSTALL_LINE) from None
    extra = extra or {}
    master = extra.get("spark.master") or find_master(os.environ)
    found = find_java()
    os.environ["JAVA_HOME"] = str(found.java.home)
    cores = cores or os.cpu_count() or 1
    chosen = {**settings(cores, driver_memory, java_options, master), **extra}
    os.environ["PYSPARK_DRIVER_PYTHON"] = python = worker_python(os.environ)
    if is_local(master):
        os.environ["PYSPARK_PYTHON"] = python
        # Otherwise Spark first looks for an external address, and logs that.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif os.environ.get("PYSPARK_PYTHON", python) == python:
        # What lies in this machine's cache is of no use on others.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = SparkConf().setAppName(name).setAll(list(chosen.items()))
    try:
        with _signals_held_back():
            context = SparkContext.getOrCreate(conf)
        _hush_end_of(context)
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        # Only now it is known what `spark-defaults.conf` says of it.
        if _SHUFFLE_PARTITIONS not in extra and not context.getConf().contains(_SHUFFLE_PARTITIONS):
            spark.conf.set(_SHUFFLE_PARTITIONS, str(cores))
        register(spark)
    except SPARK_FAILURES as error:
        # The JVM has written the rest to standard error.
        where = str(found.java.real_home) if is_local(master) else f"{found.java.real_home} with the master {master}"
        what = f"Spark does not start on {where}: {reason_of(error)}"
        raise SparkUnavailable(what, "lbg spark doctor") from None
    return spark


def register(spark: "SparkSession") -> None:
    """Make `format("lbg")` known to a session, as source and sink."""
    from lbg_runtime.pipeline.spark.data_source import LbgDataSource

    spark.dataSource.register(LbgDataSource)


def close_spark(spark: "SparkSession") -> None:
    """End the session and the JVM of this process, and wait until the JVM is gone; no error if it already is."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    with suppress(Py4JError, OSError):
        spark.stop()
    # If the JVM had died, Spark did not get here, and the next session would be the dead one.
    SparkContext._active_spark_context = SparkSession._instantiatedSession = None
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    # The JVM watches its standard input, and exits when that is closed.
    process.stdin.close()
    try:
        process.wait(_EXIT_S)
    except subprocess.TimeoutExpired:
        # The session has ended, so nothing of a job is lost.
        process.kill()
        process.wait(_EXIT_S)
    SparkContext._gateway = None
    SparkContext._jvm = None


@contextmanager
def spark_session(
    name: str,
    *,
    driver_memory: str = DEFAULT_DRIVER_MEMORY,
    extra: Mapping[str, str] | None = None,
) -> "Iterator[SparkSession]":
    """`open_spark`, and `close_spark` at the end; a session that this process had before is used and left open.

    In one that was opened here, an interrupt raises `KeyboardInterrupt` and no more, if it did before: jobs end with
    the session.
    """
    if _has_session():
        yield open_spark(name, driver_memory=driver_memory, extra=extra)
        return
    with _interrupts_without_calls():
        spark = open_spark(name, driver_memory=driver_memory, extra=extra)
        try:
            yield spark
        finally:
            close_spark(spark)


@contextmanager
def _interrupts_without_calls() -> Iterator[None]:
    """Keep Spark's own handler of SIGINT away, and py4j from logging a call that is interrupted.

    That handler makes a call within the one that it interrupts, which fails with tracebacks.
    """
    before = signal.getsignal(signal.SIGINT)
    is_ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if is_ours:
        # Spark replaces only Python's own.
        signal.signal(signal.SIGINT, _interrupt)
    logging.root.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        logging.root.removeFilter(_is_no_interrupt)
        if is_ours:
            signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.default_int_handler(number, frame)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until this is over: who leaves while the JVM starts leaves it behind permanently.

    The JVM watches whether we live once it has noted in a folder of PySpark's where it listens, and PySpark removes
    that folder when it is interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def hold(number: int, _: object) -> None:
        came.append(number)

    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            is_spark_s = signal.getsignal(number) is not hold
            if handler is not None and not (is_spark_s and handler is signal.default_int_handler):
                signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)


def _hush_end_of(context: "SparkContext") -> None:
    """Keep a PySpark server from printing a traceback when the JVM dies: whoever waits for the JVM gets the error."""
    server: socketserver.BaseServer | None = context._accumulatorServer
    if server is None:
        return
    show = server.handle_error

    def handle_error(request: "socket | tuple[bytes, socket]", client_address: object) -> None:
        if not isinstance(sys.exception(), EOFError):
            show(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]  # of this one alone


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Whether a line of the root logger is other than the traceback that py4j writes of a call that is interrupted."""
    return not (isinstance(record.msg, str) and record.msg.startswith("KeyboardInterrupt while sending command"))


def _has_session() -> bool:
    try:
        from pyspark import SparkContext
    except ImportError:
        return False
    return SparkContext._active_spark_context is not None
