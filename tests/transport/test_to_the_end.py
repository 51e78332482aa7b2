"""Who waits to the end of something is cancelled only then."""

import asyncio

import anyio
import pytest

from lbg_runtime.transport.to_the_end import wait_to_the_end


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_is_raised_at_the_end_whatever_that_is(fails: bool) -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(wait_to_the_end(future))
    for _ in range(2):
        await asyncio.sleep(1)
        waiting.cancel()
    await asyncio.sleep(1)
    assert not waiting.done()
    if fails:
        future.set_exception(ValueError("of no interest"))
    else:
        future.set_result("of no interest")
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_cancelled_scope_of_anyio_waits_as_well() -> None:
    with anyio.move_on_after(1) as scope:
        assert await wait_to_the_end(asyncio.sleep(5, "the result")) == "the result"
    assert asyncio.get_running_loop().time() >= 5
    assert scope.cancel_called
