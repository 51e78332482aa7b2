"""The message callback in C: what it takes is given out once and in order, whoever calls at the same time, or freed."""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import CDLL, CFUNCTYPE, PyDLL, c_int, c_size_t, c_void_p

import pytest

from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast.calls import address_of

pytestmark = pytest.mark.skipif(compiled.INTAKE is None, reason="the package was built without a compiler")

FULL = 4
TAKEN, NOT_TAKEN = 1, 0
A, B = 1 << 20, 2 << 20
FREED: list[int] = []
"""Stays, as the library's function does, whatever of an intake is collected first."""


@CFUNCTYPE(c_int, c_void_p)
def free(place: int) -> int:
    FREED.append(c_void_p.from_address(place).value or 0)
    return 0


class Path:
    """In place of a receive path: two of one name are two."""

    def __init__(self, name: str) -> None:
        self.name = name


class Rig:
    """One intake, and what it calls back."""

    def __init__(self, patience_ms: int = 1, full: int = FULL) -> None:
        assert compiled.INTAKE is not None
        FREED.clear()
        self.turns: list[int] = []
        self.blocked: list[Path] = []
        self.errors: list[tuple[Path, str]] = []
        self.announce: Callable[[int], None] = self.turns.append
        self.intake = compiled.INTAKE(
            address_of(free), self._announce, self.blocked.append, self._broken, full, patience_ms
        )

    def _announce(self, turn: int) -> None:
        self.announce(turn)

    def _broken(self, path: Path, error: BaseException) -> None:
        self.errors.append((path, str(error)))

    def add(self, *users: int) -> list[Path]:
        paths = [Path(str(user)) for user in users]
        for user, path in zip(users, paths, strict=True):
            self.intake.add(user, path)
        return paths

    def pop(self) -> list[tuple[Path, list[int]]]:
        found: list[tuple[Path, list[int]]] = self.intake.pop(self.turns[-1])
        return found


def call(user: int, *messages: int) -> list[int]:
    """As the client's network thread does, without the interpreter's lock."""
    callback = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)(compiled.CALLBACK)
    return [callback(None, message, user) for message in messages]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.intake.close()


def test_what_gathers_is_announced_once_and_given_out_in_order(rig: Rig) -> None:
    a, b = rig.add(A, B)
    assert call(A, 1, 2) + call(B, 3) == [TAKEN] * 3
    assert rig.turns == [0]
    assert rig.pop() == [(a, [1, 2]), (b, [3])]
    assert rig.pop() == []
    call(B, 4)
    call(A, 5)
    call(B, 6)
    assert rig.turns == [0, 1]
    assert rig.pop() == [(b, [4]), (a, [5]), (b, [6])]


def test_what_was_cut_off_is_not_popped_and_what_follows_has_a_turn_of_its_own(rig: Rig) -> None:
    (a,) = rig.add(A)
    call(A, 1, 2)
    assert rig.intake.cut() == [(a, [1, 2])]
    call(A, 3)
    first, second = rig.turns
    # The news of the first comes to the loop all the same: it must not bring what belongs behind the cut.
    assert rig.intake.pop(first) == []
    assert rig.intake.pop(second) == [(a, [3])]


def test_a_loop_that_does_not_come_is_waited_for_once_and_each_flow_is_told_of_it(rig: Rig) -> None:
    a, b = rig.add(A, B)
    call(A, *range(1, FULL))
    assert rig.blocked == []
    call(A, FULL)
    assert rig.blocked == [a]
    call(A, 5, 6)
    call(B, 7, 8)
    assert rig.blocked == [a, b]
    assert rig.pop() == [(a, [1, 2, 3, 4, 5, 6]), (b, [7, 8])]
    call(A, *range(1, FULL + 1))
    assert rig.blocked == [a, b, a]


def test_a_loop_that_comes_ends_the_wait() -> None:
    rig = Rig(patience_ms=60_000)
    (a,) = rig.add(A)
    call(A, *range(1, FULL))
    waiting = threading.Thread(target=call, args=(A, FULL))
    waiting.start()
    given: list[int] = []
    while len(given) < FULL:
        given += [message for path, messages in rig.intake.cut() for message in messages if path is a]
    waiting.join(30)
    assert not waiting.is_alive()
    assert (given, rig.blocked) == (list(range(1, FULL + 1)), [])


def test_messages_go_to_their_flow_and_those_of_no_flow_are_the_clients(rig: Rig) -> None:
    users = list(range(16, 16 * 500, 16))
    paths = dict(zip(users, rig.add(*users), strict=True))
    for user, path in paths.items():
        assert call(user, user + 1) == [TAKEN]
        assert rig.intake.cut() == [(path, [user + 1])]
    assert call(8, 1) == [NOT_TAKEN]
    gone = users[::3]
    for user in gone:
        rig.intake.remove(user, paths.pop(user))
    assert [call(user, 1) for user in gone] == [[NOT_TAKEN]] * len(gone)
    for user, path in paths.items():
        assert call(user, user + 2) == [TAKEN]
        assert rig.intake.cut() == [(path, [user + 2])]


def test_what_had_gathered_of_a_flow_that_is_gone_is_given_out(rig: Rig) -> None:
    a, b = rig.add(A, B)
    call(A, 1)
    call(B, 2)
    call(A, 3)
    rig.intake.remove(A, a)
    assert call(A, 4) == [NOT_TAKEN]
    assert rig.pop() == [(a, [1]), (b, [2]), (a, [3])]


