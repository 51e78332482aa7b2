"""The Dockerfile, as far as it can be judged without an engine."""

import os
import re
import subprocess
import sys
from fnmatch import fnmatch

import pytest
import yaml

from lbg_runtime.config.load import parse_settings
from lbg_runtime.runtime.shutdown import EXIT_GRACE_S, TAIL_MS
from tests.docker.files import DOCKER, KUBERNETES, LBG, PYTHON, ROOT, in_exec_form, instructions, words
from tests.patience import PATIENCE_S

LEAVES_WITHIN_S = 2 * TAIL_MS / 1_000 + EXIT_GRACE_S
"""After the drain timeout."""


def given(word: str) -> list[str]:
    return [arguments for name, arguments in instructions() if name == word]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    return found[max(place for place, (word, _) in enumerate(found) if word == "FROM") :]


def test_it_is_made_in_stages_from_short_names_of_one_version() -> None:
    stages = [arguments.split() for arguments in given("FROM")]
    assert [stage[0] for stage in stages] == ["python:${PYTHON}", "python:${PYTHON}-slim"]
    name, _, version = given("ARG")[0].partition("=")
    needed = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert needed
    assert (name, version) == ("PYTHON", f"3.{needed[1]}"), "what CI runs on"
    assert not [rest for word, rest in last_stage() if word == "RUN" and ("pip" in rest or "apt" in rest)]


def test_it_has_the_dependencies_as_they_are_pinned_and_no_build_tools() -> None:
    (build,) = [arguments for arguments in given("RUN") if "pip install" in arguments]
    install, _, rest = build.partition("&&")
    assert words(install)[-3:] == ["-c", "constraints.txt", ".${EXTRAS}"]
    before = instructions()[: instructions().index(("RUN", build))]
    assert before.index(("ARG", "EXTRAS=")) > before.index(("FROM", "python:${PYTHON} AS build")), "else it is not seen"
    assert words(rest) == ["/opt/lbg/bin/pip", "uninstall", "--yes", "pip", "setuptools"]


def test_the_parts_in_c_are_in_it() -> None:
    (checked,) = [arguments for arguments in given("RUN") if "import" in arguments]
    modules = {path.stem for path in (ROOT / "lbg_runtime/transport/solace/fast").glob("_*.c")}
    assert set(re.findall(r"\b_\w+", checked)) == modules
    python, isolated, option, code = words(checked)
    assert (python, isolated, option) == (PYTHON, "-I", "-c"), "the sources beside it are not what was installed"
    # As they are here, where there is a compiler too.
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE_S, check=True)


def test_it_runs_as_nobody_and_writes_nowhere() -> None:
    (user,) = given("USER")
    assert all(part.isdecimal() and int(part) > 0 for part in user.split(":"))
    environment = dict(pair.split("=", 1) for pair in given("ENV")[0].split())
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert not [name for name in environment if any(sign in name for sign in ("PASSWORD", "TOKEN", "SECRET"))]
    assert not given("VOLUME")


def test_signals_go_straight_to_the_command() -> None:
    assert in_exec_form(given("ENTRYPOINT")[0]) == [LBG]
    assert in_exec_form(given("CMD")[0]) == ["run", "--config", "config.yaml"]
    assert given("STOPSIGNAL") == ["SIGTERM"]
    (health,) = given("HEALTHCHECK")
    command = in_exec_form(health.partition("CMD ")[2])
    assert command[:3] == [PYTHON, "-m", "lbg_runtime.status.probe"]
    # What the settings in the image say.
    settings = parse_settings(yaml.safe_load((DOCKER / "config.yaml").read_text()), "docker/config.yaml", {})
    assert command[3] == f"http://{settings.ops.status}/livez"
    assert "docker/config.yaml ./" in given("COPY")


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored, kept = [], []
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            (kept if line.startswith("!") else ignored).append(line.lstrip("!"))
    assert ignored[0] == "*"
    sources = [word for arguments in given("COPY") for word in arguments.split()[:-1] if "--from" not in arguments]
    for source in sources:
        name = source.removeprefix("./")
        assert (ROOT / name).exists()
        assert name in kept, f"{name} does not come to the engine"
    secrets = ("runs", ".git", ".env", "docker/.env", "shared")
    assert not [name for name in secrets if any(fnmatch(name, pattern) for pattern in kept)]


@pytest.mark.parametrize("path", [DOCKER / "config.yaml", KUBERNETES / "config.yaml"], ids=["compose", "kubernetes"])
def test_the_settings_are_valid_and_the_comment_on_the_time_to_leave_is_right(path, tmp_path) -> None:
    for name in ("password", "status-token"):
        (tmp_path / name).write_text("for-tests-only\n")
    settings = parse_settings(yaml.safe_load(path.read_text()), str(path), {"LBG_SECRETS": str(tmp_path)})
    assert settings.rebind.drain_timeout_ms == 30_000
    assert LEAVES_WITHIN_S == 25, "comments in docker/ and docs/containers.md say so"


def test_the_first_process_of_a_container_can_be_stopped_while_it_starts() -> None:
    stopped = (
        "import os, signal; os.getpid = lambda: 1; from lbg_runtime.cli import main;"
        "main.command_line = lambda *_: lambda **_: signal.raise_signal(signal.SIGTERM); main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", stopped], timeout=PATIENCE_S, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (143, "")


@pytest.mark.parametrize("command", ["run", "check"])
def test_the_first_process_of_a_container_can_be_stopped_while_it_imports_handlers(command, tmp_path) -> None:
    """It said that their module could not be imported, with the exit code of a user's mistake."""
    (tmp_path / "work.py").write_text("import signal\nsignal.raise_signal(signal.SIGTERM)\n")
    group = "{name: g, hash_prefix: h, hash_count: 1, queue_count: 1}"
    (tmp_path / "config.yaml").write_text(f"group: {group}\nhandlers: [work]\n")
    stopped = "import os; os.getpid = lambda: 1; from lbg_runtime.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", stopped, command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (143, "")
