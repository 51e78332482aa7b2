"""The Python that Spark starts on this machine: this one, with the installed pyspark.

Spark puts its Python side first on the path of each process that it starts, as an archive. Every process compiles what
comes from an archive again, which is most of its start-up time; and a query starts about eight of them. The installed
package next to that archive is the same, and is kept compiled.
"""

import importlib.util
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from lbg_runtime.model.errors import SparkUnavailable
from lbg_runtime.pipeline.spark.programs import made_program

_WRAPPER = """\
#!/bin/sh
# Made by lbg: without the archives of an installed pyspark on the path, which Python compiles each time it starts.
left=$PYTHONPATH:
PYTHONPATH=
while [ -n "$left" ]; do
  place=${{left%%:*}}
  left=${{left#*:}}
  case $place in
    "" | {archives}/pyspark.zip | {archives}/py4j-*-src.zip) ;;
    *) PYTHONPATH=$PYTHONPATH${{PYTHONPATH:+:}}$place ;;
  esac
done
export PYTHONPATH
exec {python} "$@"
"""


def worker_python(environ: Mapping[str, str]) -> str:
    """A program for `PYSPARK_PYTHON` of a session on this machine.

    Just this Python if pyspark is not an installed package of it, if `SPARK_HOME` names another Spark, or if no program
    can be kept: workers then start as they usually do.
    """
    folders = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    spark, bridge = _folder_of("pyspark"), _folder_of("py4j")
    if environ.get("SPARK_HOME") or spark is None or bridge is None or not {spark.parent, bridge.parent} <= folders:
        return sys.executable
    archives = shlex.quote(str(spark / "python" / "lib"))
    try:
        return str(
            made_program("python", _WRAPPER.format(archives=archives, python=shlex.quote(sys.executable)), environ)
        )
    except SparkUnavailable:
        return sys.executable


def _folder_of(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent
