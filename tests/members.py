"""Members that run while a test looks at them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.supervisor import StopReport


@asynccontextmanager
async def running(*apps: App) -> AsyncIterator[list[asyncio.Task[StopReport]]]:
    """With these members at work; those still there at the end are stopped, and what has ended one is raised."""
    tasks = [asyncio.ensure_future(app.run()) for app in apps]
    try:
        yield tasks
    finally:
        for app in apps:
            app.stop()
        await asyncio.wait(tasks, timeout=120)
        for task in tasks:
            if not task.cancelled():
                task.result()
