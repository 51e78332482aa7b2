"""The processes of `everything`, and the blows that are dealt to each."""

import math
import os
import random
import signal
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from tests.addresses import OWN_HOST
from tests.patience import PATIENCE_S
from tests.processes import whole_lines
from tests.warm import LBG, Copy, Warm

QUIET_S = (0.5, 6.0)
"""Shortest and longest time between two blows to the same."""
BREAK_S = (0.1, 13.0)
"""How long something is stopped or silent: from what nobody notices to more than every time-out."""
BROKER_QUIET_S = (10.0, 60.0)
"""The same for the broker, which hits all."""
AWAY_S = (0.0, 3.0)
"""How long what has ended is away."""
HIT_FOR_S = 20.0
"""How long after a blow a member may leave with something unsettled, and after its start before it hears signals."""

LEAVE_WITH_PARENT = ("broker", "run", "land", "publish")
LONG = "import signal; signal.alarm(0)\n"
"""These leave with the process of which they are copies, so they need not end after ten minutes, as others do."""

BROKER_KILLED = "broker: kill"

Cut = tuple[str, int, int]
"""A member, as journals name it, and from when to when it could not know what others did (monotonic, nanoseconds)."""


class GivenUp(Exception):
    """Something is wrong already, so there is nothing more to wait for."""


