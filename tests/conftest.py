"""Every asyncio test runs on virtual time, unless it is marked `real_time`."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from lbg_runtime.testing.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real_time") is None:
        return {"virtual_time": VirtualTimeLoop}
    return {"real_time": asyncio.new_event_loop}
