"""What Spark is given to start as its Python: this one, without the archives that Spark puts first on its path."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from lbg_runtime.pipeline.spark.worker_python import worker_python

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
