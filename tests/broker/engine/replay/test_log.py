"""The replay log by itself, against a list that forgets nothing."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.replay.log import NS_PER_S, AfterMessage, FromBeginning, FromTime, ReplayLog
from lbg_runtime.broker.engine.settings import ReplayLogSettings
from lbg_runtime.model.errors import BrokerRefusal


@dataclass
class Clock:
    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Model:
    """Everything that ever came, and when."""

    came: list[tuple[int, Published]] = field(default_factory=list)

    def within(self, max_bytes: int) -> list[tuple[int, Published]]:
        """The longest tail that fits."""
        start, size = len(self.came), 0
        while start and size + self.came[start - 1][1].size_bytes <= max_bytes:
            start -= 1
            size += self.came[start][1].size_bytes
        return self.came[start:]


def log_of(max_bytes: int, clock: Clock) -> ReplayLog:
    return ReplayLog("default", ReplayLogSettings("log", max_bytes), clock)


STEPS = st.tuples(st.integers(0, 40), st.floats(-2, 5, allow_nan=False))


@given(st.lists(STEPS, max_size=60), st.integers(0, 100), st.integers(0, 100), st.integers(0, 300))
def test_a_log_is_the_latest_that_fits_and_a_time_cuts_it_in_two(
    steps: list[tuple[int, float]], max_bytes: int, smaller: int, after_s: int
) -> None:
    clock, model = Clock(), Model()
    log = log_of(max_bytes, clock)
    latest_ns = 0
    for number, (size, pause_s) in enumerate(steps):
        clock.now_s += pause_s  # Clocks are set back, too.
        latest_ns = max(latest_ns, 1_000 * NS_PER_S, int(clock.now_s * NS_PER_S))
        # A message of no size keeps nothing out.
        message = Published("a", number, size + 1, number=2 * number)
        model.came.append((latest_ns, message))
        log.add(message)
    kept = model.within(max_bytes)
    assert log.since(FromBeginning()) == [message for _, message in kept]
    assert (log.message_count, log.size_bytes) == (len(kept), sum(message.size_bytes for _, message in kept))
    at_ns = (1_000 + after_s) * NS_PER_S
    assert log.since(FromTime(at_ns)) == [message for came_ns, message in kept if came_ns >= at_ns]
    log.change(ReplayLogSettings("log", smaller))
    assert log.since(FromBeginning()) == [message for _, message in model.within(min(max_bytes, smaller))]


def test_there_is_nothing_from_before_the_second_in_which_the_log_began() -> None:
    clock = Clock(1_000.7)
    log = log_of(100, clock)
    assert log.reaches_back_to(FromBeginning())
    assert log.reaches_back_to(FromTime(1_000 * NS_PER_S))
    assert not log.reaches_back_to(FromTime(1_000 * NS_PER_S - 1))


def test_a_message_says_after_which_replay_starts_if_it_is_there_and_this_brokers() -> None:
    log = log_of(3, Clock())
    messages = [Published("a", number, 1, number=number) for number in (2, 5, 6, 9)]
    for message in messages:
        log.add(message)
    assert log.since(AfterMessage(7, 5), spooler=7) == messages[2:]
    assert log.since(AfterMessage(7, 9), spooler=7) == []
    for missing in (AfterMessage(7, 2), AfterMessage(7, 7), AfterMessage(7, 10), AfterMessage(8, 5)):
        with pytest.raises(BrokerRefusal, match="403 Replay Start Message Unavailable"):
            log.since(missing, spooler=7)
