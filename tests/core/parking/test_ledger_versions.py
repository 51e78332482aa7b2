"""The laws of `test_ledger_laws` where every other owner is of a version that cannot read all that the others write."""

import hypothesis.strategies as st
from hypothesis import given, settings

from lbg_runtime.core.parking.records import LedgerEntry, OwnerFence, ParkedMessage, ParkingOwner, UnreadEntry
from lbg_runtime.model.message import Message
from tests.core.parking.test_ledger_laws import ParkingWorld, walk


class WorldOfTwoVersions(ParkingWorld):
    """Owners with even numbers are of a later version: some of their messages and fences say more than the others can
    read."""

    def is_unread(self, entry: LedgerEntry) -> bool:
        if self.is_later(self.owner.ledger.owner) or not isinstance(entry, (ParkedMessage, OwnerFence)):
            return False
        place = entry.number if isinstance(entry, ParkedMessage) else int(entry.owner.nonce[1:]) // 2
        return self.is_later(entry.owner) and place % 2 == 0

    def is_later(self, owner: ParkingOwner) -> bool:
        return int(owner.nonce[1:]) % 2 == 0

    def as_read(self, entry: LedgerEntry) -> LedgerEntry:
        if not self.is_unread(entry):
            return entry
        if isinstance(entry, ParkedMessage):
            return UnreadEntry(entry.original, entry.lane, (entry.owner, entry.number), is_ours=True, reason="later")
        return UnreadEntry(Message("t", b""), None, None, is_ours=True, reason="later")

    def take_turn(self, key: str) -> None:
        # The flow would be given up.
        if self.owner.ledger.obstacle is None:
            super().take_turn(key)

    def teardown(self) -> None:
        while not self.is_later(self.owner.ledger.owner):
            self.owner_dies(0, [], 6)
        super().teardown()


@given(st.integers(0, 1 << 30))
@settings(max_examples=200, deadline=None)
def test_walks_through_the_world_of_two_versions(seed: int) -> None:
    walk(seed, WorldOfTwoVersions())
