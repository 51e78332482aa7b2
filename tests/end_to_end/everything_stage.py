"""What runs in `everything` and is hit there: the broker, the database, and any process; and how long who waits."""

import math
import random
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.addresses import OWN_HOST, own_ports
from tests.guard.postgres_server import Server, running_server
from tests.patience import PATIENCE_S
from tests.processes import whole_lines
from tests.warm import LBG, Copy, Warm

QUIET_S = (0.5, 6.0)
"""Shortest and longest time between two blows to the same."""
OUTAGE_QUIET_S = (10.0, 60.0)
"""The same for the broker, which all need, and for the database."""
BREAK_S = (0.1, 13.0)
"""How long something is stopped or silent: from what nobody notices to more than every time-out."""
AWAY_S = (0.0, 3.0)
"""How long what has ended is away."""
HIT_FOR_S = 20.0
"""How long after a blow a member may leave with something unsettled, and after its start before it hears signals."""

LEAVE_WITH_PARENT = ("broker", "run", "land", "publish", "dashboard")
LONG = "import signal; signal.alarm(0)\n"
"""These leave with the process of which they are copies, so they need not end after ten minutes, as others do."""

BROKER_KILLED, DATABASE_KILLED = "broker: kill", "database: kill"

Cut = tuple[str, int, int]
"""A member, as journals name it, and from when to when it could not know what others did (monotonic, nanoseconds)."""


class GivenUp(Exception):
    """Something is wrong already, so there is nothing more to wait for."""


