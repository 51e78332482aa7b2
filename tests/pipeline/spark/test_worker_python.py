"""What Spark is given to start as its Python: this one, without the archives that Spark puts first on its path."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from lbg_runtime.pipeline.spark.worker_python import worker_python

PATIENCE_S = 300
OK = struct.pack("!i", 2) + b"ok"
ARCHIVES = Path(pyspark.__file__).parent / "python" / "lib"
SAYS = """
import os, py4j, pyspark, sys
print(pyspark.__file__, py4j.__file__, sys.executable, os.environ["PYTHONPATH"], sys.argv[1:], sep="\\n")
"""


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name != "SPARK_HOME"},
        "XDG_CACHE_HOME": str(tmp_path),
        **more,
    }


def started(python: str, places: list[str], *arguments: str) -> list[str]:
    """What a process says that is started as Spark starts its own, a line each."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run([python, "-c", SAYS, *arguments], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_its_workers_import_what_is_installed_and_keep_the_rest_of_their_path(tmp_path: Path) -> None:
    python = worker_python(environment(tmp_path))
    archives = sorted(map(str, ARCHIVES.glob("*.zip")))
    assert len(archives) == 2
    other, own = str(tmp_path / "pyspark.zip"), str(tmp_path / "b c*")
    said = started(python, [*archives, other, own], "-m", "a  b", "*")
    assert said[:2] == [pyspark.__file__, str(Path(pyspark.__file__).parents[1] / "py4j" / "__init__.py")]
    assert said[2:] == [sys.executable, f"{other}{os.pathsep}{own}", "['-m', 'a  b', '*']"]
    assert started(sys.executable, archives)[0].startswith(str(ARCHIVES))
    assert worker_python(environment(tmp_path)) == python


MODULE = """
import os, sys
with open(os.environ["GATE"]) as gate:
    gate.read()
from pyspark.serializers import write_with_length
from pyspark.util import local_connect_and_auth
from pyspark.worker_util import get_sock_file_to_executor
with get_sock_file_to_executor(timeout=None) as file:
    write_with_length(repr((__name__, sys.argv[1:], sys.path[0])).encode(), file)
with local_connect_and_auth(int(os.environ["OTHER"]), "another secret")[0] as file:
    pass
"""


def test_it_calls_spark_back_before_it_imports_anything_that_takes_long(tmp_path: Path) -> None:
    """Spark waits 10 s for that: on a busy machine, too short for what its workers import."""
    (tmp_path / "late_module.py").write_text(MODULE)
    os.mkfifo(gate := tmp_path / "gate")
    with socket.create_server(("127.0.0.1", 0)) as spark, socket.create_server(("127.0.0.1", 0)) as other:
        for server in (spark, other):
            server.settimeout(PATIENCE_S)
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, ARCHIVES.glob("*.zip")), str(tmp_path)]),
            "PYTHON_WORKER_FACTORY_PORT": str(spark.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": "a secret",
            "GATE": str(gate),
            "OTHER": str(other.getsockname()[1]),
        }
        python = worker_python(environment(tmp_path))
        with subprocess.Popen([python, "-m", "late_module", "a  b"], env=environ, cwd=tmp_path) as worker:
            try:
                with spark.accept()[0] as line:
                    assert said_in(line) == b"a secret"
                    line.sendall(OK)
                    # Until now it has not begun to import.
                    gate.write_text("go on")
                    assert told_in(line) == worker.pid
                    assert said_in(line) == repr(("__main__", ["a  b"], str(tmp_path))).encode()
                with other.accept()[0] as line:
                    assert said_in(line) == b"another secret"
                    line.sendall(OK)
                assert worker.wait(PATIENCE_S) == 0
            finally:
                worker.kill()


def told_in(line: socket.socket) -> int:
    (number,) = struct.unpack("!i", line.recv(4, socket.MSG_WAITALL))
    return int(number)


def said_in(line: socket.socket) -> bytes:
    """Text, in the form in which Spark and its workers say it."""
    return line.recv(told_in(line), socket.MSG_WAITALL)


def test_another_spark_keeps_its_own_python_side(tmp_path: Path) -> None:
    assert worker_python(environment(tmp_path, SPARK_HOME="/opt/spark")) == sys.executable


def test_where_nothing_can_be_kept_workers_start_as_they_always_do(tmp_path: Path) -> None:
    (tmp_path / "lbg-runtime").write_text("in the way")
    assert worker_python(environment(tmp_path)) == sys.executable


def test_a_pyspark_that_is_not_installed_for_this_python_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert worker_python(environment(tmp_path)) == sys.executable
