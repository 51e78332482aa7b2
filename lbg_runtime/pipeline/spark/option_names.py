"""Finds options that are misspelled or of another source, which would otherwise be ignored."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from lbg_runtime.model.errors import UserError

_LIKENESS = 0.8
"""Separates typing errors from Spark's own names; `checkpointLocation` resembles none of ours."""


def check_option_names(
    given: Iterable[str], known: Sequence[str], elsewhere: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise `UserError` for a name that is not one of ours but nearly is, or means one of ours `elsewhere`.

    Names are case-insensitive. Any other name is ignored: Spark passes its own along with ours.
    """
    ours = {name.lower(): name for name in known}
    theirs = {name.lower(): meant for name, meant in elsewhere.items()}
    for name in given:
        if name.lower() in ours:
            continue
        if name.lower() in theirs:
            raise UserError(f"option {name}", "not known", theirs[name.lower()])
        if meant := get_close_matches(name.lower(), ours, n=1, cutoff=_LIKENESS):
            raise UserError(f"option {name}", "not known", ours[meant[0]])
