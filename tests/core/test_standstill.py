"""What stands still for too long is told once, and once when it is over."""

from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.core.standstill import Overdue, StandingAt, StandstillWatch


def test_what_stands_is_told_once_when_its_time_has_come_and_once_when_it_moves_on() -> None:
    watch: StandstillWatch[str] = StandstillWatch(10)
    assert watch.look([StandingAt("a", 1, None)], 100) == Overdue((), ())
    assert watch.look([StandingAt("a", 1, None)], 109) == Overdue((), ())
    assert watch.look([StandingAt("a", 1, None)], 110) == Overdue((("a", 10),), ())
    assert watch.count == 1
    assert watch.look([StandingAt("a", 1, None)], 150) == Overdue((), ())
    assert watch.look([StandingAt("a", 2, None)], 160) == Overdue((), (("a", 60),))
    assert watch.count == 0


def test_what_is_known_to_stand_for_longer_is_told_at_the_first_look() -> None:
    watch: StandstillWatch[str] = StandstillWatch(10)
    assert watch.look([StandingAt("a", 1, 50), StandingAt("b", 1, 95)], 100) == Overdue((("a", 50),), ())
    assert watch.look([StandingAt("b", 1, 95)], 106) == Overdue((("b", 11),), (("a", 56),))


def test_what_is_gone_and_comes_again_begins_afresh() -> None:
    watch: StandstillWatch[str] = StandstillWatch(10)
    watch.look([StandingAt("a", 1, None)], 0)
    watch.look([], 5)
    assert watch.look([StandingAt("a", 1, None)], 12) == Overdue((), ())


looks = st.lists(
    st.tuples(st.integers(0, 12), st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=3)), max_size=40
)


@given(looks, st.integers(1, 20))
def test_it_tells_what_a_plain_history_says(course: list[tuple[int, dict[str, int]]], after_ms: int) -> None:
    watch: StandstillWatch[str] = StandstillWatch(after_ms)
    now_ms, since, told = 0, dict[str, tuple[int, int]](), set[str]()
    for passed_ms, seen in course:
        now_ms += passed_ms
        found = watch.look([StandingAt(name, at, None) for name, at in seen.items()], now_ms)
        over = {name for name, (at, _) in since.items() if seen.get(name) != at}
        assert {name for name, _ in found.ended} == over & told
        assert len(found.ended) == len(over & told)
        told -= over
        since = {name: since[name] if name in since and name not in over else (at, now_ms) for name, at in seen.items()}
        overdue = {name for name, (_, since_ms) in since.items() if now_ms - since_ms >= after_ms}
        assert sorted(found.began) == sorted((name, now_ms - since[name][1]) for name in overdue - told)
        told |= overdue
        assert watch.count == len(told)
