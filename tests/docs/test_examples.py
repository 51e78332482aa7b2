"""The Python examples of a page are one module, tests included, which passes as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize("page", ["testing.md", "handlers.md"])
def test_the_examples_pass(page: str, tmp_path: Path) -> None:
    examples = "\n\n".join(blocks(DOCS / page, "python"))
    (tmp_path / "test_examples.py").write_text(examples)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{examples.count('def test_')} passed" in done.stdout
