"""Ages: what a wall clock says is believed as far as a steady one allows."""

from structlog.testing import capture_logs

from lbg_runtime.pipeline.landing.age import STEP_US, Ages

HOUR = 3_600_000_000
RETENTION = 24 * HOUR
WALL = 1_800_000_000_000_000


def test_without_a_step_the_wall_clock_counts() -> None:
    ages = Ages(RETENTION)
    assert ages.look(WALL, 0) == WALL - RETENTION
    # Slewed, several times what a step would be altogether.
    for look in range(1, 10):
        wall_us = WALL + look * (HOUR + STEP_US)
        assert ages.look(wall_us, look * HOUR) == wall_us - RETENTION


def test_a_step_ahead_makes_nothing_old_until_the_retention_has_passed() -> None:
    ages = Ages(RETENTION)
    ages.look(WALL, 0)
    with capture_logs() as told:
        for hour in range(1, 25):
            assert ages.look(WALL + (hour + 48) * HOUR, hour * HOUR) is None
        assert ages.look(WALL + (25 + 48) * HOUR, 25 * HOUR) == WALL + (25 + 48 - 24) * HOUR
        assert ages.look(WALL + (26 + 48) * HOUR, 26 * HOUR) is not None
    assert [(each["event"], each["stepped_ms"]) for each in told] == [("landing_clock_stepped", 48 * 3_600_000)]


def test_a_second_step_begins_the_time_anew() -> None:
    ages = Ages(RETENTION)
    ages.look(WALL, 0)
    assert ages.look(WALL + 48 * HOUR, HOUR) is None
    assert ages.look(WALL + 96 * HOUR, 24 * HOUR) is None
    assert ages.look(WALL + 97 * HOUR, 25 * HOUR) is None
    assert ages.look(WALL + 120 * HOUR, 48 * HOUR) is not None


def test_a_clock_that_is_back_is_believed_at_once() -> None:
    ages = Ages(RETENTION)
    ages.look(WALL, 0)
    assert ages.look(WALL + 48 * HOUR, HOUR) is None
    assert ages.look(WALL + 2 * HOUR, 2 * HOUR) == WALL + 2 * HOUR - RETENTION


def test_a_step_back_is_believed_and_the_return_from_it_is_a_step_ahead() -> None:
    ages = Ages(RETENTION)
    ages.look(WALL, 0)
    assert ages.look(WALL - 48 * HOUR, HOUR) == WALL - 48 * HOUR - RETENTION
    assert ages.look(WALL, 2 * HOUR) is None


def test_of_a_short_retention_a_short_step_is_one() -> None:
    ages = Ages(60_000_000)
    ages.look(WALL, 0)
    assert ages.look(WALL + 60_000_000, 1) is None


def test_rows_that_are_dated_ahead_are_old_when_they_were_seen_for_as_long() -> None:
    ages = Ages(RETENTION)
    ages.look(WALL, 0)
    ages.look(WALL + HOUR, HOUR)
    assert not ages.is_aged("lane", 5, 7)
    ages.look(WALL + 24 * HOUR, 24 * HOUR)
    assert not ages.is_aged("lane", 5, 9)
    # More rows since then do not begin the time of those before them anew, or a lane that is written would keep all.
    assert not ages.is_aged("lane", 9, 9)
    assert not ages.is_aged("other", 5, 5)
    ages.look(WALL + 25 * HOUR, 25 * HOUR)
    assert ages.is_aged("lane", 5, 11)
    assert ages.is_aged("lane", 7, 11)
    # Landed since: their time begins.
    assert not ages.is_aged("lane", 9, 11)
    assert not ages.is_aged("other", 5, 5)
    ages.look(WALL + 49 * HOUR, 49 * HOUR)
    assert ages.is_aged("lane", 11, 20)
