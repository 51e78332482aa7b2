"""The Python that Spark starts on this machine: this one, with the installed pyspark.

Spark puts its Python side first on the path of each process that it starts, as an archive. Every process compiles what
comes from an archive again, which is most of its start-up time; and a query starts about eight of them. The installed
package next to that archive is the same, and is kept compiled.

Spark waits 10 s until a process that plans or reads for it calls back, and no setting of it says more. PySpark calls
back when it has imported itself; here, that is the first thing that such a process does.
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
if [ -n "$PYTHON_WORKER_FACTORY_PORT" ] && [ "$1" = -m ] && [ "$SPARK_PREFER_IPV6" != true ]; then
  shift
  exec {python} -c {caller} "$@"
fi
exec {python} "$@"
"""

_CALLER = """\
import os
import socket
import struct
import sys

port, secret = int(os.environ["PYTHON_WORKER_FACTORY_PORT"]), os.environ["PYTHON_WORKER_FACTORY_SECRET"]
line = socket.create_connection(("127.0.0.1", port), int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", 15)))
file = line.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", 65536)))
file.write(struct.pack("!i", len(secret.encode())) + secret.encode())
file.flush()
answer = file.read(struct.unpack("!i", file.read(4))[0])
if answer != b"ok":
    sys.exit(f"Spark answered {answer!r}")

import runpy

import pyspark.util

connect = pyspark.util.local_connect_and_auth


def connected(whom, its_secret):
    return (file, line) if (whom, its_secret) == (port, secret) else connect(whom, its_secret)


pyspark.util.local_connect_and_auth = connected
if sys.path[0] == "":
    sys.path[0] = os.getcwd()
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
"""What a process does that Spark waits for; then it is as if Spark had started it."""


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
        python, caller = shlex.quote(sys.executable), shlex.quote(_CALLER)
        return str(made_program("python", _WRAPPER.format(archives=archives, python=python, caller=caller), environ))
    except SparkUnavailable:
        return sys.executable


def _folder_of(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent
