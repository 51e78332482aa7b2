"""A right that a login lacked: one new login, and not sooner than it may be."""

import asyncio

import pytest

from lbg_runtime.transport.solace.relogin import LOGIN_AGAIN_AT_LAST_S, LOGIN_AGAIN_S, Relogin


class Bench:
    """A connection whose life the test plays."""

    def __init__(self) -> None:
        self.logins: list[tuple[float, str]] = []
        """When somebody was to log in again, and why."""
        self.relogin = Relogin(self._log_in_again)
        self._began_s = asyncio.get_running_loop().time()

    def _log_in_again(self, reason: str) -> None:
        self.logins.append((asyncio.get_running_loop().time() - self._began_s, reason))
        self.relogin.disconnected()


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_however_often_the_right_is_needed_there_is_one_login_in_its_time(bench: Bench) -> None:
    bench.relogin.logged_in()
    for number in range(10):
        bench.relogin.lacks(str(number))
        await asyncio.sleep(1)
    await asyncio.sleep(10 * LOGIN_AGAIN_S)
    assert bench.logins == [(LOGIN_AGAIN_S, "0")]


async def test_after_a_login_that_is_old_enough_the_next_one_comes_at_once(bench: Bench) -> None:
    bench.relogin.logged_in()
    await asyncio.sleep(10 * LOGIN_AGAIN_S)
    bench.relogin.lacks("late")
    await asyncio.sleep(0.001)
    assert bench.logins == [(pytest.approx(10 * LOGIN_AGAIN_S), "late")]


async def test_a_connection_that_comes_back_has_logged_in_already(bench: Bench) -> None:
    bench.relogin.logged_in()
    bench.relogin.lacks("before")
    await asyncio.sleep(LOGIN_AGAIN_S - 1)
    bench.relogin.disconnected()
    bench.relogin.lacks("meanwhile")
    bench.relogin.logged_in()
    await asyncio.sleep(LOGIN_AGAIN_S + 1)
    assert bench.logins == []
    bench.relogin.lacks("after")
    await asyncio.sleep(0.001)
    assert [reason for _, reason in bench.logins] == ["after"]


async def test_as_long_as_the_right_is_missing_logins_become_rare_and_then_soon_again(bench: Bench) -> None:
    """Each ends the flows, so a handler that takes longer than the time between two of them would never be settled."""
    for _ in range(8):
        count = len(bench.logins)
        bench.relogin.logged_in()
        while len(bench.logins) == count:
            bench.relogin.lacks("still")
            await asyncio.sleep(1)
    times = [at_s for at_s, _ in bench.logins]
    waits = [round(later - earlier) for earlier, later in zip([0.0, *times], times, strict=False)]
    assert waits == pytest.approx([30, 60, 120, 240, 480, 960, 960, 960], abs=2)
    bench.relogin.logged_in()
    await asyncio.sleep(LOGIN_AGAIN_AT_LAST_S + 1)
    bench.relogin.lacks("long after")
    await asyncio.sleep(0.001)
    bench.relogin.logged_in()
    bench.relogin.lacks("again")
    await asyncio.sleep(2 * LOGIN_AGAIN_S + 1)
    assert [reason for _, reason in bench.logins[-2:]] == ["long after", "again"]
