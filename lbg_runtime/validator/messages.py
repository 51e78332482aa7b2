"""Handlings grouped into messages: which handling came first, which are repeats, which messages came late."""

from dataclasses import dataclass

import numpy as np

from lbg_runtime.validator.columns import Handlings, Ranges
from lbg_runtime.validator.past import FIRST, KNOWN, LATE, REPEAT
from lbg_runtime.validator.segments import (
    FAR_PAST,
    Flags,
    Ints,
    changes,
    dense,
    joined_ranges,
    positions_in_ranges,
    running_max,
)


@dataclass(frozen=True, slots=True)
class Messages:
    """One row per distinct numbered message of a part, sorted by part, publisher, key, number.

    Handlings of a message are sorted by start. The part (nearly always: the queue) is part of a message's identity: a
    message that reached two parts is a finding of its own, and so the same records give the same result part by part.
    """

    sequence: Ints
    """Code of part, publisher and key: the order domain."""
    seq: Ints
    started: Ints
    """The handling that started first."""
    handled: Ints
    """The first handling that was accepted or rejected; -1 if none was."""
    repeats: Ints
    """Handlings that came after the first accepted or rejected one of their message, one entry each."""
    before_repeat: Ints
    """Per repeat, the handling of the message right before it on its queue; if there is none, one on another queue; -1
    if that was finally settled in an earlier slice and is forgotten."""
    came_back: Flags
    """Per repeat, whether `before_repeat` is on its queue. Otherwise a second copy was handled, where a shard moved."""


def group_messages(handlings: Handlings, past: Ranges | None = None) -> Messages:
    """Sort the numbered handlings into messages; the one large sort of an examination.

    `past` is what was handled to an end in earlier slices: a new handling of that is a repeat.
    """
    rows = np.flatnonzero(handlings.numbered)
    columns = [handlings.part[rows], handlings.publisher[rows], handlings.key[rows]]
    if past is not None and len(past.part):
        carried = (past.part, past.publisher, past.key)
        sequence = dense(*(np.concatenate(pair) for pair in zip(columns, carried, strict=True)))
        sequence, of_past = np.split(sequence, [len(rows)])
    else:
        sequence, of_past = dense(*columns), np.zeros(0, dtype=np.int64)
    seq, start, done = handlings.seq[rows], handlings.start_ns[rows], handlings.done_ns[rows]
    order = np.lexsort((done, start, seq, sequence))
    if not changes(sequence[order], seq[order], start[order], done[order]).all():
        # Which of two equal ones counts as the first must not depend on the order in which they were read.
        others = (handlings.complete, handlings.redelivered, handlings.settle_ns, handlings.bind_epoch)
        ties = [column[rows] for column in (*others, handlings.queue, handlings.journal)]
        order = np.lexsort((*ties, done, start, seq, sequence))
    rows, sequence, seq = rows[order], sequence[order], seq[order]

    begins = changes(sequence, seq)
    message = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    position = np.arange(len(rows))
    complete = handlings.complete[rows]
    first_complete = np.full(len(first), len(rows), dtype=np.int64)
    handled = np.full(len(first), -1, dtype=np.int64)
    marks = handlings.marks[rows]
    is_old = marks & KNOWN != 0
    if past is not None and len(of_past):
        in_order = np.lexsort((past.first_seq, of_past))
        ranges = (of_past[in_order], past.first_seq[in_order], past.last_seq[in_order])
        was_handled = positions_in_ranges(ranges, sequence[first], seq[first]) >= 0
        # The first complete one is long gone, or marked.
        first_complete[was_handled] = first[was_handled] - 1
        complete = complete & ~was_handled[message]
        found = np.flatnonzero(marks & FIRST)
        first_complete[message[found]] = found
        handled[message[found]] = rows[found]
    done_message, done_position = np.unique(message[complete], return_index=True)
    first_complete[done_message] = position[complete][done_position]
    handled[done_message] = rows[first_complete[done_message]]
    is_forgotten = first_complete < first
    is_repeat = ~is_old & (position > first_complete[message])
    # If one came too late, it can no longer be known whether it is a repeat or what was taken for the first one is.
    is_repeat &= (marks & LATE == 0) | ~is_forgotten[message]
    repeat = np.flatnonzero(is_repeat | (marks & REPEAT != 0))
    counts = (position >= first_complete[message]) & (~is_old | (marks & (FIRST | REPEAT) != 0))
    before, came_back = _before_repeats(handlings.queue[rows], message, counts, is_forgotten, repeat)
    return Messages(
        sequence=sequence[first],
        seq=seq[first],
        started=rows[first],
        handled=handled,
        repeats=rows[repeat],
        before_repeat=np.where(before >= 0, rows[before], -1),
        came_back=came_back,
    )


