"""A broker with a group's queues, and members that are fed from them, each in its own process; figures are of them all.

For `processes`, `scale`, `acks` and `faults`. A burst begins when all its messages are on the queues, and ends when the
last of them is settled; for every burst it is checked that each message came once and in the order of its key.
"""

import base64
import subprocess
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import orjson

from lbg_runtime.cli.bench.processes import PATIENCE_S, BenchFailed, Broker, ask, run_broker, run_module, show

_BROKER = "lbg_runtime.cli.bench.arms.group_broker"
_MEMBER = "lbg_runtime.cli.bench.arms.group_member"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Burst:
    """The figures of one burst; processor times are those of all members together, and of the broker."""

    messages: int
    seconds: float
    """From the first handling to the last one."""
    members_cpu_s: float
    broker_cpu_s: float
    settle_frames: int
    raised: int
    """How often handlers failed."""
    member_memory_bytes: Sequence[int]
    native_messages: Sequence[int]

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds

    @property
    def member_cpu_us(self) -> float:
        """The members' processor time for a message."""
        return self.members_cpu_s / self.messages * 1e6

    @property
    def broker_cpu_us(self) -> float:
        """The broker's processor time for a message, without the time for putting it on the queue."""
        return self.broker_cpu_s / self.messages * 1e6

    @property
    def frames_per_message(self) -> float:
        """Frames with settlements that the broker received, per message."""
        return self.settle_frames / self.messages


class Trial:
    """A running group. Called from one thread; `burst` may be called any number of times."""

    def __init__(self, broker: Broker, members: "Sequence[subprocess.Popen[bytes]]", queues: int) -> None:
        self.pids = [member.pid for member in members]
        self._broker = broker
        self._members = members
        self._queues = queues
        self._sent = 0
        self._until_fed()

    def burst(self, messages: int, keys: int, first_key: int = 0) -> Burst:
        """Fill the queues with messages of these many keys in turn, and wait until all are settled; raises
        `BenchFailed` if something is not as it must be."""
        first, self._sent = self._sent, self._sent + messages
        before = self._broker.ask()
        filled = self._broker.ask(f"{messages} {keys} {first_key}")
        # A slow machine handles a thousand a second.
        end_s = time.monotonic() + PATIENCE_S + messages / 1_000
        while (after := self._broker.ask())["depth"]:
            if time.monotonic() > end_s:
                raise BenchFailed("members", f"{after['depth']} messages are left on the queues")
            time.sleep(_POLL_S)
        told = [ask("a member", member) for member in self._members]
        numbers = [array("q", base64.b64decode(each["numbers"])) for each in told]
        check_burst(numbers, first, messages, keys)
        # Ask again: making the first answer itself takes memory.
        idle = [ask("a member", member) for member in self._members]
        busy = [each for each, some in zip(told, numbers, strict=True) if some]
        return Burst(
            messages,
            (max(each["last_ns"] for each in busy) - min(each["first_ns"] for each in busy)) / 1e9,
            sum(each["cpu_ns"] for each in busy) / 1e9,
            after["cpu_s"] - filled["cpu_s"],
            after["settle_frames"] - before["settle_frames"],
            sum(each["raised"] for each in told),
            [each["memory_bytes"] for each in idle],
            [each["native_messages"] for each in idle],
        )

    def _until_fed(self) -> None:
        share = self._queues // len(self._members)
        end_s = time.monotonic() + PATIENCE_S
        while True:
            feeds: Mapping[str, int] = self._broker.ask()["feeds"]
            if sum(feeds.values()) == self._queues and all(
                feeds.get(f"member-{index}", 0) >= share for index in range(len(self._members))
            ):
                return
            if time.monotonic() > end_s or any(member.poll() is not None for member in self._members):
                raise BenchFailed("members", f"of {self._queues} queues these are fed: {feeds}")
            time.sleep(_POLL_S)


@contextmanager
def group_trial(
    queues: int,
    members: int = 1,
    *,
    max_in_flight: int = 256,
    runners: int = 64,
    wait_ms: tuple[float, float] = (0, 0),
    raises: int = 0,
) -> Iterator[Trial]:
    """A group all of whose queues are fed; at the end its members must leave in order."""
    with ExitStack() as stack:
        broker = stack.enter_context(run_broker(_BROKER, queues))
        processes = []
        logs = []
        for index in range(members):
            told = {
                "host": broker.host,
                "queues": queues,
                "index": index,
                "count": members,
                "max_in_flight": max_in_flight,
                "runners": runners,
                "wait_ms": wait_ms,
                "raises": raises,
            }
            argument = orjson.dumps(told).decode()
            process, log = stack.enter_context(run_module(_MEMBER, [argument], stdin=subprocess.PIPE))
            processes.append(process)
            logs.append(log)
        try:
            yield Trial(broker, processes, queues)
            _check_left([_exit_code(process) for process in processes])
        except BenchFailed:
            for log in logs:
                show(log)
            raise


def _exit_code(member: "subprocess.Popen[bytes]") -> int:
    try:
        member.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise BenchFailed("a member", f"it did not leave within {PATIENCE_S:g} s") from None
    return member.returncode


def _check_left(codes: Sequence[int]) -> None:
    if any(codes):
        raise BenchFailed("members", f"they left with exit codes {', '.join(map(str, codes))}")


def check_burst(numbers: Sequence[Sequence[int]], first: int, messages: int, keys: int) -> None:
    """Raise `BenchFailed` unless all members together had every message once, those of a key in order.

    `numbers` has for each member the numbers that it handled, in its order; the burst begins with number `first`.
    """
    for some in numbers:
        last: dict[int, int] = {}
        for number in some:
            key = (number - first) % keys
            if last.get(key, -1) >= number:
                raise BenchFailed("members", f"message {number} came after {last[key]} of the same key")
            last[key] = number
    handled = sorted(number for some in numbers for number in some)
    if handled != list(range(first, first + messages)):
        raise BenchFailed("members", f"{len(handled)} messages were handled, {len(set(handled))} of {messages}")
