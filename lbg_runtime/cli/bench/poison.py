"""`lbg bench poison`: what a key that always fails costs the others, under each policy.

Two members run at the same time, each with a broker of its own whose four queues are full before they begin: one has a
key more, all of whose messages fail, each `attempts` times; the other has the same messages and no poison. Four
processes, the official client, handlers that return at once, so that every microsecond shows. Compared are how many
messages of the other keys the two have handled while both were at work, as a busy machine slows both down, and how much
processor time each took for a message. A pair without any poison shows how far the figures can be trusted.

With `stop` the queue of the poisoned key stops, and the keys in the other three queues are measured. The member then
handles more of them than its peer, as it has the time that the stopped queue would have taken.
"""

import time
from bisect import bisect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from lbg_runtime.cli.bench.options import Messages, Rounds
from lbg_runtime.cli.bench.processes import BenchFailed, run_arm, run_broker
from lbg_runtime.cli.bench.report import Measured, Ratio, Report, Row, finish, tell, within_rounds
from lbg_runtime.cli.options import Json

ATTEMPTS = 3
SAMPLE = 100
"""After each this many messages the time is noted."""

BACKOFF = {"initial": "10ms", "maximum": "20ms"}

POLICIES: dict[str, dict[str, object]] = {
    "no poison": {},
    "retry": {"backoff": BACKOFF},
    "error_queue": {"backoff": BACKOFF, "attempts": ATTEMPTS, "then": "error_queue"},
    "dmq": {"backoff": BACKOFF, "attempts": ATTEMPTS, "then": "dmq"},
    "park": {"backoff": BACKOFF, "attempts": ATTEMPTS, "then": "park"},
    "stop": {"backoff": BACKOFF, "attempts": ATTEMPTS, "then": "stop"},
}

GOAL = 0.9
START_S = 5.0
"""Time until both members are ready, with messages in hand."""

LEAST_SHARE = 0.3
"""Share of the time of either member in which both must be at work."""

PEER = "no poison"

TRIES = 4
"""Tries for a pair: if one member has had the machine to itself, the pair says nothing and is measured again."""


class NotTogether(BenchFailed):
    """The two members of a pair were not at work at the same time for long enough."""


def poison(
    messages: Messages = 200_000,
    keys: Annotated[int, typer.Option(min=10, help="Number of keys besides the poisoned one.")] = 1_000,
    rounds: Rounds = 3,
    json: Json = False,
) -> None:
    """Measure the throughput of other keys while one is poisoned, for every policy. Takes minutes.

    Exit code 1 if a message of another key is missing, comes twice or out of order, or is left on its queue. With the
    policy stop, only messages of other queues count.
    """
    measured: dict[str, list[dict[str, float]]] = {arm: [] for arm in POLICIES}
    for number in range(rounds):
        tell("poison", f"round {number + 1} of {rounds}")
        for arm in POLICIES:
            measured[arm].append(_measure_together(arm, messages, keys + 1, comes_first=number % 2 == 0))
    settings = {"messages": messages, "other keys": keys, "queues": 4, "attempts": ATTEMPTS}
    finish(Report("poison", rounds, rows_of(measured), ratios_of(measured), settings=settings), json=json)


def _measure_together(arm: str, message_count: int, key_count: int, *, comes_first: bool) -> dict[str, float]:
    for _ in range(TRIES - 1):
        try:
            return measure(arm, message_count, key_count, comes_first=comes_first)
        except NotTogether as apart:
            tell("poison", f"{arm}, again: {apart}")
    return measure(arm, message_count, key_count, comes_first=comes_first)


def measure(arm: str, message_count: int, key_count: int, *, comes_first: bool = True) -> dict[str, float]:
    """Measure one pair: each member's messages of other keys a second, failed attempts, and what was moved elsewhere.

    `comes_first`: whether the member with the poison is started first, rather than its peer. They take turns, so that
    this cannot matter.
    """
    brokers = "lbg_runtime.cli.bench.arms.poison_broker"
    with (
        run_broker(brokers, message_count, key_count) as first,
        run_broker(brokers, message_count, key_count) as second,
        ThreadPoolExecutor(2) as pair,
    ):
        begin_s = time.monotonic() + START_S
        mine, others = (first, second) if comes_first else (second, first)
        order = ((arm, mine), (PEER, others)) if comes_first else ((PEER, others), (arm, mine))
        runs = [pair.submit(_run, each, arm, broker.host, message_count, key_count, begin_s) for each, broker in order]
        spent, peer = (run.result() for run in (runs if comes_first else reversed(runs)))
        rate, peer_rate = rates_together(spent["moments"], peer["moments"])
        left, peer_left = mine.ask(arm), others.ask(arm)
    for who, lies in ((arm, left), (PEER, peer_left)):
        if lies["unsettled"]:
            raise BenchFailed(who, f"{lies['unsettled']} messages of other keys are left on the queues")
    # A parking queue also holds the fence of its owner.
    moved = {"error_queue": left["errors"], "dmq": left["dead"], "park": left["parked"] - 1}.get(arm)
    if moved is not None and moved < 1:
        raise BenchFailed(arm, "nothing of the poisoned key was moved while the others were handled")
    return {
        "rate": rate,
        "peer_rate": peer_rate,
        "cpu_us": spent["cpu_us"],
        "peer_cpu_us": peer["cpu_us"],
        "failed": spent["failed"],
        "moved": moved or 0,
    }


def _run(arm: str, measured_as: str, host: str, message_count: int, key_count: int, begin_s: float) -> dict[str, Any]:
    return run_arm(arm, "lbg_runtime.cli.bench.arms.poison", host, message_count, key_count, measured_as, begin_s)


def rates_together(mine: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Messages a second of two members while both were at work, by the times of their samples; raises `NotTogether`."""
    begin, end = max(mine[0], others[0]), min(mine[-1], others[-1])
    if end - begin < LEAST_SHARE * max(mine[-1] - mine[0], others[-1] - others[0]):
        raise NotTogether("the pair", f"at work together for {end - begin:.1f} s only, on a machine that is too busy")
    counts = [SAMPLE * (bisect(moments, end) - bisect(moments, begin)) for moments in (mine, others)]
    return counts[0] / (end - begin), counts[1] / (end - begin)


def rows_of(measured: Measured) -> list[Row]:
    units = {
        "rate": "other keys' messages/s",
        "peer_rate": "of its peer without poison",
        "cpu_us": "us of processor a message",
        "peer_cpu_us": "us of its peer",
        "failed": "failed attempts",
        "moved": "messages moved or parked",
    }
    return [Row(arm, unit, [each[name] for each in measured[arm]]) for name, unit in units.items() for arm in measured]


def ratios_of(measured: Measured) -> list[Ratio]:
    """The other keys' rate under each policy, divided by that of its peer without poison; and so for processor time."""
    ratios: list[Ratio] = []
    for name, mine, others in (("rate", "rate", "peer_rate"), ("1 / processor time", "peer_cpu_us", "cpu_us")):
        for arm, rounds in measured.items():
            # With `stop` the member has different work to do from its peer.
            if arm != "stop" or name == "rate":
                values = within_rounds([each[mine] for each in rounds], [each[others] for each in rounds])
                ratios.append(Ratio(f"{arm} / {PEER}, {name}", values, goal=None if arm == PEER else GOAL))
    return ratios
