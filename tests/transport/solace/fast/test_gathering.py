"""When what has gathered is taken, and that want of memory ends the flows and nothing else; on an intake that the test
moves.

More than 400 lines, as all of it moves one intake by hand.
"""

import asyncio
import errno
import gc
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import combinations_with_replacement
from typing import Any

import pytest

from lbg_runtime.transport.solace.fast.gathering import GatheredPath, Gathering
from lbg_runtime.transport.solace.inbox import Inbox


class Path:
    """In place of a receive path."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.taken: list[int] = []

    def take_each(self, messages: Iterable[int]) -> None:
        self.taken += messages

    def loop_is_blocked(self) -> None:
        pass

    def broken(self, error: BaseException) -> None:
        self.errors.append(str(error))


class Intake:
    """In place of the intake of C."""

    def __init__(self, free: int, bell: int, blocked: Callable[[GatheredPath], None], *_: Any) -> None:
        self.bell = bell
        self.blocked = blocked
        self.path = Path()
        self.gathered: list[tuple[int, int]] = []
        """Turns and messages."""
        self.turns = 0
        self.has_rung = False
        self.is_poor = False
        self.meanwhile: Callable[[str], None] = lambda _: None
        """Called behind each step of the loop."""

    def add(self, user: int, path: object) -> None:
        pass

    def remove(self, user: int, path: object) -> None:
        pass

    def gather(self, message: int) -> None:
        if not self.has_rung:
            os.write(self.bell, b"x")
        self.has_rung = True
        self.gathered.append((self.turns, message))

    @property
    def turn(self) -> int:
        found = self.turns
        self.meanwhile("turn")
        return found

    def pop(self, turn: int) -> Any:
        if self.is_poor:
            raise MemoryError("for a test")
        found = [message for begun, message in self.gathered if begun <= turn]
        del self.gathered[: len(found)]
        self.has_rung = self.has_rung and bool(self.gathered)
        self.meanwhile("pop")
        return [(self.path, found)] if found else []

    def cut(self) -> int | None:
        if self.is_poor:
            raise MemoryError("for a test")
        self.turns += 1
        self.has_rung = False
        return self.turns - 1 if self.gathered else None

    def close(self) -> None:
        os.close(self.bell)


class Rig:
    """A gathering on such an intake, and the client's network thread: each of its steps is a call."""

    def __init__(self) -> None:
        intakes: list[Intake] = []

        def make(*parts: Any) -> Any:
            intakes.append(Intake(*parts))
            return intakes[0]

        self.inbox = Inbox(asyncio.get_running_loop())
        self.gathering = Gathering(make, self.inbox, 1, 0.25)  # type: ignore[arg-type]
        self.intake = intakes[0]
        self.taken = self.intake.path.taken

    def gather(self, message: int) -> None:
        self.intake.gather(message)

    def post(self, event: int) -> None:
        self.inbox.post(self.taken.append, event)

    def seal(self) -> None:
        self.gathering.seal()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    rig.inbox.close()


async def until_nothing_waits(rig: Rig) -> None:
    while rig.intake.gathered or not rig.inbox.is_empty:  # noqa: ASYNC110 - the next turn of the loop is what it waits for
        await asyncio.sleep(0)


async def test_what_has_gathered_is_taken_when_it_has_rung(rig: Rig) -> None:
    rig.gather(1)
    rig.gather(2)
    await until_nothing_waits(rig)
    rig.gather(3)
    await until_nothing_waits(rig)
    assert rig.taken == [1, 2, 3]


EVENT = ("seal", "post", "seal")
STORIES = (
    ("gather", "gather", *EVENT, "gather", *EVENT, "gather"),
    # The loop looks in vain, as when it has rung before a cut.
    (*EVENT, "gather", *EVENT),
)
"""What the network thread does meanwhile."""
LOOKS = ("turn", "empty", "pop")


