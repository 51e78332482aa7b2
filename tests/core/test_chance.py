import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.core.chance import doubled_ms, nonce, shortened_ms


class _Always:
    """Chance that always has the same share of what it is asked for."""

    def __init__(self, share: float) -> None:
        self._share = share

    def uniform(self, a: float, b: float, /) -> float:
        return a + (b - a) * self._share


@pytest.mark.parametrize(("share", "waits"), [(1.0, [100, 200, 400, 700, 700]), (0.0, [50, 100, 200, 350, 350])])
def test_a_wait_doubles_up_to_the_longest_and_half_of_it_is_left_to_chance(share: float, waits: list[int]) -> None:
    assert [doubled_ms(100, 700, failures, _Always(share)) for failures in range(1, 6)] == waits


@given(failures=st.integers(1, 10**9), share=st.floats(0, 1))
def test_no_wait_is_longer_than_the_longest_however_often_it_was_doubled(failures: int, share: float) -> None:
    assert 1 <= doubled_ms(1, 1_000, failures, _Always(share)) <= 1_000


@pytest.mark.parametrize(
    ("jitter", "share", "left"), [(0.0, 1.0, 900), (0.5, 1.0, 450), (0.5, 0.0, 900), (1.0, 1.0, 1)]
)
def test_chance_takes_no_more_of_a_time_than_its_share(jitter: float, share: float, left: int) -> None:
    assert shortened_ms(900, jitter, _Always(share)) == left


def test_a_nonce_is_drawn_anew_each_time() -> None:
    chance = random.Random(1)
    assert len({nonce(chance) for _ in range(1_000)}) == 1_000
