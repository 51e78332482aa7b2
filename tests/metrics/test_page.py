from pathlib import Path

from lbg_runtime.metrics.page import metrics_page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_in_docs_is_made_from_the_current_tables() -> None:
    assert PAGE.read_text() == metrics_page(), "the page says at its top how to write it anew"