class Race:
    """One look of the loop, and how far the network thread gets in its story before the look, and behind each of the
    steps of that."""

    def __init__(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, story: tuple[str, ...], done: tuple[int, ...]
    ) -> None:
        self._rig = rig
        self._story = story
        self._count = 0
        before, *behind = done
        self._go_on(before)

        def meanwhile(step: str) -> None:
            self._go_on(behind[LOOKS.index(step)])

        def is_empty(inbox: Inbox) -> bool:
            found = not inbox._items
            meanwhile("empty")
            return found

        with monkeypatch.context() as slow:
            slow.setattr(rig.intake, "meanwhile", meanwhile)
            slow.setattr(Inbox, "is_empty", property(is_empty))
            rig.gathering._ring()
        self._go_on(len(story))

    def _go_on(self, until: int) -> None:
        while self._count < until:
            number, act = self._count, self._story[self._count]
            self._count += 1
            if act == "seal":
                self._rig.seal()
            elif act == "post":
                self._rig.post(number)
            else:
                self._rig.gather(number)


@pytest.mark.parametrize("story", STORIES)
async def test_messages_and_events_keep_their_order_however_far_the_network_thread_gets_between_two_looks(
    monkeypatch: pytest.MonkeyPatch, story: tuple[str, ...]
) -> None:
    expected = [number for number, act in enumerate(story) if act != "seal"]
    for done in combinations_with_replacement(range(len(story) + 1), len(LOOKS) + 1):
        rig = Rig()
        Race(rig, monkeypatch, story, done)
        await until_nothing_waits(rig)
        rig.inbox.close()
        assert rig.taken == expected, done


async def test_what_another_thread_gathers_while_an_event_is_posted_does_not_overtake_what_came_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a session is renewed, the old one may have a last event to tell while the new one brings messages."""
    post = rig.inbox.post

    def post_slowly(*item: Any) -> bool:
        rig.gather(2)
        rig.gathering._ring()
        return post(*item)

    rig.gather(1)
    with monkeypatch.context() as slow:
        slow.setattr(rig.inbox, "post", post_slowly)
        rig.seal()
    await until_nothing_waits(rig)
    assert rig.taken == [1, 2]


class Meeting:
    """Two network threads and the loop: between two steps of one of them the others may go on, as chance has it."""

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self._rig = rig
        self._chance = chance
        self._post = rig.inbox.post
        self._is_looking = False
        self._left = {first: [*chance.choices((EVENT, ("gather",)), k=5)] for first in (100, 200)}
        self._made = dict.fromkeys(self._left, 0)
        self._under_way: set[int] = set()
        rig.intake.meanwhile = self.go_on

    def post(self, *item: Any) -> bool:
        """In place of the inbox's own."""
        self.go_on()
        room = self._post(*item)
        self.go_on()
        return room

    def go_on(self, _: str = "") -> None:
        while self._chance.random() < 0.5:
            idle = [first for first, left in self._left.items() if left and first not in self._under_way]
            if idle and self._chance.random() < 0.7:
                self._act(self._chance.choice(idle))
            elif not self._is_looking:
                self._is_looking = True
                self._rig.gathering._ring()
                self._is_looking = False

    def finish(self) -> dict[int, int]:
        """Come to the end of all stories; returns how many numbers each thread has given."""
        while any(self._left.values()):
            self.go_on()
        self._rig.intake.meanwhile = lambda _: None
        return self._made

    def _act(self, first: int) -> None:
        self._under_way.add(first)
        number = first + self._made[first]
        self._made[first] += 1
        for act in self._left[first].pop(0):
            if act == "seal":
                self._rig.seal()
            elif act == "post":
                self._rig.post(number)
            else:
                self._rig.gather(number)
            self.go_on()
        self._under_way.remove(first)


async def test_each_of_two_threads_keeps_its_order_however_they_and_the_loop_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(1_000):
        rig = Rig()
        meeting = Meeting(rig, random.Random(seed))
        with monkeypatch.context() as slow:
            slow.setattr(rig.inbox, "post", meeting.post)
            made = meeting.finish()
        await until_nothing_waits(rig)
        rig.inbox.close()
        for first, count in made.items():
            taken = [number for number in rig.taken if first <= number < first + 100]
            assert taken == list(range(first, first + count)), seed


async def test_a_loop_that_moves_again_takes_what_has_gathered_before_it_has_more_come(rig: Rig) -> None:
    class Stopped(Path):
        def loop_is_blocked(self) -> None:
            rig.post(2)

    rig.gather(1)
    rig.intake.blocked(Stopped())
    await until_nothing_waits(rig)
    assert rig.taken == [1, 2]


async def test_what_is_taken_behind_events_comes_in_its_turn_although_it_rang_before(rig: Rig) -> None:
    rig.post(1)
    rig.gather(2)
    rig.gathering._ring()
    assert rig.taken == []
    await until_nothing_waits(rig)
    assert rig.taken == [1, 2]


@pytest.mark.parametrize("is_event", [False, True], ids=["pop", "cut"])
async def test_flows_whose_messages_are_lost_are_given_up_and_an_event_is_posted_all_the_same(
    rig: Rig, is_event: bool
) -> None:
    path, ended, other = Path(), Path(), Path()
    for user, each in enumerate((path, ended, other)):
        rig.gathering.add(user, each)
    rig.gathering.remove(1, ended)
    rig.intake.is_poor = True
    if is_event:
        rig.seal()
    else:
        rig.gathering._ring()
    rig.post(1)
    rig.intake.is_poor = False
    await until_nothing_waits(rig)
    assert [each.errors for each in (path, ended, other)] == [["for a test"], [], ["for a test"]]
    assert rig.taken == [1]


async def test_flows_whose_messages_find_no_memory_behind_an_event_are_given_up_and_later_ones_are_served(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise MemoryError("for a test")

    path = Path()
    rig.gathering.add(1, path)
    rig.post(1)
    rig.gather(2)
    with monkeypatch.context() as poor:
        poor.setattr(rig.inbox, "post", fail)
        rig.gathering._ring()
    assert path.errors == ["for a test"]
    rig.taken.clear()
    rig.gather(3)
    for _ in range(3):
        await asyncio.sleep(0)
    assert rig.taken == [1, 3]


async def test_flows_that_cannot_even_be_gone_through_are_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor(list[Any]):
        def __iter__(self) -> Any:
            raise MemoryError("for a test")

    monkeypatch.setattr(rig.intake, "pop", lambda _: Poor())
    path = Path()
    rig.gathering.add(1, path)
    rig.gathering._ring()
    assert path.errors == ["for a test"]


@pytest.mark.real_time
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
async def test_a_process_that_was_forked_takes_no_ring_from_its_parent(rig: Rig) -> None:
    """What is ready on the loop at the fork runs in both."""
    loop = asyncio.get_running_loop()
    is_over: asyncio.Future[int] = loop.create_future()
    wait, go_on = os.pipe()

    def fork() -> None:
        child = os.fork()
        if child:
            loop.call_soon(meanwhile, child)
        else:
            # What other tests have left may wait for threads of the client.
            gc.disable()
            # As runtime/forked.py does.
            loop.call_soon(os._exit, 0)
            os.read(wait, 1)

    def meanwhile(child: int) -> None:
        assert rig.taken == [1]
        rig.gather(2)
        os.write(go_on, b"x")
        is_over.set_result(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    # Both are ready in one round of the loop: first the fork, then the look.
    loop.call_soon(fork)
    rig.gather(1)
    assert await is_over == 0
    for end in (wait, go_on):
        os.close(end)
    for _ in range(3):
        await asyncio.sleep(0)
    assert rig.taken == [1, 2]


async def test_it_ends_with_its_inbox_and_leaves_no_file_open(rig: Rig) -> None:
    before = len(os.listdir("/dev/fd"))
    another = Rig()
    assert len(os.listdir("/dev/fd")) == before + 2
    another.gather(1)
    another.inbox.close()
    assert len(os.listdir("/dev/fd")) == before
    # Another pipe, which may have the same numbers, rings for itself.
    third = Rig()
    third.gather(2)
    await until_nothing_waits(third)
    assert (another.taken, third.taken) == ([], [2])
    third.inbox.close()


async def test_what_cannot_be_made_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room for another watch")

    before = len(os.listdir("/dev/fd"))
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", fail)
    with pytest.raises(OSError, match="another watch"):
        Rig()
    assert len(os.listdir("/dev/fd")) == before


def test_it_ends_on_any_thread_behind_its_loop() -> None:
    async def make() -> Rig:
        return Rig()

    before = len(os.listdir("/dev/fd"))
    loop = asyncio.new_event_loop()
    rig = loop.run_until_complete(make())
    loop.close()
    # As the client's network thread does, with an event.
    thread = threading.Thread(target=rig.post, args=(1,))
    thread.start()
    thread.join()
    assert (rig.taken, len(os.listdir("/dev/fd"))) == ([], before)
