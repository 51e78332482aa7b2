"""What a task group of Python 3.11 and 3.12 leaves to its task."""

import asyncio
from contextlib import suppress


async def fail():
    raise OSError("away")


async def left_by_a_task_group():
    """A cancellation of its task that is counted and over."""
    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
