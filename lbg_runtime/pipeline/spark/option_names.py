"""Options that nobody asks for, because they are spelled in another way."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from lbg_runtime.model.errors import UserError

_LIKENESS = 0.8
"""Between a slip and a name of Spark's own; `checkpointLocation` is like none of ours."""


def check_option_names(given: Iterable[str], known: Sequence[str]) -> None:
    """Raise `UserError` for a name that is none of ours and nearly one of them.

    Names are case-insensitive. Any other is left alone: Spark passes its own along with ours.
    """
    ours = {name.lower(): name for name in known}
    for name in given:
        if name.lower() in ours:
            continue
        if meant := get_close_matches(name.lower(), ours, n=1, cutoff=_LIKENESS):
            raise UserError(f"option {name}", "not known", ours[meant[0]])
