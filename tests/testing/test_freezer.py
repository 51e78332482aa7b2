import asyncio

from lbg_runtime.testing.freezer import Freezer


def begin(freezer: Freezer, coroutine):
    return asyncio.get_running_loop().create_task(coroutine, context=freezer.context())


async def test_what_is_frozen_does_nothing_and_goes_on_in_the_order_of_its_timers() -> None:
    freezer, done = Freezer(), []

    async def count(name, delay):
        await asyncio.sleep(delay)
        done.append(name)

    async def process():
        async with asyncio.TaskGroup() as group:
            for name, delay in (("late", 3), ("early", 1), ("middle", 2)):
                group.create_task(count(name, delay))

    task = begin(freezer, process())
    await asyncio.sleep(0.5)
    freezer.freeze()
    await asyncio.sleep(10)
    assert done == []
    freezer.thaw()
    await task
    assert done == ["early", "middle", "late"]


async def test_others_go_on_meanwhile() -> None:
    freezer, done = Freezer(), []
    begin(freezer, asyncio.sleep(1))
    freezer.freeze()

    async def other():
        await asyncio.sleep(1)
        done.append("other")

    await asyncio.create_task(other())
    assert done == ["other"]
    freezer.cancel()


async def test_what_reaches_a_frozen_process_is_looked_at_when_it_goes_on() -> None:
    freezer, inbox, seen = Freezer(), asyncio.Queue(), []

    async def process():
        while True:
            seen.append(await inbox.get())

    task = begin(freezer, process())
    await asyncio.sleep(0)
    freezer.freeze()
    inbox.put_nowait(1)
    inbox.put_nowait(2)
    await asyncio.sleep(5)
    assert seen == []
    freezer.thaw()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == [1, 2]
    task.cancel()


async def test_a_timer_that_was_cancelled_while_it_was_held_does_not_fire() -> None:
    freezer, fired, event = Freezer(), [], asyncio.Event()

    async def process():
        timer = asyncio.get_running_loop().call_later(2, fired.append, "timer")
        await event.wait()
        timer.cancel()
        await asyncio.sleep(5)
        return "end"

    task = begin(freezer, process())
    await asyncio.sleep(0.5)
    freezer.freeze()
    event.set()
    await asyncio.sleep(10)
    freezer.thaw()
    assert await task == "end"
    assert fired == []


async def test_a_frozen_process_that_is_cancelled_comes_to_no_further_line() -> None:
    freezer, lines = Freezer(), []

    async def work(name):
        await asyncio.sleep(1)
        lines.append(name)

    async def process():
        async with asyncio.TaskGroup() as group:
            group.create_task(work("one"))
            group.create_task(work("two"))
            await asyncio.sleep(1)
            lines.append("process")

    task = begin(freezer, process())
    await asyncio.sleep(0.5)
    freezer.freeze()
    await asyncio.sleep(1)
    freezer.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert lines == []
