"""What every guard promises; an adapter for each kind of store that can hold the effect.

The mark of a key is the largest number of a fencing token whose effect is in the store. It is written in the
transaction of the effect, so there is never one without the other. The members handle and settle the messages of a key
in the order of their numbers (laws L2, L3), so a message at or below the mark is one whose effect is there: a copy that
came again, or what a former owner of the queue holds on to while the next one is further on.
"""

from typing import Protocol, TypeVar

from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.message import FencingToken, Message
from lbg_runtime.model.unrun import is_unrun

Effect = TypeVar("Effect", contravariant=True)
"""A function that the adapter calls with its transaction; sync or async as the adapter says."""


class Guard(Protocol[Effect]):
    """Used by handlers, for any number of messages at the same time. Holds for all who share the store and the scope.

    Every adapter has a `scope`: a name for the effect. A group, or each kind of effect where a group has several in
    one store, needs a name of its own, and all members use the same. Marks are kept for scope, key and publisher; not
    for the queue, as a key keeps its numbers when it moves to another queue.
    """

    async def once(self, message: Message, effect: Effect) -> bool:
        """Have the effect and the mark written together, or, for a message at or below the mark, neither: False.

        What the effect raises, and whatever keeps the transaction from ending, is raised; then nothing is written,
        but where the store had committed before the answer was lost: the next attempt is told False. A cancellation
        is the same. Raises `TokenMissing`.
        """
        ...


class TokenMissing(LbgError):
    """A message without a fencing token: it was not published by a hashed publisher."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"no fencing token on a message of {topic}: it has not all the stamps of a hashed publisher")
        self.topic = topic


class EffectEndedTransaction(LbgError):
    """The effect committed or rolled back what was not its own to end; what is written now is not known."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"guard {scope}: the effect ended the transaction, which the guard does after it")
        self.scope = scope


class EffectSpoiledTransaction(LbgError):
    """A statement of the effect failed, and the effect went on: the store would undo all of it, and not say so."""

    def __init__(self, scope: str) -> None:
        super().__init__(
            f"guard {scope}: a statement failed and the effect went on; put what may fail into a savepoint of its own"
        )
        self.scope = scope


class ConnectionInTransaction(LbgError):
    """A connection was lent on which a transaction is open, which its owner ends and not the guard; nothing is done."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"guard {scope}: a transaction is open on the connection that was lent; lend one without")
        self.scope = scope


class EffectNotRun(LbgError):
    """What the effect returned is still to be awaited or read: it may not have run, and is not marked."""

    def __init__(self, scope: str) -> None:
        super().__init__(
            f"guard {scope}: the effect returned something that still has to be awaited or read, so it may not have"
            " run; await it inside the effect (effects of MemoryGuard and SqliteGuard must not be `async def`)"
        )
        self.scope = scope


def refuse_awaitable(answer: object, scope: str) -> None:
    """For adapters, of what the effect returned or, where they await that, what came of it; raises `EffectNotRun`."""
    if is_unrun(answer):
        raise EffectNotRun(scope)


def place_of(message: Message) -> tuple[str, FencingToken]:
    """Key and token, for adapters; raises `TokenMissing`."""
    key, token = message.key, message.fencing_token
    if key is None or token is None:
        raise TokenMissing(message.topic)
    return key, token
