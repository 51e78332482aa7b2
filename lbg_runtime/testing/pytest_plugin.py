"""The fixtures of the test kit. Every test run on the machine loads this module: it imports nothing heavy.

A test that requests `lbg_running` runs on an event loop with virtual time; no other test notices the plugin.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import asyncio

    from lbg_runtime.testing.broker_on_port import BrokerOnPort
    from lbg_runtime.testing.group_context import Running

_LOOP_HOOK = "pytest_asyncio_loop_factories"


@pytest.fixture
def lbg_running() -> "Running":
    """`lbg_runtime.testing.running`, in virtual time."""
    from lbg_runtime.testing.group_context import running

    return running


@pytest.fixture
def lbg_broker() -> "Iterator[BrokerOnPort]":
    """A fresh `lbg_runtime.testing.BrokerOnPort`."""
    from lbg_runtime.testing.broker_on_port import BrokerOnPort

    with BrokerOnPort() as broker:
        yield broker


class _VirtualTime:
    """Tells pytest-asyncio which loop a test has."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_asyncio_loop_factories(self) -> "Mapping[str, Callable[[], asyncio.AbstractEventLoop]]":
        from lbg_runtime.testing.virtual_time import VirtualTimeLoop

        return {"virtual_time": VirtualTimeLoop}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Give virtual time to a test with a group."""
    if lbg_running.__name__ not in metafunc.fixturenames or not hasattr(metafunc.config.hook, _LOOP_HOOK):
        return (yield)
    # Registered for this one test: pytest-asyncio asks every plugin about every test, and requires an answer.
    plugin = _VirtualTime()
    metafunc.config.pluginmanager.register(plugin)
    try:
        return (yield)
    finally:
        metafunc.config.pluginmanager.unregister(plugin)
