"""Clock, links and processes of the simulated world."""

import pytest

from lbg_runtime.sim import schedule as schedule_module
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.link import Link
from lbg_runtime.sim.process import Process
from lbg_runtime.sim.schedule import Schedule, SimulationLoops


def run_out(schedule: Schedule) -> None:
    schedule.run(10_000, lambda: False)


def test_calls_run_at_their_times_and_equal_times_in_order() -> None:
    schedule, seen = Schedule(), []
    for at_ms, name in [(5, "b"), (1, "a"), (5, "c")]:
        schedule.at(at_ms, lambda at_ms=at_ms, name=name: seen.append((schedule.now_ms, name)))  # type: ignore[misc]
    run_out(schedule)
    assert seen == [(1, "a"), (5, "b"), (5, "c")]


def test_a_run_ends_when_it_is_done_or_when_its_time_is_over() -> None:
    schedule, seen = Schedule(), []
    for at_ms in (1, 2, 3):
        schedule.at(at_ms, lambda: seen.append(schedule.now_ms))
    assert schedule.run(10, lambda: len(seen) == 2)
    assert (seen, schedule.now_ms) == ([1, 2], 2)
    assert not schedule.run(2, lambda: False)
    assert seen == [1, 2]


def test_a_run_in_which_no_time_passes_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "MOST_CALLS", 100)
    schedule = Schedule()

    def again() -> None:
        schedule.after(0, again)

    again()
    with pytest.raises(SimulationLoops):
        run_out(schedule)


def test_a_run_may_have_any_number_of_calls_as_long_as_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "MOST_CALLS", 100)
    schedule, seen = Schedule(), []

    def again() -> None:
        seen.append(schedule.now_ms)
        schedule.after(len(seen) % 50 == 0, again)

    again()
    run_out(schedule)
    assert len(seen) > 100_000


def test_frames_of_one_direction_keep_their_order() -> None:
    schedule, seen = Schedule(), []
    link = Link(schedule, SeededChance(1), longest_delay_ms=50)
    for number in range(100):
        schedule.at(number, lambda number=number: link.up.send(lambda: seen.append(number)))  # type: ignore[misc]
    run_out(schedule)
    assert seen == list(range(100))


def test_what_is_under_way_when_a_connection_is_cut_is_lost() -> None:
    schedule, seen = Schedule(), []
    link = Link(schedule, SeededChance(1), longest_delay_ms=0)
    link.up.send(lambda: seen.append("up"))
    link.down.send(lambda: seen.append("down"))
    link.cut()
    run_out(schedule)
    assert seen == []
    assert link.cut_ms == 0


def test_what_a_killed_process_sent_still_arrives_before_its_end_is_noticed() -> None:
    schedule, seen = Schedule(), []
    link = Link(schedule, SeededChance(1), longest_delay_ms=5)
    link.up.send(lambda: seen.append("last words"))
    link.down.send(lambda: seen.append("nobody hears"))
    link.end_after_frames(lambda: seen.append("end"))
    run_out(schedule)
    assert seen == ["last words", "end"]


def test_a_paused_process_does_everything_later_and_a_dead_one_nothing() -> None:
    schedule, seen = Schedule(), []
    process = Process(schedule)
    process.after(10, lambda: seen.append(("timer", schedule.now_ms)))
    process.pause(until_ms=40)
    process.run(lambda: seen.append(("frame", schedule.now_ms)))
    run_out(schedule)
    assert seen == [("frame", 40), ("timer", 40)]
    process.end()
    process.run(lambda: seen.append(("late", 0)))
    assert len(seen) == 2


def test_while_a_loop_hangs_other_threads_go_on_and_what_is_told_to_it_waits() -> None:
    schedule, seen = Schedule(), []
    process = Process(schedule)
    process.after(10, lambda: seen.append(("loop's timer", schedule.now_ms)))
    process.after_beside(10, lambda: seen.append(("client's timer", schedule.now_ms)))
    process.hang(until_ms=40, keeps_settlements=False)
    process.run_beside(lambda: process.reach_loop(lambda: seen.append(("told", schedule.now_ms))))
    run_out(schedule)
    assert seen == [("client's timer", 10), ("told", 40), ("loop's timer", 40)]


def test_a_process_that_ends_in_a_hang_never_does_what_waited() -> None:
    schedule, seen = Schedule(), []
    process = Process(schedule)
    process.hang(until_ms=None, keeps_settlements=True)
    process.run(lambda: seen.append("loop"))
    process.after_beside(20, lambda: seen.append("client"))
    schedule.at(10, process.end)
    run_out(schedule)
    assert seen == []
