"""The deliveries that one flow has dispatched and that are not yet answered, and the cap on them."""

from collections.abc import Callable

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch


class InFlight:
    """The unanswered deliveries of a flow's current handle, and of dead ones. Owned by one flow machine.

    Every delivery that is added is answered exactly once; a second answer, or one for a delivery that was never added,
    raises `InvariantViolated`. Constant time per call, except `outlive`, `topics` and `where`.
    """

    def __init__(self, cap: int, most: int | None = None) -> None:
        """`most` bounds the deliveries including excused ones; without it, none are excused from the cap."""
        self._cap = cap
        self._most = max(cap, most or cap)
        self._room = cap
        """The cap, plus one for each excused delivery, up to `most`."""
        self._excused: set[DeliveryId] = set()
        self._current: dict[DeliveryId, str] = {}
        """The topic of each unanswered delivery of the current handle."""
        self._outlived: set[tuple[Epoch, DeliveryId]] = set()
        self._intake_open = False

    def __len__(self) -> int:
        """Number of unanswered deliveries of the current handle."""
        return len(self._current)

    def start_handle(self) -> None:
        """A new handle is bound; the broker may not send on it yet."""
        self._intake_open = False
        self._excuse_none()

    def topics(self) -> dict[DeliveryId, str]:
        """The unanswered deliveries of the current handle, and their topics."""
        return self._current.copy()

    def where(self, is_meant: Callable[[str], bool]) -> set[DeliveryId]:
        """The unanswered deliveries of the current handle whose topic satisfies `is_meant`."""
        return {delivery_id for delivery_id, topic in self._current.items() if is_meant(topic)}

    def add(self, delivery_id: DeliveryId, topic: str) -> None:
        """Record that a delivery of the current handle is dispatched."""
        if delivery_id in self._current:
            raise InvariantViolated(f"delivery {delivery_id} arrived twice on one handle")
        self._current[delivery_id] = topic

    def add_if_room(self, delivery_id: DeliveryId, topic: str) -> bool:
        """`add` if that leaves the intake as it is; return whether it was added. Never adds a second arrival on one
        handle."""
        current = self._current
        if not self._intake_open or len(current) + 1 >= self._room or delivery_id in current:
            return False
        current[delivery_id] = topic
        return True

    def answer_if_open(self, delivery_id: DeliveryId) -> bool:
        """`answer`, unless the delivery is not in flight here or the intake is closed; return whether it did."""
        if not self._intake_open or self._current.pop(delivery_id, None) is None:
            return False
        if self._excused:
            self._end_excuse(delivery_id)
        return True

    def answer(self, delivery_id: DeliveryId) -> None:
        """Record that a delivery of the current handle is done."""
        if delivery_id not in self._current:
            raise InvariantViolated(f"delivery {delivery_id} was answered and is not in flight")
        del self._current[delivery_id]
        if self._excused:
            self._end_excuse(delivery_id)

    def excuse(self, delivery_id: DeliveryId) -> None:
        """Let other keys overtake a delivery in flight: until it is answered, it counts for no cap but `most`.

        Does nothing if it is not in flight here or is already excused. A closed intake may have room afterwards.
        """
        if delivery_id in self._current:
            self._excused.add(delivery_id)
            self._room = self._room_beside(0)

    def excuse_if_open(self, delivery_id: DeliveryId) -> bool:
        """`excuse`, unless the intake is closed; return whether it was open."""
        if not self._intake_open:
            return False
        self.excuse(delivery_id)
        return True

    def outlive(self, epoch: Epoch) -> None:
        """Record that the current handle died: its deliveries are still to be answered, but count for no cap."""
        self._outlived |= {(epoch, delivery_id) for delivery_id in self._current}
        self._current.clear()
        self._excuse_none()

    def has_outlived(self, epoch: Epoch, delivery_id: DeliveryId) -> bool:
        """Whether this delivery is unanswered and its handle is dead."""
        return (epoch, delivery_id) in self._outlived

    def answer_outlived(self, epoch: Epoch, delivery_id: DeliveryId) -> None:
        """Record that a delivery of a dead handle is done."""
        self._outlived.remove((epoch, delivery_id))

    def close_intake(self) -> bool:
        """Close the intake; return whether it was open, so that the broker must now be asked to stop sending."""
        was_open, self._intake_open = self._intake_open, False
        return was_open

    def close_intake_if_full(self, kept: int = 0) -> bool:
        """`close_intake` if the cap is reached; return whether the broker must now be asked to stop sending.

        `kept`: messages that wait for their turn before they are dispatched. They count like excused ones.
        """
        return len(self._current) + kept >= self._room_beside(kept) and self.close_intake()

    def open_intake(self, kept: int = 0) -> bool:
        """Open a closed intake if half of the cap is free; return whether it did, so that the broker must now be asked
        to send.

        Not as soon as there is room for one, or a flow at its cap would be stopped and started for every message.
        """
        if self._intake_open or len(self._current) + kept > self._room_beside(kept) - (self._cap - self._cap // 2):
            return False
        self._intake_open = True
        return True

    def _room_beside(self, kept: int) -> int:
        return min(self._cap + len(self._excused) + kept, self._most)

    def _end_excuse(self, delivery_id: DeliveryId) -> None:
        self._excused.discard(delivery_id)
        self._room = self._room_beside(0)

    def _excuse_none(self) -> None:
        self._excused.clear()
        self._room = self._cap
