"""What the status API asks of a member."""

from typing import Protocol

from lbg_runtime.metrics.reading import MemberReading
from lbg_runtime.model.record import OwnerRecord
from lbg_runtime.status.picture import HandledPicture, KeyPicture, MemberPicture


class StatusSource(Protocol):
    """One life of a member. Called on its event loop, between two of its steps; returns at once and changes nothing."""

    def picture(self) -> MemberPicture:
        """How the member stands now."""
        ...

    def reading(self) -> MemberReading:
        """Its figures now."""
        ...

    def handled(self) -> HandledPicture:
        """How much it has handled."""
        ...

    def changes(self, limit: int) -> tuple[OwnerRecord, ...]:
        """The latest owner changes of its queues, newest first."""
        ...

    def key(self, key: str) -> KeyPicture:
        """What it knows of a key; raises `UserError` for one that cannot be hashed."""
        ...
