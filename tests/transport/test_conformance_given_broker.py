"""The same suite against a broker that somebody names: `LBG_TEST_HOST=... make conformance`."""

from collections.abc import AsyncIterator

import pytest

from lbg_runtime.testing.conformance import TransportConformance
from lbg_runtime.testing.transport_harness import TransportHarness
from tests.transport.given_broker import Given, GivenBrokerHarness

pytestmark = pytest.mark.real_time


@pytest.fixture
async def harness() -> AsyncIterator[TransportHarness]:
    harness = GivenBrokerHarness(Given.from_environment())
    await harness.begin()
    yield harness
    await harness.end()


class TestGivenBroker(TransportConformance):
    """See `TransportConformance`."""
