"""Which messages of the replay log's table nobody needs any more."""

import pytest

from lbg_runtime.broker.store.frames import Frames


@pytest.mark.parametrize(
    ("first", "last", "left"),
    [
        (10, 12, [1, 2, 3]),
        (10, 11, [1, 2]),
        (11, 12, [2, 3]),
        (10, 99, [1, 2, 3]),
        (0, 12, [1, 2, 3]),
        (12, 12, [3]),
        pytest.param(12, 13, [3], id="one of them refers to nothing"),
    ],
)
def test_the_first_and_the_last_of_the_places_that_become_empty_are_among_them(
    first: int, last: int, left: list[int]
) -> None:
    frames = Frames()
    for place, number in ((10, 1), (11, 2), (12, 3)):
        frames.add(number)
        assert frames.lean(place, number)
        assert not frames.let_go(number)
    assert frames.leave_all(first, last) == left
    assert frames.leave_all(0, 99) == [number for number in (1, 2, 3) if number not in left]
