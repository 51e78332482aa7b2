import pytest

from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch


def in_flight_of(count: int, cap: int = 4) -> InFlight:
    in_flight = InFlight(cap)
    in_flight.start_handle()
    assert in_flight.open_intake()
    for number in range(1, count + 1):
        in_flight.add(DeliveryId(number), f"lbg/{number % 2}/orders")
    return in_flight


def test_intake_of_a_new_handle_is_closed_and_opens_once() -> None:
    in_flight = InFlight(1)
    assert not in_flight.close_intake()
    assert in_flight.open_intake()
    assert not in_flight.open_intake()
    in_flight.start_handle()
    assert in_flight.open_intake()


def test_intake_closes_once_when_the_cap_is_reached() -> None:
    assert not in_flight_of(3).close_intake_if_full()
    full = in_flight_of(4)
    assert full.close_intake_if_full()
    assert not full.close_intake_if_full()
    assert not full.close_intake()


def test_intake_opens_once_when_half_of_the_cap_is_free() -> None:
    in_flight = in_flight_of(4)
    assert not in_flight.open_intake()
    in_flight.close_intake_if_full()
    in_flight.answer(DeliveryId(1))
    assert not in_flight.open_intake()
    in_flight.answer(DeliveryId(2))
    assert in_flight.open_intake()
    assert not in_flight.open_intake()


def test_deliveries_of_a_dead_handle_are_answered_once_and_count_for_no_cap() -> None:
    in_flight = in_flight_of(4)
    in_flight.outlive(Epoch(1))
    assert len(in_flight) == 0
    assert in_flight.has_outlived(Epoch(1), DeliveryId(3))
    in_flight.answer_outlived(Epoch(1), DeliveryId(3))
    assert not in_flight.has_outlived(Epoch(1), DeliveryId(3))
    with pytest.raises(InvariantViolated):
        in_flight.answer(DeliveryId(3))