class Stage:
    """A broker, a database, what runs beside them, and what was done and went wrong; for all threads."""

    def __init__(self, folder: Path, warm: Warm, stack: ExitStack, pace: float = 1.0) -> None:
        """`pace`: by how much longer than as said all waits are."""
        self.folder, self.warm = folder, warm
        self.over = threading.Event()
        """No new blow is dealt, and every break ends."""
        self.blows: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.cuts: dict[str, list[Cut]] = defaultdict(list)
        """By group."""
        self._begun: set[str] = set()
        self._stack, self._pace, self._lock = stack, pace, threading.Lock()
        self.hosts = [f"tcp://{OWN_HOST}:{port}" for port in own_ports(2)]
        """Of a redundant pair: each life of the broker is at the other one, with what the one before has stored."""
        self.semp = self._faults = f"{OWN_HOST}:0"
        self.broker_hit_s = self._database_hit_s = -math.inf
        """When it was started again, by `time.monotonic`; in the future while it is away."""
        self._broker = self._start_broker()
        self.database: Server = stack.enter_context(running_server())

    def _start_broker(self) -> Copy:
        """With what it had stored; administrators find it where it was."""
        began = len(self._ready_lines())
        host = self.hosts[began % len(self.hosts)].removeprefix("tcp://")
        addresses = ("--smf", host, "--semp", self.semp, "--faults", self._faults)
        broker = self.run(self.folder, "broker", LBG, "broker", *addresses, "--store", "store")
        ready = self.until("the broker is ready", lambda: self._ready_lines()[began:])
        _, self.semp, self._faults = (each.rpartition(" ")[2] for each in ready[0].split(", "))
        return broker

    def _ready_lines(self) -> list[str]:
        return [line for line in self.log("broker") if " ready: " in line]

    def kill_broker(self, seed: int) -> None:
        """Kill it again and again, at least once, and start it again."""
        chance = random.Random(f"{seed} broker")
        while self.goes_on(chance, BROKER_KILLED, OUTAGE_QUIET_S):
            self.broker_hit_s = math.inf
            self._broker.kill()
            self.ended(self._broker, "the broker, which was killed")
            self.wait(chance, AWAY_S)
            self._broker = self._start_broker()
            self.broker_hit_s = time.monotonic()
            self.count(BROKER_KILLED)

    def kill_database(self, seed: int) -> None:
        """Stop it without notice, again and again, at least once, and start it again."""
        chance = random.Random(f"{seed} database")
        while self.goes_on(chance, DATABASE_KILLED, OUTAGE_QUIET_S):
            self._database_hit_s = math.inf
            self.database.stop()
            self.wait(chance, AWAY_S)
            self.database.start()
            self._database_hit_s = time.monotonic()
            self.count(DATABASE_KILLED)

    @property
    def broker_was_hit(self) -> bool:
        """Whether the broker is away, or was just before."""
        return time.monotonic() - self.broker_hit_s < HIT_FOR_S

    @property
    def database_was_hit(self) -> bool:
        """The same of the database."""
        return time.monotonic() - self._database_hit_s < HIT_FOR_S

    def run(self, folder: Path, name: str, program: str, *words: object) -> Copy:
        """A process of ours, with a log of this name; it is gone at the end."""
        if program == LBG and words[0] in LEAVE_WITH_PARENT:
            program, words = LONG + program, (*words, "--exit-with-parent")
        with (self.folder / f"{name}.log").open("ab") as log, self._lock:
            return self._stack.enter_context(self.warm.running(program, *words, cwd=folder, stdout=log, stderr=log))

    def lbg(self, group: str, *words: object, codes: Sequence[int] = (0,)) -> tuple[int, str]:
        """A command on a group, to its end: its exit code, and what it printed."""
        try:
            ended = self.warm.run(LBG, *words, "--config", "config.yaml", cwd=self.folder / group)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not within {PATIENCE_S} s: {group}: lbg {words} ends") from None
        if ended.returncode not in codes:
            raise AssertionError(f"lbg {words}: exit code {ended.returncode}: {ended.stderr.strip()[-1_000:]}")
        return ended.returncode, ended.stdout

    def log(self, name: str) -> list[str]:
        return whole_lines(self.folder / f"{name}.log")

    def ended(self, process: Copy, what: str) -> int:
        """The exit code of a process that is to end."""
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not within {PATIENCE_S} s: the end of {what}") from None

    def until(self, step: str | Callable[[], str], look: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """What `look` finds, once it finds something; raises `GivenUp` when anything is wrong with the run.

        `step`: what is waited for, which may be said only when it has not come.
        """
        end_s = time.monotonic() + patience_s
        while not (found := look()):
            if self.wrong:
                raise GivenUp
            if time.monotonic() > end_s:
                raise AssertionError(f"not within {patience_s:.0f} s: {step if isinstance(step, str) else step()}")
            time.sleep(0.2)  # other processes have no event to wait for
        return found

    def goes_on(self, chance: random.Random, blow: str, quiet_s: tuple[float, float] = QUIET_S) -> bool:
        """Some time later: whether the end has not come, or nothing is wrong and this blow was not dealt yet."""
        return not self.wait(chance, quiet_s) or not (self.wrong or self.blows[blow])

    def rest(self, chance: random.Random, range_s: tuple[float, float]) -> None:
        """Let some time pass, also at the end."""
        time.sleep(chance.uniform(*range_s) * self._pace)

    def wait(self, chance: random.Random, range_s: tuple[float, float]) -> bool:
        """Let some time pass; whether the end has come by then."""
        return self.over.wait(chance.uniform(*range_s) * self._pace)

    def count(self, blow: str) -> None:
        with self._lock:
            self.blows[blow] += 1

    def is_first(self, what: str) -> bool:
        """Whether nobody has asked for this before."""
        with self._lock:
            was_begun = what in self._begun
            self._begun.add(what)
        return not was_begun

    def clients(self) -> list[str]:
        """Who is connected; nobody while the broker is away."""
        try:
            answer = httpx.get(f"http://{self._faults}/", timeout=PATIENCE_S, trust_env=False).raise_for_status()
        except httpx.TransportError:
            return []
        names: list[str] = answer.json()["clients"]
        return names

    def order(self, fault: str, **said: object) -> None:
        """Have the broker, if it is there, do something to a client."""
        with suppress(httpx.TransportError):
            answer = httpx.post(f"http://{self._faults}/{fault}", json=said, timeout=PATIENCE_S, trust_env=False)
            answer.raise_for_status()

    def thread(self, name: str, act: Callable[[], None]) -> threading.Thread:
        """A thread that does this; if it raises, that is wrong with the run, which ends."""

        def guarded() -> None:
            try:
                with suppress(GivenUp):
                    act()
            except Exception as error:  # noqa: BLE001  # told at the end, with all else
                traceback.print_exc()
                self._end_as(f"{name}: {str(error) or type(error).__name__}")

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def join(self, threads: Iterable[threading.Thread], patience_s: float) -> None:
        """Wait for threads to end; if one does not, that is wrong with the run, and where it stands is told."""
        end_s = time.monotonic() + patience_s
        for thread in threads:
            thread.join(max(0.0, end_s - time.monotonic()))
            if thread.is_alive():
                self._end_as(f"not within {patience_s:.0f} s: the end of {thread.name}, which is at {where_in(thread)}")

    def _end_as(self, wrong: str) -> None:
        self.wrong.append(wrong)
        self.over.set()


def where_in(thread: threading.Thread) -> str:
    """The lines of the soak that a thread is in, the outermost first."""
    frame = sys._current_frames().get(thread.ident or 0)
    ours = [line for line in traceback.extract_stack(frame) if Path(line.filename).parent == Path(__file__).parent]
    return ", ".join(f"{Path(line.filename).name}:{line.lineno} {line.line}" for line in ours)
