"""The wait before the next attempt."""

from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.config.settings import BackoffSettings
from lbg_runtime.runtime.runners.backoff import retry_delay_ms


class _Fixed:
    """Chance that always gives this share of the range."""

    def __init__(self, share):
        self._share = share

    def uniform(self, a, b):
        return a + (b - a) * self._share


SETTINGS = BackoffSettings.model_validate({"initial": "100ms", "maximum": "1s"})


def test_it_doubles_up_to_the_maximum():
    assert [retry_delay_ms(SETTINGS, attempts, _Fixed(1)) for attempts in range(1, 7)] == [
        100, 200, 400, 800, 1_000, 1_000,
    ]  # fmt: skip


@given(attempts=st.integers(1, 10**9), share=st.floats(0, 1))
def test_it_is_never_above_the_maximum_nor_below_half_the_initial(attempts, share):
    assert 50 <= retry_delay_ms(SETTINGS, attempts, _Fixed(share)) <= 1_000
