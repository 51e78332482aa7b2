"""Handlings grouped into messages: which handling came first, which are repeats, which messages came late."""

from dataclasses import dataclass

import numpy as np

from lbg_runtime.validator.columns import Handlings
from lbg_runtime.validator.segments import FAR_PAST, Ints, changes, dense, running_max


@dataclass(frozen=True, slots=True)
class Messages:
    """One row per distinct numbered message of a queue, sorted by queue, publisher, key, number.

    Handlings of a message are sorted by start. The queue is part of the identity: a message that reached two queues is
    a finding of its own, and the same records then give the same result one queue at a time.
    """

    sequence: Ints
    """Code of queue, publisher and key: the order domain."""
    seq: Ints
    started: Ints
    """The handling that started first."""
    handled: Ints
    """The first handling that was accepted or rejected; -1 where none was."""
    repeats: Ints
    """Handlings that came after the first accepted or rejected one of their message, one entry each."""
    before_repeat: Ints
    """Per repeat, the handling of the message right before it."""


def group_messages(handlings: Handlings) -> Messages:
    """Sort the numbered handlings into messages; the one large sort of an examination."""
    rows = np.flatnonzero(handlings.numbered)
    sequence = dense(handlings.queue[rows], handlings.publisher[rows], handlings.key[rows])
    seq, start, done = handlings.seq[rows], handlings.start_ns[rows], handlings.done_ns[rows]
    order = np.lexsort((done, start, seq, sequence))
    rows, sequence, seq = rows[order], sequence[order], seq[order]

    begins = changes(sequence, seq)
    message = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    position = np.arange(len(rows))
    complete = handlings.complete[rows]
    first_complete = np.full(len(first), len(rows), dtype=np.int64)
    done_message, done_position = np.unique(message[complete], return_index=True)
    first_complete[done_message] = position[complete][done_position]
    repeat = np.flatnonzero(position > first_complete[message]) if len(rows) else position
    handled = np.full(len(first), -1, dtype=np.int64)
    handled[done_message] = rows[first_complete[done_message]]
    return Messages(
        sequence=sequence[first],
        seq=seq[first],
        started=rows[first],
        handled=handled,
        repeats=rows[repeat],
        before_repeat=rows[repeat - 1],
    )


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
