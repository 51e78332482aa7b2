"""Every history of a small group that is re-striped, in which one thing goes wrong with its members or is done to them.

Control planes, gates and conductor are the real ones: queues are added and go while members come, die, leave, are cut
off, and move others. What the gates and flow machines alone must not do is tried in tests/core/restripe. A few
disturbances are part of the tests; run as a script, it tries all, and pairs, which takes an hour.
"""

from collections.abc import Callable
from functools import partial

import pytest

from lbg_runtime.core.flow.events import PlaceChanged
from lbg_runtime.core.group.control_plane import ControlOutput, ControlPlaneMachine, QueuesAdded
from lbg_runtime.core.group.rebalance_events import AskFlow
from lbg_runtime.core.restripe import conductor
from lbg_runtime.core.restripe.striping import StripingBook, StripingReport
from lbg_runtime.model.ids import MemberId
from tests.core.group.group_histories import Disturbance, Disturbances, GroupHistories, tell_of
from tests.core.group.small_group import SmallGroup
from tests.core.group.small_restriped_group import RestripedGroup
from tests.core.group.test_every_history import breaks, delays, lives, losses, pauses, repeats

A, B = MemberId("a"), MemberId("b")


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that nobody has read is published again after some heartbeats."""
    monkeypatch.setattr(conductor, "LOOKS_PER_RECORD", 10)


def group_that_begins(before: int, after: int, *, joined: bool = True) -> RestripedGroup:
    """Two members are to have another number of queues, or one that is joined by another just then."""
    group = RestripedGroup(before, after)
    for name in (A, B) if joined else (A,):
        group.start(name)
    while group.now_ms < 1_080:
        group.step()
    group.restripe()
    if not joined:
        group.start(B)
    return group


def deaths(group: SmallGroup) -> list[Disturbance]:
    """The conductor dies, and another one is run, at once or behind some heartbeats; or a member dies."""
    members: list[Disturbance] = [("kill", (name,)) for name in group.members]
    is_conducted = isinstance(group, RestripedGroup) and group.conductor is not None
    return [*members, *([("replace_conductor", (ticks,)) for ticks in (1, 25)] if is_conducted else [])]


@pytest.mark.parametrize(
    ("before", "after", "joined", "disturbances", "least_count"),
    [
        (1, 2, True, deaths, 100),
        (2, 1, True, deaths, 100),
        (1, 2, True, losses, 25),
        (2, 1, True, losses, 18),
        (2, 1, True, delays, 20),
        (1, 2, False, lives, 100),
        (2, 1, False, losses, 28),
    ],
)
def test_whatever_happens_the_group_comes_to_its_number_of_queues(
    before: int, after: int, joined: bool, disturbances: Disturbances, least_count: int
) -> None:
    histories = GroupHistories(disturbances)
    histories.follow(group_that_begins(before, after, joined=joined), 1)
    assert histories.count >= least_count


def spread_to_no_new_flows(control: ControlPlaneMachine) -> list[ControlOutput]:
    return [each for each in SPREAD(control) if not isinstance(each, QueuesAdded)]


def spread_without_places(control: ControlPlaneMachine) -> list[ControlOutput]:
    return [
        each for each in SPREAD(control) if not (isinstance(each, AskFlow) and isinstance(each.request, PlaceChanged))
    ]


def believe_newer_only(book: StripingBook, report: StripingReport) -> bool:
    return report.striping.generation > book.now.generation and HEAR(book, report)


SPREAD, HEAR = ControlPlaneMachine._spread_striping, StripingBook.hear


@pytest.mark.parametrize(
    ("owner", "name", "broken", "counts", "is_noticed"),
    [
        (ControlPlaneMachine, "_give_gone_queues", lambda _: [], (2, 1), "still no rest|conducted"),
        (ControlPlaneMachine, "_spread_striping", spread_to_no_new_flows, (1, 2), "still no rest|conducted"),
        (ControlPlaneMachine, "_spread_striping", spread_without_places, (2, 1), "still no rest|conducted"),
        (ControlPlaneMachine, "_hear_ourselves", lambda *_: [], (1, 2), "still no rest|conducted"),
        (StripingBook, "hear", believe_newer_only, (2, 1), "still no rest|conducted"),
    ],
    ids=["give", "add", "place", "echo", "hear"],
)
def test_a_mistake_is_noticed(
    owner: type,
    name: str,
    broken: Callable[..., object],
    counts: tuple[int, int],
    is_noticed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = group_that_begins(*counts)
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError, match=is_noticed):
        GroupHistories(losses).follow(group, 1)


def _try_everything() -> None:
    conductor.LOOKS_PER_RECORD = 10

    def anything(group: SmallGroup) -> list[Disturbance]:
        return [each for some in (losses, delays, repeats, lives, pauses, breaks, deaths) for each in some(group)]

    def pairs(group: SmallGroup) -> list[Disturbance]:
        return [*losses(group), *lives(group)]

    starts: dict[str, Callable[[], SmallGroup]] = {}
    for before, after in ((1, 2), (2, 1), (2, 3), (3, 1)):
        for joined in (True, False):
            name = f"from {before} to {after}" + ("" if joined else " as one joins")
            starts[name] = partial(group_that_begins, before, after, joined=joined)
    tell_of("anything", starts, anything, 1)
    tell_of("a loss or a life, twice", starts, pairs, 2)
    tell_of("a death, twice", starts, deaths, 2)


if __name__ == "__main__":
    _try_everything()
