"""The message callback in C: what it takes is given out once and in order, whoever calls at the same time, or freed."""

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from ctypes import CDLL, CFUNCTYPE, PyDLL, c_int, c_size_t, c_void_p

import pytest

from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast.calls import address_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(compiled.INTAKE is None, reason="the package was built without a compiler")

FULL = 4
TAKEN, NOT_TAKEN = 1, 0
SORTED = 1 << 20
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
        self.blocked: list[Path] = []
        self.errors: list[tuple[Path, BaseException]] = []
        self.bell, self.rung = os.pipe()
        for end in (self.bell, self.rung):
            os.set_blocking(end, False)
        self.intake = compiled.INTAKE(address_of(free), self.rung, self.blocked.append, self._broken, full, patience_ms)

    def __del__(self) -> None:
        os.close(self.bell)

    def _broken(self, path: Path, error: BaseException) -> None:
        self.errors.append((path, error))

    def heard(self) -> int:
        """How often it has rung since the last look."""
        with suppress(BlockingIOError):
            return len(os.read(self.bell, 1 << 17))
        return 0

    def add(self, *users: int) -> list[Path]:
        paths = [Path(str(user)) for user in users]
        for user, path in zip(users, paths, strict=True):
            self.intake.add(user, path)
        return paths

    def pop(self) -> list[tuple[Path, list[int]]]:
        found: list[tuple[Path, list[int]]] = self.intake.pop(self.intake.turn)
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


def test_what_gathers_rings_once_and_is_given_out_in_order(rig: Rig) -> None:
    a, b = rig.add(A, B)
    assert call(A, 1, 2) + call(B, 3) == [TAKEN] * 3
    assert rig.heard() == 1
    assert rig.pop() == [(a, [1, 2]), (b, [3])]
    assert rig.pop() == []
    assert rig.heard() == 0
    call(B, 4)
    call(A, 5)
    call(B, 6)
    assert rig.heard() == 1
    assert rig.pop() == [(b, [4]), (a, [5]), (b, [6])]


def test_whoever_looked_at_the_turn_before_a_cut_gets_what_came_before_it_and_what_follows_rings_anew(rig: Rig) -> None:
    (a,) = rig.add(A)
    assert rig.intake.cut() is None
    call(A, 1, 2)
    first = rig.intake.turn
    assert rig.intake.cut() == first
    assert rig.heard() == 1
    call(A, 3, 4)
    assert rig.heard() == 1
    assert rig.intake.pop(first) == [(a, [1, 2])]
    assert rig.intake.pop(first) == []
    call(A, 5)
    assert rig.heard() == 0
    assert rig.pop() == [(a, [3, 4, 5])]
    call(A, 6)
    assert rig.heard() == 1


def test_what_is_given_out_late_is_given_out_in_order(rig: Rig) -> None:
    a, b = rig.add(A, B)
    call(A, 1)
    first = rig.intake.cut()
    call(B, 2)
    call(A, 3)
    assert rig.pop() == [(a, [1]), (b, [2]), (a, [3])]
    assert first is not None
    assert rig.intake.pop(first) == []


def test_a_pipe_that_is_full_rings_all_the_same(rig: Rig) -> None:
    (a,) = rig.add(A)
    with suppress(BlockingIOError):
        while True:
            os.write(rig.rung, b"x" * 1_024)
    assert call(A, 1, 2) == [TAKEN] * 2
    assert (rig.pop(), rig.errors) == ([(a, [1, 2])], [])
    assert rig.heard()


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
        given += [message for path, messages in rig.pop() for message in messages if path is a]
    waiting.join(30)
    assert not waiting.is_alive()
    assert (given, rig.blocked) == (list(range(1, FULL + 1)), [])


def test_messages_go_to_their_flow_and_those_of_no_flow_are_the_clients(rig: Rig) -> None:
    users = list(range(16, 16 * 500, 16))
    paths = dict(zip(users, rig.add(*users), strict=True))
    for user, path in paths.items():
        assert call(user, user + 1) == [TAKEN]
        assert rig.pop() == [(path, [user + 1])]
    assert call(8, 1) == [NOT_TAKEN]
    gone = users[::3]
    for user in gone:
        rig.intake.remove(user, paths.pop(user))
    assert [call(user, 1) for user in gone] == [[NOT_TAKEN]] * len(gone)
    for user, path in paths.items():
        assert call(user, user + 2) == [TAKEN]
        assert rig.pop() == [(path, [user + 2])]


