"""The processes of `everything`, and the blows that are dealt to each."""

import math
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from tests.end_to_end.everything_stage import AWAY_S, BREAK_S, HIT_FOR_S, QUIET_S, Stage
from tests.warm import LBG, Copy


class NothingToHit(Exception):
    """It is not connected just now, or has no child."""


class Player:
    """A process that blows are dealt to: an application, or one of those below."""

    what = "application"
    quiet_s = QUIET_S

    def __init__(self, stage: Stage, group: str, name: str, program: str, *words: object) -> None:
        """`name` is told in the report, and is that of its log; it runs in the group's folder."""
        self.stage, self.group, self.name = stage, group, name
        self.alike = f"{group}/{name}"
        self._program, self._words = program, words
        self._hit_s = -math.inf
        self.kinds: dict[str, Callable[[random.Random], None]] = {"kill": self._kill, "stop": self._freeze}
        self.process = self._start()

    def play(self, seed: int, *, once: bool) -> None:
        """Deal blows until the end, each kind as often as the others, or each once to one of those that are alike."""
        chance = random.Random(f"{seed} {self.group} {self.name}")
        for kind in islice(_in_turn(self.kinds, chance), len(self.kinds) if once else None):
            if once and not self.stage.is_first(f"{self.alike}: {kind}"):
                continue
            is_dealt = False
            while not is_dealt:
                if self.stage.wait(chance, self.quiet_s):
                    return
                self.insist()
                is_dealt = self._deal(kind, chance)
            self.stage.count(f"{self.what}: {kind}")

    def _deal(self, kind: str, chance: random.Random) -> bool:
        """Whether there was something to hit."""
        # Whoever leaves in good order is not hit.
        before_s, self._hit_s = self._hit_s, self._hit_s if kind == "leave" else math.inf
        try:
            self.kinds[kind](chance)
        except NothingToHit:
            self._hit_s = before_s
            return False
        self._hit_s = before_s if kind == "leave" else time.monotonic()
        return True

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
        self.stage.ended(self.process, f"{self.group}/{self.name}, which was killed")
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


class ClientPlayer(Player):
    """One that is connected to the broker."""

    def __init__(self, stage: Stage, group: str, name: str, *words: object) -> None:
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
        return self.stage.broker_was_hit or super().was_hit

    def end(self) -> None:
        """Have it leave. Unless it was hit just before, it may leave nothing behind."""
        was_hit, excused = self.was_hit, []
        if time.monotonic() - self._started_s < HIT_FOR_S:
            excused.append(-signal.SIGTERM)
        self.process.terminate()
        code = self.stage.ended(self.process, f"{self.group}/{self.name}, which leaves")
        if was_hit or self.was_hit:
            # 2: the broker was away when it started. 137: one of two was killed, and is not there again yet.
            excused += [1, 2, 128 + signal.SIGKILL]
        if code not in (0, *excused):
            raise AssertionError(f"{self.group}/{self.name} left with exit code {code}")

    def _leave(self, chance: random.Random) -> None:
        self.end()
        self._come_again(chance)

    def _cut(self, chance: random.Random) -> None:
        client = self._client(chance)
        with self._unaware():
            self.stage.order("drop", client=client)

    def _silence(self, chance: random.Random) -> None:
        client = self._client(chance)
        with self._unaware():
            self.stage.order("stall", client=client, on=True)
            self.stage.wait(chance, BREAK_S)
            self.stage.order("stall", client=client, on=False)

    def _client(self, chance: random.Random) -> str:
        """One of its connections."""
        if not (clients := self._clients()):
            raise NothingToHit
        return chance.choice(clients)

    def _clients(self) -> list[str]:
        return [name for name in self.stage.clients() if self._is_ours(name)]

    def _is_ours(self, client: str) -> bool:
        return str(self.process.pid) in re.split("[-/]", client)


class ObserverPlayer(ClientPlayer):
    """One that listens to a group, and whom nobody in it misses."""

    what = "observer"

    def insist(self) -> None:
        """See `ClientPlayer.insist`; nor is one missed whose connection was hit as it began to listen."""
        if self.process.poll() == 1 and self.was_hit:
            self.process = self._start()
        super().insist()


class PublisherPlayer(ClientPlayer):
    """The one that publishes, with a ledger for each of its lives."""

    what = "publisher"
    # While it is away, nothing comes.
    quiet_s = (1.0, 10.0)

    def _come_again(self, chance: random.Random) -> None:
        # What a life has sent comes before all of the next one only if the broker has taken it by then.
        self.stage.until("the broker has seen the publisher go", lambda: not self._clients())
        super()._come_again(chance)


class MemberPlayer(ClientPlayer):
    """One that runs a member."""

    what = "member"

    def __init__(
        self, stage: Stage, group: str, name: str, *words: object, lacks: Callable[[], bool] = lambda: False
    ) -> None:
        """`lacks`: whether something that it needs, beside the broker, is hit or was just before."""
        self.members: Sequence[str] = (name,)
        """As journals name what it runs."""
        self._lacks = lacks
        super().__init__(stage, group, name, *words)
        self.alike = f"members of {group}"

    @property
    def was_hit(self) -> bool:
        """See `Player.was_hit`: whether it was, or what it needs."""
        return self._lacks() or super().was_hit

    def _is_ours(self, client: str) -> bool:
        return client.startswith(tuple(f"{self.group}/{member}/" for member in self.members))

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
        self.alike = name
        self.kinds["kill one of two"] = self._kill_child

    def _kill_child(self, chance: random.Random) -> None:
        if not (children := self._children()):
            raise NothingToHit
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
