"""`lbg` for tests that call it often."""

from collections.abc import Iterator

import pytest

from tests.warm import WarmLbg, warm_lbg


@pytest.fixture(scope="session")
def lbg() -> Iterator[WarmLbg]:
    """See `tests.warm`."""
    with warm_lbg() as warm:
        yield warm
