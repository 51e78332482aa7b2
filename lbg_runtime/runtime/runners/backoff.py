"""How long a failed delivery waits for its next attempt."""

from lbg_runtime.config.settings import BackoffSettings
from lbg_runtime.core.chance import RandomSource

_MAX_DOUBLINGS = 30


def retry_delay_ms(settings: BackoffSettings, attempts: int, random: RandomSource) -> int:
    """The wait after `attempts` failed attempts, from 1: doubled each time up to the maximum, half of it chance."""
    doubled = settings.initial_ms << min(attempts - 1, _MAX_DOUBLINGS)
    longest = min(doubled, settings.maximum_ms)
    return max(1, round(random.uniform(longest / 2, longest)))