def _before_repeats(
    queue: Ints, message: Ints, counts: Flags, is_forgotten: Flags, repeats: Ints
) -> tuple[Ints, Flags]:
    """Per repeat, the last handling of its message before it, from the first complete one on (`counts`), on its own
    queue if there is one; and whether it is on that queue. `is_forgotten` marks the messages whose first complete
    handling is forgotten.

    The other arguments and the result are positions in the order of messages.
    """
    before = repeats - 1
    is_own = counts[before] & (message[before] == message[repeats])
    came_back: Flags = is_own & (queue[before] == queue[repeats])
    other = np.flatnonzero(~came_back)
    if len(other):
        # Only messages that came through two queues, or whose first handling is forgotten, are examined again.
        wanted = np.zeros(len(is_forgotten), dtype=np.bool_)
        wanted[message[repeats[other]]] = True
        rows = np.flatnonzero(wanted[message] & counts)
        rows = rows[np.lexsort((rows, queue[rows], message[rows]))]
        follows = ~changes(message[rows], queue[rows])
        previous = np.full(len(queue), -1, dtype=np.int64)
        previous[rows[1:][follows[1:]]] = rows[:-1][follows[1:]]
        found = previous[repeats[other]]
        came_back[other] = found >= 0
        elsewhere = np.where(is_own[other] & ~is_forgotten[message[repeats[other]]], before[other], -1)
        before[other] = np.where(found >= 0, found, elsewhere)
    return before, came_back


def late_messages(messages: Messages, handlings: Handlings) -> tuple[Ints, Ints]:
    """Order law: (handling of the late message, handling of a later-numbered one that started before it).

    A message is late when its first accepted or rejected handling starts after any handling of a message with a higher
    number has started. One pair per late message, with the earliest such start.
    """
    started_ns = handlings.start_ns[messages.started]
    handled_ns = np.where(messages.handled >= 0, handlings.start_ns[messages.handled], FAR_PAST)
    # If the law is broken anywhere in a sequence, it is broken between neighbours. Usually it is broken nowhere.
    suspicious = ~changes(messages.sequence)
    suspicious[1:] &= np.maximum(handled_ns, started_ns)[:-1] > started_ns[1:]
    # Backwards, so that "so far" means the messages with higher numbers.
    rows = np.flatnonzero(np.isin(messages.sequence, messages.sequence[suspicious]))[::-1]
    sequence = messages.sequence[rows]
    earliest = running_max(sequence, -started_ns[rows])
    has_higher = np.flatnonzero(~changes(sequence))
    hit = handled_ns[rows[has_higher]] > started_ns[rows[earliest[has_higher - 1]]]
    late = rows[has_higher[hit]]
    ahead = rows[earliest[has_higher[hit] - 1]]
    return messages.handled[late], messages.started[ahead]


def handled_ranges(messages: Messages, handlings: Handlings, past: Ranges) -> Ranges:
    """What has been handled to an end by now: `past`, and what is new in these messages."""
    rows = messages.handled[messages.handled >= 0]
    rows = rows[handlings.new[rows]]
    of_rows = (handlings.part, handlings.publisher, handlings.key, handlings.seq, handlings.seq)
    starts = handlings.start_ns[rows]
    columns = [column[rows] for column in of_rows] + [starts, starts]
    if len(past.part):
        numbers = (past.first_seq, past.last_seq, past.first_start_ns, past.last_start_ns)
        before = (past.part, past.publisher, past.key, *numbers)
        columns = [np.concatenate(pair) for pair in zip(before, columns, strict=True)]
    sequence = dense(*columns[:3])
    # New rows come sorted.
    order = np.lexsort((columns[3], sequence)) if len(past.part) else np.arange(len(sequence))
    part, publisher, key, first, last, first_start, last_start = (column[order] for column in columns)
    begin, end = joined_ranges(sequence[order], first, last)
    return Ranges(
        part[begin], publisher[begin], key[begin], first[begin], last[end], first_start[begin], last_start[end]
    )


def overtaking_rows(messages: Messages, handlings: Handlings, handled: Ranges) -> Ints:
    """Handlings that will show that a message is late: they started while a lower number was not yet handled.

    Of several, the earliest counts, as in `late_messages`; numbers below the first one seen count as open.
    """
    started_ns = handlings.start_ns[messages.started]
    order = np.lexsort((messages.seq, started_ns, messages.sequence))
    sequence, seq = messages.sequence[order], messages.seq[order]
    highest = seq[running_max(sequence, seq)]
    is_first = changes(sequence)
    before = np.concatenate([highest[:1], highest[:-1]])
    step = np.flatnonzero(is_first | (seq > before))
    row = messages.started[order[step]]
    columns = [column[row] for column in (handlings.part, handlings.publisher, handlings.key)]
    of_handled = (handled.part, handled.publisher, handled.key)
    group = dense(*(np.concatenate(pair) for pair in zip(of_handled, columns, strict=True)))
    in_order = np.lexsort((handled.first_seq, group[: len(handled.part)]))
    ranges = (group[in_order], handled.first_seq[in_order], handled.last_seq[in_order])
    group = group[len(handled.part) :]
    lowest, highest = (
        positions_in_ranges(ranges, group, before[step]),
        positions_in_ranges(ranges, group, seq[step] - 1),
    )
    is_open = is_first[step] | (lowest != highest) | (lowest < 0)
    overtaking: Ints = row[is_open]
    return overtaking
