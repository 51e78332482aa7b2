"""Whoever has a type checker: it objects to nothing in right programs, those of the docs among them, and to each fault
in wrong ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, blocks
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

PROGRAMS = Path(__file__).parent / "typed_users"

# What a user of mypy has who is strict, and what the docs ask for: their examples are shorter without every annotation.
CONFIG = """
[mypy]
strict = True
follow_imports = silent

[mypy-solace.*]
ignore_missing_imports = True

[mypy-examples.*]
disallow_untyped_defs = False
disallow_incomplete_defs = False
disallow_untyped_calls = False
"""


def test_type_checkers_accept_right_programs_and_find_the_faults_of_wrong_ones(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(CONFIG)
    examples = tmp_path / "examples"
    examples.mkdir()
    (examples / "__init__.py").touch()
    for page in DOCS.glob("*.md"):
        # Those of metrics.md are lines of a program, and no programs.
        if page.stem != "metrics" and (found := blocks(page, "python")):
            (examples / f"{page.stem}.py").write_text("\n\n".join(found))
    assert {each.stem for each in examples.iterdir()} >= {"handlers", "publishing", "testing"}
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "examples", str(PROGRAMS)]
    # With a cache of its own, as what one Python wrote is of no use to another.
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache")],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
