"""The examples of docs/handlers.md are a module of handlers and its tests, and pass as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_time

PAGE = Path(__file__).parents[3] / "docs" / "handlers.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_examples_pass(tmp_path: Path) -> None:
    examples = "\n\n".join(BLOCK.findall(PAGE.read_text()))
    (tmp_path / "test_examples.py").write_text(examples)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{examples.count('def test_')} passed" in done.stdout
