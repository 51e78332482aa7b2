"""Pages as a reader uses them: their blocks of code, their links."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}\S.*\n)+", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, from the top."""
    return [text for found, text in _FENCED.findall(page.read_text()) if found == language]


def indented_lines(page: Path) -> list[str]:
    """The lines of blocks that are set in by four spaces, without what a comment says of them."""
    text = _FENCED.sub("", page.read_text())
    return [command(line) for block in _INDENTED.findall(text) for line in block.splitlines()]


def command(line: str) -> str:
    """A line of a shell without its comment."""
    return line.partition("  #")[0].strip()


def links(page: Path) -> Iterator[str]:
    """Where a page leads to, but for other sites."""
    for target in _LINK.findall(_FENCED.sub("", page.read_text())):
        if not re.match(r"\w+:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(page.read_text())
    }
