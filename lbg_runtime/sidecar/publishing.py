"""The publisher for what the application publishes, made when it publishes for the first time."""

from collections.abc import Callable
from pathlib import Path

from lbg_runtime.admin.stored import Difference
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.errors import UserError
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.opening import new_publisher_id, publisher_of
from lbg_runtime.runtime.session import Session

LAST_CONFIRMS_MS = 5_000
"""How long to wait, when the member leaves, for the confirms of what the application published last."""


class ApplicationPublisher:
    """Used on the member's loop. If the member has a journal, a ledger is written beside it.

    The ledger begins with the first message. Not before that, because the ledger of a process that was killed makes the
    validator's verdict unknown, even if nothing was published. Not later, because messages that were confirmed before
    there is a ledger could be lost unnoticed.
    """

    def __init__(self, settings: Settings, session: Session, changed: Callable[[], tuple[Difference, ...]]) -> None:
        """`changed`: see `Companion.attend`."""
        self._settings = settings
        self._session = session
        self._changed = changed
        self._publisher: HashedPublisher | None = None
        self._is_closed = False

    def get(self) -> HashedPublisher:
        """The publisher; call it for each message.

        Raises `UserError` if its ledger cannot be begun, while keys would go elsewhere by the settings that are stored
        now, and once it is closed: a request may come later, as a server outlasts whoever was cancelled while it ended.
        """
        if self._is_closed:
            raise UserError(
                "sidecar", "a message as the member is leaving", "the same one when a member is there again"
            )
        for each in self._changed():
            raise each.as_error()
        if self._publisher is None:
            group, journal = self._settings.group, self._settings.ops.journal.path
            folder = None if journal is None else Path(journal)
            self._publisher = publisher_of(
                group, self._session, folder, publisher_id=new_publisher_id(), key_source=group.key
            )
        return self._publisher

    async def close(self) -> None:
        """Close the publisher, and wait for unconfirmed messages for `LAST_CONFIRMS_MS` at most."""
        self._is_closed = True
        if self._publisher is not None:
            await self._publisher.close(LAST_CONFIRMS_MS)
