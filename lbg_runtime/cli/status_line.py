"""A line on standard error that says what is going on, while it does."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def status_line(text: str) -> Iterator[Callable[[str], None]]:
    """Show this text while the context lasts, if standard error is a terminal; what is yielded replaces it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update