def test_a_flow_that_goes_while_its_callback_waits_for_the_interpreter_leaves_its_news_behind(rig: Rig) -> None:
    # The library's sort calls back again and again without the interpreter's lock, with the flow as its last argument:
    # the first call that finds the flow in the table gathers a message, and waits for us with the news.
    count = 1 << 22
    sort = threading.Thread(
        target=CDLL(None).qsort_r,
        args=(bytes(count), c_size_t(count), c_size_t(1), c_void_p(compiled.CALLBACK), c_void_p(A)),
    )
    interval, wait_us = sys.getswitchinterval(), PyDLL(None).usleep
    # From here on nobody takes the interpreter's lock from us; the sort's thread leaves it when it begins to sort.
    sys.setswitchinterval(60)
    try:
        sort.start()
        clock = time.pthread_getcpuclockid(sort.ident or 0)
        spent_s = time.clock_gettime(clock)
        (a,) = rig.add(A)
        # It may have to wait for a core; once it has one, it meets the flow at once.
        while time.clock_gettime(clock) == spent_s:
            wait_us(1_000)
        wait_us(100_000)
        told_before = list(rig.turns)
        rig.intake.remove(A, a)
    finally:
        sys.setswitchinterval(interval)
    sort.join()
    assert told_before == []
    [(path, [_])] = rig.pop()
    assert path is a
    rig.add(B)
    call(B, 1)
    assert rig.turns == [0, 1]


def test_a_new_flow_at_the_same_address_gets_the_messages_and_the_end_of_the_old_one_takes_nothing_from_it(
    rig: Rig,
) -> None:
    (older,) = rig.add(A)
    call(A, 1)
    (newer,) = rig.add(A)
    call(A, 2)
    rig.intake.remove(A, older)
    assert call(A, 3) == [TAKEN]
    assert rig.pop() == [(older, [1]), (newer, [2, 3])]


def test_two_intakes_do_not_see_each_others_messages(rig: Rig) -> None:
    other = Rig()
    (a,), (b,) = rig.add(A), other.add(B)
    call(A, 1)
    call(B, 2)
    other.intake.remove(A, a)
    assert (rig.pop(), other.pop()) == ([(a, [1])], [(b, [2])])


def test_what_nobody_took_is_freed_when_it_is_closed_and_nothing_is_taken_after(rig: Rig) -> None:
    rig.add(A)
    call(A, 1, 2)
    rig.intake.close()
    assert FREED == [1, 2]
    assert call(A, 3) == [NOT_TAKEN]
    rig.intake.close()
    assert (FREED, rig.intake.pop(0), rig.turns) == ([1, 2], [], [0])


def test_an_announcement_that_fails_is_told_and_the_next_message_brings_it(rig: Rig) -> None:
    def fail(_: int) -> None:
        raise MemoryError("for a test")

    a, b = rig.add(A, B)
    rig.announce = fail
    assert call(A, 1) == [TAKEN]
    rig.announce = rig.turns.append
    assert call(B, 2) == [TAKEN]
    assert rig.errors == [(a, "for a test")]
    assert rig.pop() == [(a, [1]), (b, [2])]


def test_an_intake_is_made_once_and_needs_what_frees(rig: Rig) -> None:
    with pytest.raises(ValueError, match="made once"):
        rig.intake.__init__(1, print, print, print, 1, 1)  # type: ignore[misc]
    with pytest.raises(ValueError, match="that frees"):
        type(rig.intake)(0, print, print, print, 1, 1)


def test_an_intake_that_is_referred_to_by_its_paths_is_collected_with_all_it_holds() -> None:
    # The rig has the intake, the intake the methods of the rig, and a path the rig.
    rig = Rig()
    (path,) = rig.add(A)
    path.rig = rig  # type: ignore[attr-defined]
    call(A, 4_711)
    del rig, path
    gc.collect()
    assert FREED == [4_711]
    assert call(A, 1) == [NOT_TAKEN]


def test_threads_that_call_while_flows_come_and_go_lose_and_mix_up_nothing() -> None:
    """Four network threads, one flow each, one loop that pops and cuts as it likes, and another thread that binds."""
    count = 2_000
    rig = Rig(patience_ms=10_000, full=64)
    users = [16, 32, 48, 64]
    paths = rig.add(*users)
    threads = [threading.Thread(target=call, args=(user, *range(1, count + 1))) for user in users]
    is_done = threading.Event()

    def bind_and_unbind() -> None:
        number = 100
        while not is_done.is_set():
            number += 16
            (path,) = rig.add(number)
            call(number, 1)
            rig.intake.remove(number, path)

    threads.append(threading.Thread(target=bind_and_unbind))
    for thread in threads:
        thread.start()
    given: dict[str, list[int]] = {path.name: [] for path in paths}
    others = 0
    while any(len(each) < count for each in given.values()):
        parts = rig.intake.pop(rig.turns.pop(0)) if rig.turns else []
        if others % 3 == 1:
            parts += rig.intake.cut()
        for path, messages in parts:
            if path.name in given:
                given[path.name] += messages
            else:
                others += 1
    is_done.set()
    for thread in threads:
        while thread.is_alive():
            rig.intake.cut()
            thread.join(0.01)
    assert all(each == list(range(1, count + 1)) for each in given.values())
    assert (rig.blocked, rig.errors) == ([], [])
