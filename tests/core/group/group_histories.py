"""All histories of a small group in which so many things go wrong, at whatever moment.

A history goes on until the group is as it was some time ago: what is at rest then stays so. Histories that meet are
followed once from there.
"""

import sys
from collections.abc import Callable, Mapping
from copy import deepcopy

from tests.core.group.small_group import SmallGroup
from tests.core.group.small_group_likeness import likeness

LONGEST_MS = 700
"""Until a history repeats itself, or meets one that is known: who is gone, or stands aside, is not forgotten before."""

Disturbance = tuple[str, tuple[object, ...]]
"""A method of the group, and what it is called with."""
Disturbances = Callable[[SmallGroup], list[Disturbance]]


class GroupHistories:
    """Follows all of them."""

    def __init__(self, disturbances: Disturbances) -> None:
        self.count = 0
        self._disturbances = disturbances
        self._next: dict[int, int] = {}
        """What a group is like after one more step, by what it was like; from all of these it comes to rest."""
        self._disturbed: dict[int, int] = {}
        """How many more disturbances have been tried there."""

    @property
    def state_count(self) -> int:
        """Of groups that are not alike."""
        return len(self._next)

    def follow(self, group: SmallGroup, more: int, story: tuple[tuple[int, Disturbance], ...] = ()) -> None:
        """Until it rests; and then with up to so many `more` disturbances, at every moment at which it did not.

        The shortest story of a mistake is found by trying with fewer first. Raises `AssertionError`, with the story.
        """
        self.count += 1
        path: dict[int, object] = {}
        branches: list[SmallGroup] = []
        began_ms, key = group.now_ms, likeness(group)
        while key not in path:
            was_here = key in self._next
            if is_new := group.unrest() != [] and self._disturbed.get(key, 0) < more:
                self._disturbed[key] = more
                branches.append(deepcopy(group))
            path[key] = group.owners()
            group.step()
            before, key = key, likeness(group)
            assert self._next.setdefault(before, key) == key, f"{story}: alike, and with another future"
            if was_here and not is_new:
                break
            assert group.now_ms - began_ms < LONGEST_MS, f"{story}: still no rest: {group.unrest()}"
        else:
            assert not group.unrest(), f"{story}: {group.unrest()}"
            repeated = list(path)[list(path).index(key) :]
            assert {path[each] for each in repeated} == {group.owners()}, f"{story}: queues go to and fro"
        for branch in branches:
            for name, arguments in self._disturbances(branch):
                other = deepcopy(branch)
                getattr(other, name)(*arguments)
                self.follow(other, more - 1, (*story, (branch.now_ms, (name, arguments))))


def tell_of(name: str, starts: Mapping[str, Callable[[], SmallGroup]], disturbances: Disturbances, most: int) -> None:
    """For a script: follow all histories from each of these starts, with fewer disturbances first."""
    for start, begin in starts.items():
        histories, problem = GroupHistories(disturbances), "well"
        try:
            for more in range(most + 1):
                histories.follow(begin(), more)
        except AssertionError as error:
            problem = str(error)
        sys.stdout.write(f"{start}, {name}: {histories.count} histories, {histories.state_count} states: {problem}\n")
        sys.stdout.flush()
