"""`lbg bench faults`: a handler that raises a million times, and a burst of a million messages; nothing may be lost,
settled twice or leaked.

The member is one process on the official client's fast path. It is checked that each message is handled once, in the
order of its key, and settled; the member's memory and native messages after the fault are compared with those before
it. The failures are not logged, as otherwise the log would be what is measured.
"""

import time
from typing import Annotated

import typer

from lbg_runtime.cli.bench.group_trial import Burst, group_trial
from lbg_runtime.cli.bench.report import Better, Ratio, Report, Row, finish, tell
from lbg_runtime.cli.options import Json

QUEUES = 8
KEYS = 1_000
RAISES_EACH = 100
"""How often a message fails before it succeeds, at most."""
WARM_UP = 10_000
MEMORY_GOAL_MB = 20.0


def faults(
    raises: Annotated[int, typer.Option(min=1_000, help="How often the handler raises.")] = 1_000_000,
    burst: Annotated[int, typer.Option(min=1_000, help="Number of messages in the burst.")] = 1_000_000,
    json: Json = False,
) -> None:
    """Have a handler raise a million times, and a burst of a million messages arrive.

    Exit code 1 if a message is lost or memory leaks.
    """
    each = min(RAISES_EACH, raises // KEYS)
    tell("faults", f"{raises} failures of a handler")
    with group_trial(QUEUES, raises=each) as trial:
        before = trial.burst(KEYS, KEYS)
        began_s = time.monotonic()
        raised = trial.burst(raises // each, KEYS)
        seconds = time.monotonic() - began_s
    tell("faults", f"a burst of {burst} messages")
    with group_trial(QUEUES) as trial:
        calm = trial.burst(WARM_UP, KEYS)
        flooded = trial.burst(burst, KEYS)
    found = {"handler that raises": (before, raised), "burst": (calm, flooded)}
    rows = [
        Row("handler that raises", "failures", [raised.raised]),
        Row("handler that raises", "failures/s", [raised.raised / seconds]),
        Row("burst", "messages/s", [flooded.per_s]),
        *(Row(name, "MB more memory", [grown_mb(*pair)]) for name, pair in found.items()),
        *(Row(name, "native messages out in the end", [pair[1].native_messages[0]]) for name, pair in found.items()),
    ]
    ratios = [
        Ratio(f"MB more memory, {name}", [grown_mb(*pair)], better=Better.LESS, goal=MEMORY_GOAL_MB)
        for name, pair in found.items()
    ]
    wrong = [f"{ratio.name}: {ratio.values[0]:.1f}" for ratio in ratios if not ratio.is_met]
    wanted = raised.messages * each
    if raised.raised != wanted:
        wrong.append(f"the handler raised {raised.raised} times, not {wanted}")
    finish(Report("faults", 1, rows, ratios, {"raises": raises, "burst": burst}, wrong=wrong), json=json)


def grown_mb(before: Burst, after: Burst) -> float:
    """By how much the member's memory has grown."""
    return (after.member_memory_bytes[0] - before.member_memory_bytes[0]) / 1e6
