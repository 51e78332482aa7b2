"""What `lbg spark doctor` checks: whether Spark can run here, and the one line that supplies what is missing."""

import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lbg_runtime.model.errors import SparkUnavailable
from lbg_runtime.pipeline.spark.java import INSTALL_LINE, find_java
from lbg_runtime.pipeline.spark.session import MASTER_VARIABLE, find_master


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a Spark job of ours needs."""

    what: str
    fine: bool
    found: str
    remedy: str | None = None
    """The line that fixes it, if it is not fine."""
    needed: bool = True
    """Nothing runs without it; if False, only what `what` names does not."""


@dataclass(frozen=True, slots=True)
class _Package:
    name: str
    oldest: tuple[int, ...]
    before: tuple[int, ...] | None
    needed: bool
    why: str


_PACKAGES = (
    _Package("pyspark", (4, 2), (4, 4), needed=True, why="Spark"),
    _Package("pyarrow", (19, 0, 1), None, needed=True, why="rows between Spark and Python"),
    _Package("pandas", (2, 2, 3), (3,), needed=True, why="rows between Spark and Python"),
    _Package("protobuf", (6, 33, 5), None, needed=False, why="transformWithState"),
    _Package("deltalake", (1, 6, 6), None, needed=False, why="delta:"),
)


def examine(environ: Mapping[str, str] = os.environ) -> tuple[Finding, ...]:
    """All findings; starts a Java to ask for its version and modules, but not Spark."""
    return tuple(_findings(environ))


def _findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    for package in _PACKAGES:
        yield _look_for(package)
    try:
        if master := find_master(environ):
            yield Finding("master", fine=True, found=f"{master}, from {MASTER_VARIABLE}")
    except SparkUnavailable as error:
        yield Finding("master", fine=False, found=error.missing, remedy=error.remedy)
    try:
        search = find_java(environ)
    except SparkUnavailable as error:
        yield Finding("java", fine=False, found=error.missing, remedy=error.remedy)
        return
    java = search.java
    wrapper = "" if java.home == java.real_home else f", through {java.home}"
    over = f" (passed over: {'; '.join(search.passed_over)})" if search.passed_over else ""
    yield Finding(
        "java", fine=True, found=f"{java.version} in {java.real_home}, from {java.source.value}{wrapper}{over}"
    )


def _look_for(package: _Package) -> Finding:
    what = f"{package.name} ({package.why})"
    try:
        version = importlib.metadata.version(package.name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(what, fine=False, found="not installed", remedy=INSTALL_LINE, needed=package.needed)
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    fits = number >= package.oldest and (package.before is None or number < package.before)
    return Finding(what, fits, version, None if fits else INSTALL_LINE, package.needed)
