"""The messages of one queue: which wait, which a client holds, and in what order they go out."""

from collections.abc import Callable, Hashable, Iterable, Iterator

from lbg_runtime.broker.engine.changes import QueueJournal
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.lines.parts import Part, Parts
from lbg_runtime.broker.engine.waiting import MessageState, SpooledMessage, Waiting
from lbg_runtime.model.errors import InvariantViolated

# Looked up once: before Python 3.12, accessing an enum member costs as much as calling a function.
_WAITING, _UNACKED, _GONE = MessageState.WAITING, MessageState.UNACKED, MessageState.GONE


class Spool:
    """Keeps every message from `add` to `remove`, and hands the waiting ones out by sequence. Called only by its queue.

    Where a queue begins or ceases to rank or to divide, all that waits is listed as returned: what comes back may
    belong behind it. A queue whose messages belong to parts has an order in each of its parts instead, and `take`
    instead of `take_next`.
    """

    def __init__(self, journal: QueueJournal | None = None) -> None:
        self._journal = journal
        self.spooled_bytes = 0
        self.unacked_count = 0
        self.last_sequence = 0
        self.on_return: Callable[[int], None] = lambda _: None
        """Called with the place of each message that has come back."""
        self._messages: dict[int, SpooledMessage] = {}
        self._waiting = Waiting()
        self._parts: Parts | None = None
        self._rank_of: Callable[[Published], int] | None = None

    @property
    def depth(self) -> int:
        """Messages spooled, unacknowledged ones included."""
        return len(self._messages)

    @property
    def first_sequence(self) -> int:
        """The place of the first spooled message, or of the next one to come if the spool is empty."""
        return next(iter(self._messages), self.last_sequence + 1)

    @property
    def waiting_count(self) -> int:
        """Messages that could be handed out now."""
        return len(self._messages) - self.unacked_count

    def add(self, message: Published) -> SpooledMessage:
        sequence = self.last_sequence + 1
        self.last_sequence = sequence
        spooled = self._messages[sequence] = SpooledMessage(sequence, message)
        if self._parts is not None:
            self._parts.added(spooled)
        elif self._rank_of is None:
            self._waiting.append(spooled)
        else:
            spooled.rank = self._rank_of(message)
            self._waiting.insert(spooled)
        self.spooled_bytes += message.size_bytes
        if self._journal is not None:
            self._journal.kept(sequence, message)
        return spooled

    def restore(self, sequence: int, message: Published) -> SpooledMessage:
        """Append a message in the place that it had in an earlier life of the broker, after all that are here."""
        self.last_sequence = sequence - 1
        return self.add(message)

    def skip_to(self, sequence: int) -> None:
        """Give no message a place up to this one: it has been given in an earlier life of the broker."""
        self.last_sequence = max(self.last_sequence, sequence)

    def at(self, sequence: int) -> SpooledMessage | None:
        """The message in a place, if there is one."""
        return self._messages.get(sequence)

    def take_next(self, count: int) -> list[SpooledMessage]:
        """Hand out the first `count` waiting messages, in order; there must be that many."""
        if count > self.waiting_count:
            raise InvariantViolated(f"{self.waiting_count} messages wait in the spool, not {count}")
        self.unacked_count += count
        return self._waiting.take(count)

    def rank_by(self, rank_of: Callable[[Published], int] | None) -> None:
        """Hand out messages of lower rank first or, with None, do not rank; not for messages that belong to parts."""
        before, self._rank_of = self._rank_of, rank_of
        if self._parts is None and (before is not None or rank_of is not None):
            self._list_anew()

    def divide(self, part_of: Callable[[Published], Hashable]) -> Parts:
        """Divide the messages into parts; the result tells which parts have waiting ones."""
        self._waiting.clear()
        self._parts = Parts(part_of, self._messages.values())
        return self._parts

    def undivide(self) -> None:
        """Undo `divide`, if it was called."""
        if self._parts is None:
            return
        self._parts = None
        self._list_anew()

    def take(self, part: Part) -> SpooledMessage:
        """Hand out the first waiting message of a part; there must be one."""
        message = part.first
        if message is None:
            raise InvariantViolated(f"no message of part {part.key} waits in the spool")
        part.unlist_first()
        self.hold(message)
        return message

    def hold(self, message: SpooledMessage) -> None:
        """Count a waiting message as handed out although it was not just sent: its client has it already."""
        if message.state is not _WAITING:
            raise InvariantViolated(f"message {message.sequence} is {message.state.value}, not waiting")
        message.state = _UNACKED
        self.unacked_count += 1
        if self._parts is not None:
            self._parts.handed_out(message)

    def give_back(self, message: SpooledMessage) -> None:
        """Note that no client holds a message any more, for a later life of the broker too; no effect if it is gone."""
        if self._journal is not None and not message.is_gone:
            self._journal.given_back(message)

    def put_back(self, message: SpooledMessage) -> None:
        """Let a handed-out message wait again in its old place; no effect if it is gone or waits already."""
        if message.state is not _UNACKED:
            return
        message.state = _WAITING
        self.unacked_count -= 1
        self.on_return(message.sequence)
        if self._parts is not None:
            self._parts.came_back(message)
        # An entry from before `hold` is valid again: the place has not changed.
        elif not message.is_listed:
            self._waiting.insert(message)

    def remove(self, messages: Iterable[SpooledMessage]) -> None:
        """Remove messages permanently, wherever they are; no effect for those already gone."""
        gone = []
        for message in messages:
            state = message.state
            if state is _GONE:
                continue
            if state is _UNACKED:
                self.unacked_count -= 1
            message.state = _GONE
            del self._messages[message.sequence]
            self.spooled_bytes -= message.message.size_bytes
            gone.append(message.sequence)
            if self._parts is not None:
                self._parts.removed(message, was_waiting=state is _WAITING)
            elif message.is_listed:
                # A waiting one, taken by a browser or a remembered flow.
                self._waiting.compact(len(self._messages))
        if self._journal is not None and gone:
            self._journal.gone(gone)

    def next_from(self, sequence: int) -> SpooledMessage | None:
        """The first message at or after a place, waiting or not.

        Looks at place after place, so a browser that walks the queue pays one look per message; if more of them are
        empty than there are messages, at the messages.
        """
        places = range(sequence, self.last_sequence + 1)
        for place in places[: self.depth]:
            message = self._messages.get(place)
            if message is not None:
                return message
        if len(places) <= self.depth:
            return None
        return next((message for place, message in self._messages.items() if place >= sequence), None)

    def messages_behind(self, sequence: int) -> Iterator[SpooledMessage]:
        """Every message behind a place, waiting or not, by sequence; found one by one."""
        while (message := self.next_from(sequence + 1)) is not None:
            yield message
            sequence = message.sequence

    def messages(self) -> tuple[SpooledMessage, ...]:
        """Every spooled message, waiting or not, by sequence."""
        return tuple(self._messages.values())

    def _list_anew(self) -> None:
        rank_of = self._rank_of
        self._waiting.clear()
        for message in self._messages.values():
            message.part, message.rank = None, 0 if rank_of is None else rank_of(message.message)
            message.is_listed = False
            if message.is_waiting:
                self._waiting.insert(message)
