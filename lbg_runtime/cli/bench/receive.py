"""`lbg bench receive`: how fast messages come in, from a broker's queue to their settlement.

The development broker in a process of its own, its queue full before the clock starts; the official client; real
sockets on loopback. Each measurement has a fresh broker and a fresh process for its arm, and the arms take turns:

- `callback`: the client's public receiver alone, whose callback reads the message and acknowledges it.
- `public`: the transport on the public path, lanes, an awaited handler that does nothing, a settlement.
- `fast`: the same on the fast path.
- `member`: the whole runtime on the fast path.

What is compared is the rate within a round, as rates of different minutes on a shared machine cannot be.
"""

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import IO, Annotated, Any

import orjson
import typer

from lbg_runtime.model.errors import LbgError

ARMS = ("callback", "public", "fast", "member")
PEERS = ("callback", "public")
SLOW_SHARE = 6
"""The slow arms get this much fewer messages, so that every arm runs for about as long."""

PATIENCE_S = 150.0


class BenchFailed(LbgError):
    """An arm ended badly, or a message was lost, came twice or out of order; `said` is what it had to say."""

    def __init__(self, what: str, said: str) -> None:
        lines = said.strip().splitlines()
        super().__init__(f"{what}: {lines[-1] if lines else 'it said nothing'}")
        self.said = said


class Broker:
    """A broker with a full queue, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.host: str = self._hear()["host"]

    def ask(self) -> dict[str, Any]:
        """What it has used and done so far: `cpu_s`, `depth`, `settle_frames`."""
        if self._process.stdin is None:
            raise BenchFailed("the broker", "it has no input")
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise BenchFailed("the broker ended", "")
        heard: dict[str, Any] = orjson.loads(line)
        return heard


def receive(
    messages: Annotated[
        int, typer.Option(min=600, help="Messages of one measurement; slow arms get a sixth.")
    ] = 60_000,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Measurements of each arm.")] = 3,
    keys: Annotated[list[int] | None, typer.Option(min=1, help="Different keys; repeatable.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the receive path beside its peers; 1, 100 and 10,000 keys unless told otherwise. Takes minutes.

    Exit 1 where a message is missing, comes twice or out of the order of its key, or is left on the queue.
    """
    results = {}
    for key_count in keys or [1, 100, 10_000]:
        measured: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
        for number in range(rounds):
            print(f"lbg bench receive: {key_count} keys, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for arm in ARMS:
                count = messages // SLOW_SHARE if arm in PEERS else messages
                measured[arm].append(measure(arm, count, key_count))
        results[str(key_count)] = summary(measured)
    told = {"machine": machine(), "messages": messages, "rounds": rounds, "keys": results}
    print(orjson.dumps(told).decode() if json else "\n".join(lines(told)))


def measure(arm: str, message_count: int, key_count: int) -> dict[str, float]:
    """One measurement: messages a second, and microseconds of processor a message on both sides."""
    with _filled_broker(message_count, key_count) as broker:
        before = broker.ask()
        spent = _run(arm, broker.host, message_count, key_count)
        after = broker.ask()
    if after["depth"]:
        raise BenchFailed(arm, f"{after['depth']} messages are left on the queue")
    return {
        "rate": message_count / spent["seconds"],
        "client_cpu_us": spent["cpu_s"] / message_count * 1e6,
        "client_share": spent["cpu_s"] / spent["seconds"],
        "broker_cpu_us": (after["cpu_s"] - before["cpu_s"]) / message_count * 1e6,
        "broker_share": (after["cpu_s"] - before["cpu_s"]) / spent["seconds"],
        "settle_frames": after["settle_frames"] / message_count,
    }


def summary(measured: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Medians with their spread, and how often each arm's rate is that of a peer in the same round."""
    arms: dict[str, Any] = {}
    for arm, rounds in measured.items():
        arms[arm] = {name: spread([each[name] for each in rounds]) for name in rounds[0]}
        for peer in PEERS:
            ratios = [mine["rate"] / other["rate"] for mine, other in zip(rounds, measured[peer], strict=True)]
            arms[arm][f"times_{peer}"] = spread(ratios)
    return arms


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": _short(median(values)), "min": _short(min(values)), "max": _short(max(values))}


def machine() -> dict[str, str | int | None]:
    """What the figures depend on most."""
    return {"cores": os.cpu_count(), "processor": _processor(), "python": platform.python_version()}


def lines(told: Mapping[str, Any]) -> list[str]:
    """The figures for people."""
    where = told["machine"]
    text = [
        f"{where['cores']} cores, {where['processor']}, Python {where['python']}; medians of {told['rounds']} rounds "
        "(smallest to largest)"
    ]
    for key_count, arms in told["keys"].items():
        text.append(f"{key_count} keys")
        for arm, facts in arms.items():
            rate, times, public = facts["rate"], facts["times_callback"], facts["times_public"]
            text += [
                f"  {arm:9} {rate['median']:9,.0f} messages/s ({rate['min']:,.0f} to {rate['max']:,.0f}), "
                f"{times['median']:.1f} x callback ({times['min']:.1f} to {times['max']:.1f}), "
                f"{public['median']:.1f} x public ({public['min']:.1f} to {public['max']:.1f})",
                f"            a message: {facts['client_cpu_us']['median']:.1f} us of the client's processor "
                f"({facts['client_share']['median']:.0%} of a core), {facts['broker_cpu_us']['median']:.1f} us of the "
                f"broker's ({facts['broker_share']['median']:.0%}), {facts['settle_frames']['median']:.3f} frames "
                "to settle it",
            ]
    return text


@contextmanager
def _filled_broker(message_count: int, key_count: int) -> Iterator[Broker]:
    arguments = ["lbg_runtime.cli.bench.filled_broker", str(message_count), str(key_count)]
    with _process(arguments, stdin=subprocess.PIPE) as (process, log):
        try:
            yield Broker(process)
        except BenchFailed:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace"))
            raise


def _run(arm: str, host: str, message_count: int, key_count: int) -> dict[str, float]:
    arguments = ["lbg_runtime.cli.bench.receive_arms", arm, host, str(message_count), str(key_count)]
    with _process(arguments, stdin=subprocess.DEVNULL) as (process, log):
        try:
            output, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            output = b""
        if process.returncode != 0:
            log.seek(0)
            raise BenchFailed(arm, log.read().decode(errors="replace"))
    spent: dict[str, float] = orjson.loads(output)
    return spent


@contextmanager
def _process(arguments: Sequence[str], stdin: int) -> Iterator[tuple["subprocess.Popen[bytes]", IO[bytes]]]:
    """A module run by this interpreter; whatever happens, it is gone when the context ends."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603  # this interpreter and our own modules
            [sys.executable, "-m", *arguments], stdin=stdin, stdout=subprocess.PIPE, stderr=log
        )
        try:
            yield process, log
        finally:
            process.kill()
            process.communicate()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _short(value: float) -> float:
    return round(value, 4 if value < 1 else 2)
