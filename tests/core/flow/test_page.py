from pathlib import Path

from lbg_runtime.core.flow.page import flow_page

PAGE = Path(__file__).parents[3] / "docs" / "flow-machine.md"


def test_the_page_in_docs_is_made_from_the_current_table() -> None:
    assert PAGE.read_text() == flow_page(), "the page says at its top how to write it anew"