def test_what_had_gathered_of_a_flow_that_is_gone_is_given_out(rig: Rig) -> None:
    a, b = rig.add(A, B)
    call(A, 1)
    call(B, 2)
    call(A, 3)
    rig.intake.remove(A, a)
    assert call(A, 4) == [NOT_TAKEN]
    assert rig.pop() == [(a, [1]), (b, [2]), (a, [3])]


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
    assert (FREED, rig.pop()) == ([1, 2], [])


def test_what_is_closed_has_closed_its_end_of_the_pipe_and_rings_no_more(rig: Rig) -> None:
    rig.add(A)
    rig.intake.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(rig.rung)
    # The number is another file's now.
    other = os.open(os.devnull, os.O_RDONLY)
    assert (other, call(A, 1), rig.errors) == (rig.rung, [NOT_TAKEN], [])
    rig.intake.close()
    os.close(other)


def test_a_bell_that_does_not_ring_is_told_and_the_next_message_rings_again(rig: Rig) -> None:
    a, b = rig.add(A, B)
    kept = os.dup(rig.rung)
    os.close(rig.rung)
    assert call(A, 1) == [TAKEN]
    os.dup2(kept, rig.rung)
    os.close(kept)
    assert call(B, 2) == [TAKEN]
    [(path, error)] = rig.errors
    assert (path, isinstance(error, OSError) and error.errno) == (a, errno.EBADF)
    assert rig.heard() == 1
    assert rig.pop() == [(a, [1]), (b, [2])]


def test_an_intake_is_made_once_and_needs_what_frees(rig: Rig) -> None:
    with pytest.raises(ValueError, match="made once"):
        rig.intake.__init__(1, -1, print, print, 1, 1)  # type: ignore[misc]
    with pytest.raises(ValueError, match="that frees"):
        type(rig.intake)(0, -1, print, print, 1, 1)


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


def test_who_rings_does_not_wait_for_the_interpreter() -> None:
    """The loop has it while it handles what came before; whoever waited for that would gather nothing meanwhile."""
    rig = Rig(full=1 << 30)
    (a,) = rig.add(A)
    # The library's sort calls back again and again without the interpreter's lock, its last argument behind two others.
    sort = threading.Thread(
        target=CDLL(None).qsort_r,
        args=(bytes(SORTED), c_size_t(SORTED), c_size_t(1), c_void_p(compiled.CALLBACK), c_void_p(A)),
    )
    interval, usleep = sys.getswitchinterval(), PyDLL(None).usleep
    # From here on nobody takes the interpreter's lock from us; the sort's thread leaves it when it begins to sort.
    sys.setswitchinterval(60)
    try:
        sort.start()
        for _ in range(3):
            assert any(rig.heard() or usleep(100) for _ in range(100_000))
            assert rig.pop()
        rig.intake.remove(A, a)
    finally:
        sys.setswitchinterval(interval)
    sort.join()
    # Millions, which would be freed whenever the rig is collected: in whatever test that is.
    rig.pop()


@pytest.mark.real_time
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_in_a_flood_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    rig = Rig(full=1 << 30)
    (a,) = rig.add(A)
    flood = threading.Thread(
        target=CDLL(None).qsort_r,
        args=(bytes(SORTED), c_size_t(SORTED), c_size_t(1), c_void_p(compiled.CALLBACK), c_void_p(A)),
    )
    flood.start()
    codes: list[int] = []
    while flood.is_alive() and not any(codes):
        rig.pop()
        child = os.fork()
        if not child:
            # What other tests have left may wait for threads of the client.
            gc.disable()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE_S)
            rig.pop()
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    rig.intake.remove(A, a)
    flood.join()
    rig.pop()
    assert not any(codes)


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
        parts = rig.pop() if rig.heard() else []
        if others % 3 == 1 and (ended := rig.intake.cut()) is not None:
            parts += rig.intake.pop(ended)
        for path, messages in parts:
            if path.name in given:
                given[path.name] += messages
            else:
                others += 1
    is_done.set()
    for thread in threads:
        while thread.is_alive():
            rig.pop()
            thread.join(0.01)
    assert all(each == list(range(1, count + 1)) for each in given.values())
    assert (rig.blocked, rig.errors) == ([], [])
