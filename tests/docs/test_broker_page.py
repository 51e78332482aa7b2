"""The table of behaviours names tests that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_names_tests_that_exist():
    page = (ROOT / "docs/broker.md").read_text()
    table = page.partition("| behaviour | test |")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", sources))
    assert len(rows) > 25
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named or "patterns.md" in row, row
        assert named <= defined, named - defined
