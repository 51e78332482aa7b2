"""The pages that are made from the code, and their makers; a test keeps the files in docs/ current."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lbg_runtime.cli.reference.commands import commands_page
from lbg_runtime.cli.reference.settings import settings_page
from lbg_runtime.core.flow.page import flow_page
from lbg_runtime.metrics.page import metrics_page

PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": commands_page,
    "flow-machine.md": flow_page,
    "metrics.md": metrics_page,
    "settings.md": settings_page,
}
"""File name in docs/, and the function that makes its text."""


def write_pages(folder: Path) -> Iterator[Path]:
    """Write every page that is out of date, and yield its path. The folder must exist."""
    for name, make in PAGES.items():
        path, text = folder / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            yield path
