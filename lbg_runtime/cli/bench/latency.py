"""`lbg bench latency`: how long a message takes, from the call that publishes it to the start of its handler.

The development broker, a publisher and three receivers in a process each; the official client; real sockets on
loopback. The hashed publisher publishes on the fast path, at an even rate, to the groups of the receivers in turns of
50 messages: the load is the same for all, and whatever else the machine does affects all alike.

- `callback`: the client's public receiver alone; the time is taken at the start of its callback, on the client's
  thread, when nothing of the message has been read yet.
- `transport`: the transport on the fast path; the time is taken when it hands the message over, on the event loop.
- `member`: the whole runtime on the fast path; the time is taken at the start of the handler. With `--profile` it is
  sampled in the first round, and slower there.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from lbg_runtime.cli.bench.options import Rounds
from lbg_runtime.cli.bench.processes import PATIENCE_S, BenchFailed, end_of, hear, run_arm, run_broker, run_module
from lbg_runtime.cli.bench.profile import Profile, profiled
from lbg_runtime.cli.bench.report import Better, Measured, Ratio, Report, Row, finish, tell, within_rounds
from lbg_runtime.cli.options import Json

PEER = "callback"
GOALS = {"p50": 1.2, "p99": 1.5}
_ARMS_MODULE = "lbg_runtime.cli.bench.arms.latency"


def latency(
    messages: Annotated[
        int, typer.Option(min=50, help="Messages per arm and round, after the warm-up; in full turns of 50.")
    ] = 4_000,
    rate: Annotated[float, typer.Option(min=1, help="Messages per second.")] = 1_000,
    rounds: Rounds = 5,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure the latency of single messages beside that of the bare client. Takes a minute or two.

    Exit code 1 if a message is not confirmed, is missing, comes twice or out of the order of its key, or is left on a
    queue.
    """
    from lbg_runtime.cli.bench.arms.latency import ARMS, SLICE

    measured: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        tell("latency", f"round {number + 1} of {rounds}")
        for arm, quantiles in measure(messages - messages % SLICE, rate, profile if number == 0 else None).items():
            measured[arm].append(quantiles)
    settings = {"messages": messages - messages % SLICE, "messages/s": rate}
    finish(Report("latency", rounds, tuple(rows_of(measured)), tuple(ratios_of(measured)), settings), json=json)


def measure(message_count: int, rate_per_s: float, profile: Path | None = None) -> dict[str, dict[str, float]]:
    """One round: the quantiles of each arm, in microseconds."""
    from lbg_runtime.cli.bench.arms.latency import ARMS, WARM_UP

    with ExitStack() as stack:
        broker = stack.enter_context(run_broker("lbg_runtime.cli.bench.arms.filled_broker", 1, 1, *ARMS))
        arguments: tuple[Any, ...] = (broker.host, message_count, rate_per_s)
        started = {
            arm: stack.enter_context(run_module(_ARMS_MODULE, (arm, *arguments), subprocess.DEVNULL)) for arm in ARMS
        }
        for arm, (process, log) in started.items():
            try:
                hear(arm, process, PATIENCE_S)
            except BenchFailed:
                # How it ended says why.
                end_of(arm, process, log)
                raise
        stack.enter_context(profiled(profile, started["member"][0].pid))
        confirmed = run_arm("publisher", _ARMS_MODULE, *arguments)
        quantiles = {arm: end_of(arm, process, log) for arm, (process, log) in started.items()}
        depth = broker.ask()["depth"]
    if depth:
        raise BenchFailed("the broker", f"{depth} messages are left on the queues")
    if confirmed != dict.fromkeys(ARMS, WARM_UP + message_count):
        raise BenchFailed("publisher", f"confirmed were {confirmed}")
    return quantiles


def rows_of(measured: Measured) -> Iterator[Row]:
    """The reported figures of each arm."""
    for arm, rounds in measured.items():
        for name in GOALS:
            yield Row(arm, f"us, {name}", [each[name] for each in rounds])


def ratios_of(measured: Measured) -> Iterator[Ratio]:
    """Our own arms compared with the client's. The goals are those of the whole runtime."""
    for arm in measured:
        for name, goal in GOALS.items() if arm != PEER else ():
            values = within_rounds(*([each[name] for each in measured[one]] for one in (arm, PEER)))
            yield Ratio(f"{arm} / {PEER}, {name}", values, better=Better.LESS, goal=goal if arm == "member" else None)
