"""Deliveries of hot keys, and what a gate keeps, count for no cap but the outermost; the intake is closed and opened as
without them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.model.ids import DeliveryId, Epoch


def opened(cap: int, most: int) -> InFlight:
    in_flight = InFlight(cap, most)
    in_flight.start_handle()
    assert in_flight.open_intake()
    return in_flight


def add(in_flight: InFlight, numbers: range, *, excused: bool = False) -> None:
    for number in numbers:
        in_flight.add(DeliveryId(number), "lbg/0/orders")
        if excused:
            in_flight.excuse(DeliveryId(number))


def test_excused_deliveries_leave_the_intake_open_up_to_the_outermost_cap() -> None:
    in_flight = opened(4, 10)
    add(in_flight, range(3))
    add(in_flight, range(3, 9), excused=True)
    assert not in_flight.close_intake_if_full()
    add(in_flight, range(9, 10), excused=True)
    assert in_flight.close_intake_if_full()
    assert len(in_flight) == 10


def test_others_still_have_their_cap_and_open_it_again_when_half_is_free() -> None:
    in_flight = opened(4, 100)
    add(in_flight, range(50), excused=True)
    add(in_flight, range(50, 54))
    assert in_flight.close_intake_if_full()
    in_flight.answer(DeliveryId(50))
    assert not in_flight.open_intake()
    in_flight.answer(DeliveryId(51))
    assert in_flight.open_intake()


def test_at_the_outermost_cap_it_opens_again_with_the_same_distance() -> None:
    in_flight = opened(4, 10)
    add(in_flight, range(10), excused=True)
    assert in_flight.close_intake_if_full()
    in_flight.answer(DeliveryId(0))
    assert not in_flight.open_intake()
    in_flight.answer(DeliveryId(1))
    assert in_flight.open_intake()


def test_an_excuse_ends_with_its_delivery_and_with_the_handle() -> None:
    in_flight = opened(2, 10)
    add(in_flight, range(5), excused=True)
    for number in range(5):
        assert in_flight.answer_if_open(DeliveryId(number))
    add(in_flight, range(5, 7))
    assert in_flight.close_intake_if_full()
    in_flight.excuse(DeliveryId(5))
    in_flight.outlive(Epoch(1))
    in_flight.start_handle()
    assert in_flight.open_intake()
    add(in_flight, range(2))
    assert in_flight.close_intake_if_full()


def test_one_more_for_each_that_is_excused_may_come_the_short_way_and_no_more() -> None:
    in_flight = opened(2, 4)
    add(in_flight, range(1), excused=True)
    assert in_flight.add_if_room(DeliveryId(1), "lbg/0/orders")
    assert not in_flight.add_if_room(DeliveryId(2), "lbg/0/orders"), "it fills the cap, so the intake is to be closed"


def test_what_was_excused_on_one_handle_makes_no_room_on_the_next() -> None:
    in_flight = opened(2, 4)
    add(in_flight, range(1), excused=True)
    in_flight.outlive(Epoch(1))
    in_flight.start_handle()
    assert in_flight.open_intake()
    assert in_flight.add_if_room(DeliveryId(1), "lbg/0/orders")
    assert not in_flight.add_if_room(DeliveryId(2), "lbg/0/orders")


def test_nothing_is_excused_that_is_not_in_flight_or_where_there_is_no_outermost_cap() -> None:
    in_flight = opened(2, 10)
    in_flight.excuse(DeliveryId(1))
    add(in_flight, range(2))
    assert in_flight.close_intake_if_full()
    strict = InFlight(2)
    strict.start_handle()
    strict.open_intake()
    add(strict, range(2), excused=True)
    assert strict.close_intake_if_full()


def test_what_is_kept_leaves_others_their_cap_up_to_the_outermost() -> None:
    in_flight = opened(4, 10)
    add(in_flight, range(2))
    assert not in_flight.close_intake_if_full(kept=7)
    assert in_flight.close_intake_if_full(kept=8)
    assert not in_flight.open_intake(kept=7)
    assert in_flight.open_intake(kept=6)
    add(in_flight, range(2, 4))
    assert in_flight.close_intake_if_full(kept=1)


steps = st.lists(
    st.one_of(st.sampled_from(["add", "excused", "quick", "keep", "drop"]), st.integers(0, 30)), max_size=80
)


@given(steps, st.integers(1, 8), st.integers(1, 24))
@settings(max_examples=150, deadline=None)
def test_the_intake_is_as_a_count_of_the_two_kinds_says(course: list[str | int], cap: int, most: int) -> None:
    in_flight, most = opened(cap, most), max(cap, most)
    plain: list[DeliveryId] = []
    excused: list[DeliveryId] = []
    kept = 0
    is_open = True
    for number, step in enumerate(course):
        delivery_id = DeliveryId(number)
        full = min(cap + len(excused), most)
        if step == "keep":
            kept += 1
        elif step == "drop":
            kept = 0
        elif isinstance(step, int):
            held = plain + excused
            if not held:
                continue
            ended = held[step % len(held)]
            (plain if ended in plain else excused).remove(ended)
            if not in_flight.answer_if_open(ended):
                in_flight.answer(ended)
        elif step == "quick" and kept:
            # Of a gate that is idle only.
            continue
        elif step == "quick":
            added = in_flight.add_if_room(delivery_id, "t")
            assert added == (is_open and len(plain) + len(excused) + 1 < full)
            plain += [delivery_id] if added else []
        else:
            in_flight.add(delivery_id, "t")
            if step == "excused":
                in_flight.excuse(delivery_id)
            (excused if step == "excused" else plain).append(delivery_id)
        full, held_count = min(cap + len(excused) + kept, most), len(plain) + len(excused) + kept
        closes = is_open and held_count >= full
        assert in_flight.close_intake_if_full(kept=kept) == closes
        is_open = is_open and not closes
        opens = not is_open and full - held_count >= cap - cap // 2
        assert in_flight.open_intake(kept) == opens
        is_open = is_open or opens
        assert is_open or held_count >= cap // 2
