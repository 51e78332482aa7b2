"""The Python examples of a page are one module, tests included, which passes as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


def test_the_examples_pass(tmp_path: Path) -> None:
    count = 0
    for page in ("testing", "handlers"):
        examples = "\n\n".join(blocks(DOCS / f"{page}.md", "python"))
        (tmp_path / f"test_{page}.py").write_text(examples)
        count += examples.count("def test_")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    # One process for both, and without a plugin that they do not use: they take longer to start than the examples, on a
    # machine that many others keep busy two minutes.
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout
