"""The pages that are made from the code are current, and say something of everything."""

from pathlib import Path

import pytest

from lbg_runtime.cli.reference.pages import PAGES, write_pages

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_in_docs_is_made_from_the_current_code(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "make docs"


@pytest.mark.parametrize("name", ["cli.md", "settings.md"])
def test_nothing_is_without_a_meaning(name: str) -> None:
    rows = [line for line in PAGES[name]().splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("| |")] == []


def test_only_what_is_not_current_is_written(tmp_path: Path) -> None:
    assert {path.name for path in write_pages(tmp_path)} == set(PAGES)
    (tmp_path / "cli.md").write_text("old")
    assert [path.name for path in write_pages(tmp_path)] == ["cli.md"]
    assert (tmp_path / "cli.md").read_text() == PAGES["cli.md"]()
