"""Moments of virtual time have an order, and are found again by the real clock."""

from lbg_runtime.testing import moments
from lbg_runtime.testing.moments import Moments


async def test_no_two_are_alike_and_a_real_moment_is_the_last_one_noted_until_then(monkeypatch) -> None:
    mono_ns = iter((1_000, 2_000))
    monkeypatch.setattr(moments, "monotonic_ns", lambda: next(mono_ns))
    noted = Moments()
    first, second = noted.next_ns(), noted.next_ns()
    assert first < second
    assert [noted.at(each) for each in (999, 1_000, 1_999, 2_000, 9_000)] == [0, first, first, second, second]
