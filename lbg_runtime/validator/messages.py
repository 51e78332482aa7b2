"""Handlings grouped into messages: which handling came first, which are repeats, which messages came late."""

from dataclasses import dataclass

import numpy as np

from lbg_runtime.validator.columns import Handlings
from lbg_runtime.validator.segments import FAR_PAST, Flags, Ints, changes, dense, running_max


@dataclass(frozen=True, slots=True)
class Messages:
    """One row per distinct numbered message of a part, sorted by part, publisher, key, number.

    Handlings of a message are sorted by start. The part (nearly always: the queue) belongs to the identity: a message
    that reached two parts is a finding of its own, and the same records then give the same result part by part.
    """

    sequence: Ints
    """Code of part, publisher and key: the order domain."""
    seq: Ints
    started: Ints
    """The handling that started first."""
    handled: Ints
    """The first handling that was accepted or rejected; -1 where none was."""
    repeats: Ints
    """Handlings that came after the first accepted or rejected one of their message, one entry each."""
    before_repeat: Ints
    """Per repeat, the handling of the message right before it on its queue; one on another queue where there is none.
    """
    came_back: Flags
    """Per repeat, whether `before_repeat` is on its queue. Else a second copy was handled: there a shard moved."""


def group_messages(handlings: Handlings) -> Messages:
    """Sort the numbered handlings into messages; the one large sort of an examination."""
    rows = np.flatnonzero(handlings.numbered)
    sequence = dense(handlings.part[rows], handlings.publisher[rows], handlings.key[rows])
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
    before, came_back = _before_repeats(handlings.queue[rows], message, first_complete, repeat)
    return Messages(
        sequence=sequence[first],
        seq=seq[first],
        started=rows[first],
        handled=handled,
        repeats=rows[repeat],
        before_repeat=rows[before],
        came_back=came_back,
    )


def _before_repeats(queue: Ints, message: Ints, first_complete: Ints, repeats: Ints) -> tuple[Ints, Flags]:
    """Per repeat, the last handling of its message before it, from the first complete one on; if one is there, on its
    queue. And whether it is on its queue.

    Arguments and result are positions in the order of messages.
    """
    before = repeats - 1
    came_back: Flags = queue[before] == queue[repeats]
    other = np.flatnonzero(~came_back)
    if len(other):
        # Only messages that came through two queues are looked at again.
        wanted = np.zeros(len(first_complete), dtype=np.bool_)
        wanted[message[repeats[other]]] = True
        rows = np.flatnonzero(wanted[message])
        rows = rows[rows >= first_complete[message[rows]]]
        rows = rows[np.lexsort((rows, queue[rows], message[rows]))]
        follows = ~changes(message[rows], queue[rows])
        previous = np.full(len(queue), -1, dtype=np.int64)
        previous[rows[1:][follows[1:]]] = rows[:-1][follows[1:]]
        found = previous[repeats[other]]
        came_back[other] = found >= 0
        before[other] = np.where(found >= 0, found, before[other])
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
