"""What earlier slices of a run leave for later ones: a few handlings, and ranges of numbers instead of the rest.

Of a judged handling, nothing more is needed than that its number was handled, except in these cases:

- it ends after the slice does, so what comes may start inside it;
- its settlement may still turn out to have been too late, or in vain;
- a fault may have hidden it from the broker, so that it excuses a repeat; or it is a repeat itself;
- it started before a lower number was handled, so that this number will be late;
- it is the first, the last, or the last received of its tenure; or the last to end of its key;
- in a run with re-stripings, the judgement on it depends on later records.

So what is carried grows with keys, tenures, faults, repeats and gaps in numbers, not with the handlings.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lbg_runtime.validator.schema import CONFIRMED, DISPATCHES, UNCONFIRMED

KNOWN = 1
"""The handling was judged in an earlier slice."""
REPEAT = 2
"""It came after the first complete one of its message."""
FIRST = 4
"""It is the first complete one of its message."""
CHECKED = 8
"""Its settlement was compared with the end of its epoch."""
SUSPECT = 16
"""The judgement on it depends on later records."""
LATE = 32
"""It came after its time had been judged, and something of its key had been handled after it."""

Marks = npt.NDArray[np.uint8]

HANDLED = pa.schema(
    [
        pa.field("part", pa.int64(), nullable=False),
        pa.field("publisher", pa.string()),
        pa.field("key", pa.string()),
        pa.field("first_seq", pa.int64(), nullable=False),
        pa.field("last_seq", pa.int64(), nullable=False),
        pa.field("first_start_ns", pa.int64(), nullable=False),
        pa.field("last_start_ns", pa.int64(), nullable=False),
    ]
)
"""Numbers handled to an end, as ranges of maximal length, with the starts of the handlings at both ends."""

LISTED = pa.schema(
    [
        pa.field("publisher", pa.string()),
        pa.field("key", pa.string()),
        pa.field("first_seq", pa.int64(), nullable=False),
        pa.field("last_seq", pa.int64(), nullable=False),
    ]
)
"""Numbers that ledgers list as confirmed, from records whose numbers were all handled."""

KEY_SHARDS = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("shard", pa.int64(), nullable=False),
        pa.field("publisher", pa.string()),
        pa.field("seq", pa.int64(), nullable=False),
    ]
)
"""Distinct pairs of key and shard, each with the lowest number that shows it, of the first publisher by name."""


@dataclass(frozen=True, slots=True)
class Past:
    """What is carried from slice to slice; nothing if there is only one slice."""

    dispatches: pa.Table = field(default_factory=DISPATCHES.empty_table)
    marks: Marks = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    """Per dispatch, what is known of it."""
    handled: pa.Table = field(default_factory=HANDLED.empty_table)
    listed: pa.Table = field(default_factory=LISTED.empty_table)
    key_shards: pa.Table = field(default_factory=KEY_SHARDS.empty_table)
    confirmed: pa.Table = field(default_factory=CONFIRMED.empty_table)
    """Ledger records with a number that was not handled yet."""
    unconfirmed: pa.Table = field(default_factory=UNCONFIRMED.empty_table)


NO_PAST = Past()
