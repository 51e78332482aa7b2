"""What every transport guarantees, as one suite of tests.

A test module of a transport subclasses `TransportConformance` and provides a fixture `harness`. Nothing here sleeps to
let things happen. That something does not come is shown by what comes after it: a marker on the same queue.

These modules consist of assertions; let pytest rewrite them (`pytest.register_assert_rewrite`) to get explanations.
"""

import pytest

from lbg_runtime.testing.conformance_flows import FlowConformance
from lbg_runtime.testing.conformance_queues import QueueConformance
from lbg_runtime.testing.conformance_sendable import SendableConformance
from lbg_runtime.testing.conformance_sessions import SessionConformance
from lbg_runtime.testing.conformance_steps import QUEUE
from lbg_runtime.testing.conformance_together import TogetherConformance
from lbg_runtime.testing.transport_harness import TransportHarness


class TransportConformance(
    FlowConformance, SessionConformance, QueueConformance, SendableConformance, TogetherConformance
):
    """The suite, run unchanged for each transport."""

    @pytest.fixture(autouse=True)
    def _queue(self, harness: TransportHarness) -> None:
        harness.broker.create_queue(QUEUE, ["orders/>"])
