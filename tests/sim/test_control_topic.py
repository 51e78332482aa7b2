"""The simulated control topic and the clocks of those who talk on it."""

from dataclasses import dataclass, field, replace

import pytest

from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.core.group.control_messages import ControlMessage, Header, Life, StateRequest
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.clock import DriftingClock
from lbg_runtime.sim.control_topic import ControlTopic
from lbg_runtime.sim.schedule import Schedule
from lbg_runtime.sim.settings import ControlSettings
from lbg_runtime.sim.story import story_settings

CALM = replace(story_settings(RebindMode.COOPERATIVE, 3, 1).control, longest_delay_ms=0)


@dataclass(eq=False)
class Ear:
    name: str
    is_reachable: bool = True
    is_over: bool = False
    heard: list[int] = field(default_factory=list)

    def hear(self, message: ControlMessage) -> None:
        self.heard.append(message.header.sequence)


def message(number: int) -> ControlMessage:
    return StateRequest(Header(GroupName("orders"), MemberId("a"), Life(1, 1), number))


class Room:
    def __init__(self, settings: ControlSettings, noisy_until_ms: int = 1_000) -> None:
        self.schedule = Schedule()
        self.topic = ControlTopic(self.schedule, SeededChance(1), settings, noisy_until_ms)
        self.ears = {name: Ear(name) for name in "abc"}
        for ear in self.ears.values():
            self.topic.join(ear)

    def say(self, sender: str, count: int = 1) -> None:
        for number in range(1, count + 1):
            self.topic.publish(self.ears[sender], message(number))
        self.schedule.run(self.schedule.now_ms + 200, lambda: False)

    def heard(self) -> dict[str, int]:
        return {name: len(ear.heard) for name, ear in self.ears.items()}


def test_everybody_hears_everything_in_order_and_so_does_who_says_it() -> None:
    room = Room(replace(CALM, longest_delay_ms=50))
    room.say("a", 20)
    assert [ear.heard for ear in room.ears.values()] == [list(range(1, 21))] * 3


def test_messages_overtake_each_other_where_they_may() -> None:
    room = Room(replace(CALM, longest_delay_ms=50, overtakes=True))
    room.say("a", 20)
    assert sorted(room.ears["b"].heard) == list(range(1, 21))
    assert room.ears["b"].heard != list(range(1, 21)) != room.ears["c"].heard


def test_messages_are_lost_and_repeated_until_the_noise_ends() -> None:
    room = Room(replace(CALM, loss_share=0.5, repeat_share=0.5), noisy_until_ms=100)
    room.say("a", 100)
    assert 30 < len(set(room.ears["b"].heard)) < 70
    assert len(room.ears["b"].heard) > len(set(room.ears["b"].heard))
    room.ears["b"].heard.clear()
    room.say("a", 100)
    assert len(room.ears["b"].heard) == 100


@pytest.mark.parametrize(
    ("sender", "one_way", "heard"),
    [
        ("a", False, {"a": 1, "b": 0, "c": 0}),
        ("b", False, {"a": 0, "b": 1, "c": 1}),
        ("a", True, {"a": 1, "b": 0, "c": 0}),
        ("b", True, {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_a_cut_keeps_two_sides_apart_until_it_heals(sender: str, one_way: bool, heard: dict[str, int]) -> None:
    room = Room(CALM)
    room.topic.cut(["a"], until_ms=100, one_way=one_way)
    room.say(sender)
    assert room.heard() == heard
    room.say("c")
    assert room.heard() == {name: count + 1 for name, count in heard.items()}


def test_who_is_not_connected_is_not_heard_and_hears_nothing() -> None:
    room = Room(CALM)
    room.ears["a"].is_reachable = False
    room.say("a")
    room.say("b")
    room.topic.part(room.ears["c"])
    room.say("b")
    assert room.heard() == {"a": 0, "b": 2, "c": 1}


def test_the_last_words_of_who_has_gone_are_heard_where_they_have_arrived() -> None:
    room = Room(CALM)
    room.ears["a"].is_reachable = False
    room.topic.publish(room.ears["a"], message(1))
    room.topic.publish(room.ears["a"], message(2), has_arrived=True)
    room.schedule.run(200, lambda: False)
    assert [room.ears[name].heard for name in "abc"] == [[], [2], [2]]


def test_an_ear_that_is_over_changes_nothing_for_others() -> None:
    heard = []
    for is_over in (False, True):
        room = Room(replace(CALM, loss_share=0.3, repeat_share=0.3), noisy_until_ms=10_000)
        room.ears["a"].is_over = is_over
        room.say("b", 50)
        room.say("c", 50)
        heard.append((room.ears["b"].heard, room.ears["c"].heard))
    assert heard[0] == heard[1]
    assert room.ears["a"].heard == []


@pytest.mark.parametrize("drift", [-100, -1, 0, 1, 100])
def test_a_clock_shows_what_was_waited_for_and_not_much_more(drift: int) -> None:
    schedule = Schedule()
    schedule.run(77, lambda: False)
    clock = DriftingClock(schedule, 5_000, drift)
    assert clock.now_ms == 5_000
    for until_ms in (5_000, 5_001, 5_999, 123_456):
        schedule.run(schedule.now_ms + clock.wait_ms(until_ms), lambda: False)
        assert until_ms <= clock.now_ms <= until_ms + 1
    assert clock.wait_ms(5_000) == 0


def test_a_clock_that_is_fast_is_ahead_after_a_second() -> None:
    schedule = Schedule()
    clock = DriftingClock(schedule, 0, 100)
    schedule.run(1_000, lambda: False)
    assert clock.now_ms == 1_100
