"""Finds misspelled options, which would otherwise be ignored."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from lbg_runtime.model.errors import UserError

_LIKENESS = 0.8
"""Separates typing errors from Spark's own names; `checkpointLocation` resembles none of ours."""


def check_option_names(given: Iterable[str], known: Sequence[str]) -> None:
    """Raise `UserError` for a name that is not one of ours but nearly is.

    Names are case-insensitive. Any other name is ignored: Spark passes its own along with ours.
    """
    ours = {name.lower(): name for name in known}
    for name in given:
        if name.lower() in ours:
            continue
        if meant := get_close_matches(name.lower(), ours, n=1, cutoff=_LIKENESS):
            raise UserError(f"option {name}", "not known", ours[meant[0]])
