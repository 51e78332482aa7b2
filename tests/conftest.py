"""Every test has virtual time unless marked `real_time`, a log of its own, and no leave to skip where CI forbids it."""

import asyncio
import os
from collections.abc import Callable, Generator, Mapping

import hypothesis
import pytest
import structlog

from lbg_runtime.testing.virtual_time import VirtualTimeLoop

IS_GATE = bool(os.environ.get("LBG_FORBID_SKIPS"))
"""Whether this run decides about a change: it is to say the same of the same tree, and nothing may be left out."""

# No deadline: how long an example takes says more about the machine. Elsewhere than at the gate every run tries other
# examples; what one of them finds becomes a test of its own.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=IS_GATE)
hypothesis.settings.load_profile("tests")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real_time") is None:
        return {"virtual_time": VirtualTimeLoop}
    return {"real_time": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def own_log() -> Generator[None]:
    """A command called in this process sets the log up for its standard error, which is gone after the test."""
    yield
    structlog.reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """At the gate a skipped test is a failed one: what a test needs is installed there."""
    report = yield
    if report.skipped and IS_GATE and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and LBG_FORBID_SKIPS is set: {report.longrepr}"
    return report
