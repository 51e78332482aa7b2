"""Rows of the tables in pages."""


def as_row(*cells: str) -> str:
    """One row; whatever would end a cell early is escaped, and an empty cell has one space."""
    return "|" + "|".join(f" {cell} " if cell else " " for cell in (each.replace("|", "\\|") for each in cells)) + "|"