class Stage:
    """A broker, what runs on it, and what was done and went wrong; for all threads."""

    def __init__(self, folder: Path, warm: Warm, stack: ExitStack, pace: float = 1.0) -> None:
        """`pace`: by how much longer than as said all waits are."""
        self.folder, self.warm = folder, warm
        self.over = threading.Event()
        """No new blow is dealt, and every break ends."""
        self.blows: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.cuts: dict[str, list[Cut]] = defaultdict(list)
        """By group."""
        self._stack, self._pace, self._lock = stack, pace, threading.Lock()
        self.smf = self.semp = self._faults = f"{OWN_HOST}:0"
        self.broker_hit_s = -math.inf
        """When it was started again, by `time.monotonic`; in the future while it is away."""
        self._broker = self._start_broker()

    def _start_broker(self) -> Copy:
        """On the same ports again, with what it had stored."""
        began = len(self._ready_lines())
        addresses = ("--smf", self.smf, "--semp", self.semp, "--faults", self._faults)
        broker = self.run(self.folder, "broker", LBG, "broker", *addresses, "--store", "store")
        ready = self.until("the broker is ready", lambda: self._ready_lines()[began:])
        self.smf, self.semp, self._faults = (each.rpartition(" ")[2] for each in ready[0].split(", "))
        return broker

    def _ready_lines(self) -> list[str]:
        return [line for line in self.log("broker") if " ready: " in line]

    def kill_broker(self, seed: int) -> None:
        """Kill it again and again, at least once, and start it again."""
        chance = random.Random(f"{seed} broker")
        while self.goes_on(chance, BROKER_KILLED, BROKER_QUIET_S):
            self.broker_hit_s = math.inf
            self._broker.kill()
            self._broker.wait(PATIENCE_S)
            self.wait(chance, AWAY_S)
            self._broker = self._start_broker()
            self.broker_hit_s = time.monotonic()
            self.count(BROKER_KILLED)

    @property
    def broker_was_hit(self) -> bool:
        """Whether the broker is away, or was just before."""
        return time.monotonic() - self.broker_hit_s < HIT_FOR_S

    def run(self, folder: Path, name: str, program: str, *words: object) -> Copy:
        """A process of ours, with a log of this name; it is gone at the end."""
        if program == LBG and words[0] in LEAVE_WITH_PARENT:
            program, words = LONG + program, (*words, "--exit-with-parent")
        with (self.folder / f"{name}.log").open("ab") as log, self._lock:
            return self._stack.enter_context(self.warm.running(program, *words, cwd=folder, stdout=log, stderr=log))

    def lbg(self, group: str, *words: object, codes: Sequence[int] = (0,)) -> tuple[int, str]:
        """A command on a group, to its end: its exit code, and what it printed."""
        ended = self.warm.run(LBG, *words, "--config", "config.yaml", cwd=self.folder / group)
        if ended.returncode not in codes:
            raise AssertionError(f"lbg {words}: exit code {ended.returncode}: {ended.stderr.strip()[-1_000:]}")
        return ended.returncode, ended.stdout

    def log(self, name: str) -> list[str]:
        return whole_lines(self.folder / f"{name}.log")

    def until(self, step: str, look: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """What `look` finds, once it finds something; raises `GivenUp` when anything is wrong with the run."""
        end_s = time.monotonic() + patience_s
        while not (found := look()):
            if self.wrong:
                raise GivenUp
            if time.monotonic() > end_s:
                raise AssertionError(f"not within {patience_s:.0f} s: {step}")
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
                self.wrong.append(f"{name}: {str(error) or type(error).__name__}")
                self.over.set()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread


class Player:
    """A process that blows are dealt to: an application, or one that runs a member, or two."""

    what = "application"

    def __init__(self, stage: Stage, group: str, name: str, program: str, *words: object) -> None:
        """`name` is told in the report, and is that of its log; it runs in the group's folder."""
        self.stage, self.group, self.name = stage, group, name
        self._program, self._words = program, words
        self._hit_s = -math.inf
        self.kinds: dict[str, Callable[[random.Random], None]] = {"kill": self._kill, "stop": self._freeze}
        self.process = self._start()

    def play(self, seed: int, *, once: bool) -> None:
        """Deal blows until the end, each kind as often as the others, or each once."""
        chance = random.Random(f"{seed} {self.group} {self.name}")
        for kind in islice(_in_turn(self.kinds, chance), len(self.kinds) if once else None):
            if self.stage.wait(chance, QUIET_S):
                return
            self.insist()
            # Whoever leaves in good order is not hit.
            before_s, self._hit_s = self._hit_s, self._hit_s if kind == "leave" else math.inf
            self.kinds[kind](chance)
            self._hit_s = before_s if kind == "leave" else time.monotonic()
            self.stage.count(f"{self.what}: {kind}")

    def insist(self) -> None:
        """Raise `AssertionError` if it has ended by itself."""
        if self.process.poll() is not None:
            raise AssertionError(f"{self.group}/{self.name} ended by itself, with exit code {self.process.returncode}")

    @property
    def was_hit(self) -> bool:
        """Whether a blow is being dealt to it, or was just before."""
        return time.monotonic() - self._hit_s < HIT_FOR_S

    def _start(self) -> Copy:
        self._started_s = time.monotonic()
        return self.stage.run(self.stage.folder / self.group, f"{self.group}-{self.name}", self._program, *self._words)

    def _kill(self, chance: random.Random) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._come_again(chance)

    def _come_again(self, chance: random.Random) -> None:
        self.stage.wait(chance, AWAY_S)
        self.process = self._start()

    def _freeze(self, chance: random.Random) -> None:
        pids = [self.process.pid, *self._children()]
        with self._unaware():
            _signal(pids, signal.SIGSTOP)
            self.stage.wait(chance, BREAK_S)
            _signal(pids, signal.SIGCONT)

    def _children(self) -> list[int]:
        return []

    @contextmanager
    def _unaware(self) -> Iterator[None]:
        yield


class MemberPlayer(Player):
    """One that runs a member."""

    what = "member"

    def __init__(self, stage: Stage, group: str, name: str, *words: object, application: Player | None = None) -> None:
        """`application`: the one that it serves."""
        self.members: Sequence[str] = (name,)
        """As journals name what it runs."""
        self._application = application
        super().__init__(stage, group, name, LBG, *words)
        self.kinds |= {"leave": self._leave, "cut": self._cut, "silence": self._silence}

    def insist(self) -> None:
        """See `Player.insist`; but one that could not reach the broker when it started is started again."""
        if self.process.poll() == 2 and self.stage.broker_hit_s > self._started_s - HIT_FOR_S:
            self.process = self._start()
        super().insist()

    @property
    def was_hit(self) -> bool:
        """See `Player.was_hit`: whether it was, or what it needs."""
        needed = self.stage.broker_was_hit or (self._application is not None and self._application.was_hit)
        return needed or super().was_hit

    def end(self) -> None:
        """Have it leave. Unless it was hit just before, it may leave nothing behind."""
        excused = []
        if self.was_hit:
            # 2: the broker was away when it started. 137: one of two was killed, and is not there again yet.
            excused += [1, 2, 128 + signal.SIGKILL]
        if time.monotonic() - self._started_s < HIT_FOR_S:
            excused.append(-signal.SIGTERM)
        self.process.terminate()
        if self.process.wait(PATIENCE_S) not in (0, *excused):
            raise AssertionError(f"{self.group}/{self.name} left with exit code {self.process.returncode}")

    def _leave(self, chance: random.Random) -> None:
        self.end()
        self._come_again(chance)

    def _cut(self, chance: random.Random) -> None:
        if client := self._client(chance):
            with self._unaware():
                self.stage.order("drop", client=client)

    def _silence(self, chance: random.Random) -> None:
        if client := self._client(chance):
            with self._unaware():
                self.stage.order("stall", client=client, on=True)
                self.stage.wait(chance, BREAK_S)
                self.stage.order("stall", client=client, on=False)

    def _client(self, chance: random.Random) -> str:
        """One of its connections; none where it has none just now."""
        begins = tuple(f"{self.group}/{member}/" for member in self.members)
        return chance.choice([name for name in self.stage.clients() if name.startswith(begins)] or [""])

    @contextmanager
    def _unaware(self) -> Iterator[None]:
        began_ns = time.monotonic_ns()
        yield
        now_ns = time.monotonic_ns()
        self.stage.cuts[self.group] += [(member, began_ns, now_ns) for member in self.members]


class TwinsPlayer(MemberPlayer):
    """One that runs two members, each in a process of its own."""

    def __init__(self, stage: Stage, group: str, name: str, *words: object) -> None:
        super().__init__(stage, group, name, *words, "--processes", "2")
        self.members = (f"{name}-0", f"{name}-1")
        self.kinds["kill one of two"] = self._kill_child

    def _kill_child(self, chance: random.Random) -> None:
        if children := self._children():
            _signal([chance.choice(children)], signal.SIGKILL)

    def _children(self) -> list[int]:
        pid = self.process.pid
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def _in_turn(kinds: Iterable[str], chance: random.Random) -> Iterator[str]:
    """All of them in some order, again and again."""
    while True:
        yield from chance.sample([*kinds], len([*kinds]))


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
