"""`lbg bench broker`: what the development broker can do, measured by clients on plain sockets that are not the limit.

- in: persistent messages to one queue, 255 under way; its peer is a server that only cuts frames and confirms.
- out: a full queue to one flow, settled in ranges; its peer is a server that only sends ready frames.
- confirm: from sending a message to its confirm, in the flood of `in` and with one message under way.
- stored: the same with a store, where a confirm waits for the disk.
- bind: every member binds every queue.
- memory: what a spooled message of 1 KB takes.
- queues: the broker's processor time for a message, by the number of queues and subscriptions: with messages to all of
  them in turn, with messages to ten of them, and for direct messages to a client with as many subscriptions. A cost
  of searching shows in all three, a cost of data that does not fit into the processor's caches not in the second.

Every measurement has a fresh broker and a fresh client, each in a process of its own. Processor times show which side
was the limit. Comparisons are made within a round.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lbg_runtime.cli.bench.options import Messages, Rounds
from lbg_runtime.cli.bench.processes import BenchFailed, run_arm, run_broker
from lbg_runtime.cli.bench.profile import Profile, profiled
from lbg_runtime.cli.bench.report import Better, Ratio, Report, Row, finish, tell, within_rounds
from lbg_runtime.cli.options import Json

QUEUE_COUNTS = (10, 1_000, 10_000)
SPREADS = ("queues", "queues, ten in use", "direct subscriptions")
TEN = 10
SPOOLED_BYTES = 1_000
ONE_BY_ONE_SHARE = 20
"""Messages sent one by one take longer, so there are this many times fewer of them."""

_BROKER = "lbg_runtime.cli.bench.arms.measured_broker"
_ARMS = "lbg_runtime.cli.bench.arms.broker"

Measured = dict[tuple[str, str], list[float]]
"""The values of the rounds, by arm and unit."""


def broker(
    messages: Messages = 60_000,
    spooled: Annotated[int, typer.Option(min=1_000, help="Number of 1 KB messages to spool.")] = 200_000,
    queues: Annotated[int, typer.Option(min=1, max=10_000, help="Queues to bind.")] = 1_000,
    members: Annotated[int, typer.Option(min=1, max=100, help="Members, each of which binds all queues.")] = 10,
    rounds: Rounds = 3,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure the development broker on its own.

    Exit code 1 if a message is missing, comes twice or out of order.
    """
    measured: Measured = defaultdict(list)
    for number in range(rounds):
        tell("broker", f"round {number + 1} of {rounds}")
        for arm in ("in", "stored in", "bare in"):
            _in(measured, arm, messages, profile if number == 0 and arm == "in" else None)
        for arm in ("out", "stored out", "bare out"):
            _out(measured, arm, messages)
        for arm in ("one by one", "stored one by one"):
            _one_by_one(measured, arm, messages // ONE_BY_ONE_SHARE)
        for count in QUEUE_COUNTS:
            _queues(measured, messages, count)
            _directly(measured, messages, count)
        _bind(measured, queues, members)
    _spool(measured, spooled)
    settings = {"messages": messages, "spooled": spooled, "queues": queues, "members": members}
    rows = [Row(arm, unit, values) for (arm, unit), values in measured.items()]
    finish(Report("broker", rounds, rows, ratios_of(measured), settings), json=json)


def ratios_of(measured: Mapping[tuple[str, str], Sequence[float]]) -> list[Ratio]:
    """The ratios, which survive a change of machine."""

    def of(arm: str, unit: str) -> Sequence[float]:
        return measured[arm, unit]

    few, *more = QUEUE_COUNTS
    return [
        Ratio("in / bare in", within_rounds(of("in", "messages/s"), of("bare in", "messages/s"))),
        *(
            Ratio(f"stored {arm} / {arm}", within_rounds(of(f"stored {arm}", "messages/s"), of(arm, "messages/s")))
            for arm in ("in", "out")
        ),
        Ratio("out / bare out", within_rounds(of("out", "messages/s"), of("bare out", "messages/s"))),
        *(
            Ratio(
                f"cost with {count} {spread} / with {few}",
                within_rounds(of(f"{count} {spread}", "broker us/message"), of(f"{few} {spread}", "broker us/message")),
                better=Better.LESS,
            )
            for spread in SPREADS
            for count in more
        ),
        Ratio(
            "memory of a spooled message / its size",
            [value / SPOOLED_BYTES for value in of("spooled", "bytes/message")],
            better=Better.LESS,
        ),
    ]


def _in(measured: Measured, arm: str, messages: int, profile: Path | None) -> None:
    mode = _mode(arm)
    with run_broker(_BROKER, mode, 1) as host:
        before = host.ask()
        with profiled(profile, host.pid):
            spent = run_arm(arm, _ARMS, host.host, messages, 1)
        after = host.ask()
    if mode != "bare" and after["depth"] != messages:
        raise BenchFailed(arm, f"{after['depth']} of {messages} messages are on the queue")
    _note(measured, arm, messages, spent, before, after)
    measured[arm, "ms to confirm, p50"].append(spent["confirm_p50_ms"])
    measured[arm, "ms to confirm, p99"].append(spent["confirm_p99_ms"])


def _out(measured: Measured, arm: str, messages: int) -> None:
    is_bare = _mode(arm) == "bare"
    with run_broker(_BROKER, _mode(arm), messages if is_bare else 1) as host:
        if not is_bare:
            run_arm("in", _ARMS, host.host, messages, 1)
        before = host.ask()
        spent = run_arm(arm, _ARMS, host.host, messages)
        after = host.ask()
    if not is_bare and after["depth"]:
        raise BenchFailed(arm, f"{after['depth']} messages are left on the queue")
    _note(measured, arm, messages, spent, before, after)


def _mode(arm: str) -> str:
    """The mode of the broker that an arm is measured on."""
    first, _, _ = arm.partition(" ")
    return first if first in ("bare", "stored") else "broker"


def _one_by_one(measured: Measured, arm: str, messages: int) -> None:
    with run_broker(_BROKER, _mode(arm), 1) as host:
        spent = run_arm(arm, _ARMS, host.host, messages)
    for part in ("p50", "p99"):
        measured[arm, f"ms to confirm, {part}"].append(spent[f"confirm_{part}_ms"])


def _queues(measured: Measured, messages: int, count: int) -> None:
    for spread, used in zip(SPREADS, (count, TEN), strict=False):
        with run_broker(_BROKER, "broker", count) as host:
            # The first messages of a queue make it grow, and with more queues there are more first messages.
            run_arm("in", _ARMS, host.host, messages, used)
            before = host.ask()
            run_arm("in", _ARMS, host.host, messages, used)
            after = host.ask()
        if after["depth"] != 2 * messages:
            raise BenchFailed("queues", f"{after['depth']} of {2 * messages} messages are on the queues")
        measured[f"{count} {spread}", "broker us/message"].append((after["cpu_s"] - before["cpu_s"]) / messages * 1e6)


def _directly(measured: Measured, messages: int, count: int) -> None:
    with run_broker(_BROKER, "broker", 0) as host:
        run_arm("directly", _ARMS, host.host, TEN, count)
        before = host.ask()
        run_arm("directly", _ARMS, host.host, messages, count)
        after = host.ask()
        # Subscribing is not part of a message's cost.
        run_arm("directly", _ARMS, host.host, TEN, count)
        rest = host.ask()
    spent_s = (after["cpu_s"] - before["cpu_s"]) - (rest["cpu_s"] - after["cpu_s"])
    measured[f"{count} {SPREADS[-1]}", "broker us/message"].append(spent_s / messages * 1e6)


def _bind(measured: Measured, queues: int, members: int) -> None:
    with run_broker(_BROKER, "broker", queues) as host:
        before = host.ask()
        spent = run_arm("bind", _ARMS, host.host, queues, members)
        after = host.ask()
    arm = f"{queues} queues x {members} members"
    binds = queues * members
    measured[arm, "binds/s"].append(binds / spent["seconds"])
    measured[arm, "broker us/bind"].append((after["cpu_s"] - before["cpu_s"]) / binds * 1e6)


def _spool(measured: Measured, spooled: int) -> None:
    with run_broker(_BROKER, "broker", 1) as host:
        before = host.ask()
        run_arm("spool", _ARMS, host.host, spooled, SPOOLED_BYTES)
        after = host.ask()
    grown = after["memory_bytes"] - before["memory_bytes"]
    measured["spooled", "bytes/message"].append(grown / spooled)
    measured["spooled", "MB"].append(grown / 1e6)


def _note(
    measured: Measured,
    arm: str,
    messages: int,
    spent: Mapping[str, float],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> None:
    measured[arm, "messages/s"].append(messages / spent["seconds"])
    measured[arm, "broker us/message"].append((after["cpu_s"] - before["cpu_s"]) / messages * 1e6)
    measured[arm, "client us/message"].append(spent["cpu_s"] / messages * 1e6)
