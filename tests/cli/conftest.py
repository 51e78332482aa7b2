"""`lbg` for tests that call it often."""

import pytest

from tests.warm import Warm, WarmLbg


@pytest.fixture(scope="session")
def lbg(warm: Warm) -> WarmLbg:
    """See `tests.warm`."""
    return WarmLbg(warm)
