"""Tables for people, in which nothing is cut."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_LEAST_OF_NAME = 8
"""The fewest characters in a line of a name that is folded."""


def print_table(table: "Table") -> None:
    """Print a table to standard output, as wide as it needs if that is not a terminal, and in a narrow terminal with
    names in several lines: nothing is cut."""
    from rich.cells import cell_len
    from rich.console import Console

    # Names are plain text, whatever brackets they contain.
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # A file or a pipe has no width to which a name should be cut.
        console.width = 1_000
    for column in table.columns:
        # The index of a queue is at the end of its name, and a part of a number would be read as another one.
        column.overflow = "fold"
        longest = max((cell_len(word) for cell in column.cells for word in str(cell).split()), default=0)
        column.min_width = longest if column.justify == "right" else min(longest, _LEAST_OF_NAME)
    console.print(table, crop=False)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of the same length as lines of text, without borders: the first column to the left, the others to the
    right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if position else cell.ljust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
