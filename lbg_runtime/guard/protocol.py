"""What every guard guarantees; there is an adapter for each kind of store that can hold the effect.

The mark of a key is the largest number of a fencing token whose effect is in the store. It is written in the
transaction of the effect, so there is never one without the other. The members handle and settle the messages of a key
in the order of their numbers (laws L2, L3). So if a message is at or below the mark, its effect is in the store: the
message has come again, or a former owner of the queue still holds it while the next owner is further on.
"""

from typing import Protocol, TypeVar

from lbg_runtime.model.errors import BatchCutShort, LbgError
from lbg_runtime.model.message import FencingToken, Message
from lbg_runtime.model.unrun import is_unrun

Effect = TypeVar("Effect", contravariant=True)
"""A function that the adapter calls with its transaction; sync or async depending on the adapter."""


class Guard(Protocol[Effect]):
    """Used by handlers, for any number of messages at the same time; covers all members that share store and scope.

    Every adapter has a `scope`: a name for the effect. Each group, or each kind of effect if a group has several in one
    store, needs its own name, the same on all members. Marks are kept by scope, key and publisher; not by queue, as a
    key keeps its numbers when it moves to another queue.
    """

    async def once(self, message: Message, effect: Effect) -> bool:
        """Write the effect and the mark together; for a message at or below the mark, write neither and return False.

        Raises what the effect raises, or whatever prevents the transaction from ending. Then nothing is written, unless
        the store had committed and its answer was lost; in that case the next attempt returns False. The same holds for
        a cancellation. Raises `TokenMissing` for a message without a fencing token.
        """
        ...


class TokenMissing(LbgError):
    """A message has no fencing token: it was not published by a hashed publisher."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"no fencing token on a message of {topic}: it has not all the stamps of a hashed publisher")
        self.topic = topic


class EffectEndedTransaction(LbgError):
    """The effect ended the guard's transaction, or tried to. In SQLite nothing of it is written; elsewhere that is not
    known."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"guard {scope}: the effect ended the transaction, or tried to; the guard does that after it")
        self.scope = scope


class EffectUndone(BatchCutShort):
    """The effect was undone with those of other messages, as the transaction that they shared failed; the exception's
    cause says why."""

    def __init__(self, scope: str) -> None:
        LbgError.__init__(
            self,
            f"guard {scope}: undone with the effects of other messages, as the transaction that they shared failed",
        )
        self.scope = scope


class EffectSpoiledTransaction(LbgError):
    """A statement of the effect failed, and the effect went on: the store would silently undo all of it."""

    def __init__(self, scope: str) -> None:
        super().__init__(
            f"guard {scope}: a statement failed and the effect went on; put what may fail into a savepoint of its own"
        )
        self.scope = scope


class ConnectionInTransaction(LbgError):
    """The lent connection has an open transaction, which its owner would end and not the guard; nothing was done."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"guard {scope}: a transaction is open on the connection that was lent; lend one without")
        self.scope = scope


class ConnectionUnfit(LbgError):
    """The lent connection does not say what became of a statement before the next one is sent; nothing was done."""

    def __init__(self, scope: str, reason: str) -> None:
        super().__init__(f"guard {scope}: the connection that was lent {reason}; lend one that answers each statement")
        self.scope = scope
        self.reason = reason


class TextNotHeld(LbgError):
    """The encoding of the database has no form for the key or publisher of a message; nothing was written."""

    def __init__(self, scope: str, encoding: str | None) -> None:
        super().__init__(
            f"guard {scope}: the database is in {encoding}, which cannot hold the key or publisher of the message;"
            " expected a database in UTF8, and text without halves of surrogate pairs"
        )
        self.scope = scope
        self.encoding = encoding


class EffectNotRun(LbgError):
    """What the effect returned is still to be awaited or read: the effect may not have run, and is not marked."""

    def __init__(self, scope: str) -> None:
        super().__init__(
            f"guard {scope}: the effect returned something that still has to be awaited or read, so it may not have"
            " run; await it inside the effect (effects of MemoryGuard and SqliteGuard must not be `async def`)"
        )
        self.scope = scope


def refuse_awaitable(answer: object, scope: str) -> None:
    """For adapters: raise `EffectNotRun` if the return value of an effect (what it gave when awaited, if the adapter
    awaits it) is still to be awaited or read."""
    if is_unrun(answer):
        raise EffectNotRun(scope)


def place_of(message: Message) -> tuple[str, FencingToken]:
    """For adapters: key and token of a message; raises `TokenMissing`."""
    key, token = message.key, message.fencing_token
    if key is None or token is None:
        raise TokenMissing(message.topic)
    return key, token
