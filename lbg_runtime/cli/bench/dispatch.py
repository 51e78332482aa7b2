"""`lbg bench dispatch`: from a delivery to the end of its handler, without a broker.

What is measured: a flow runner with its machine and the dispatcher of a member, fed batches of deliveries by a flow
that only counts settlements; handlers are awaited and do nothing. Its peers, in the same process and in turns: a loop
that awaits the same handler on the same messages and does nothing else, and a task per message. There are no other
peers, as nothing else keeps keys in order, settles after handling, and can be drained.
"""

import logging
import os

from lbg_runtime.cli.bench.options import KEY_COUNTS, KeyCounts, Messages, Rounds
from lbg_runtime.cli.bench.profile import Profile, profiled
from lbg_runtime.cli.bench.report import Ratio, Report, Row, finish, tell, within_rounds
from lbg_runtime.cli.options import Json
from lbg_runtime.model.counted import counted

PROFILED_ROUNDS = 10
"""How many measurements are sampled; one would give too few samples."""


def dispatch(
    messages: Messages = 100_000,
    rounds: Rounds = 5,
    keys: KeyCounts = None,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure what the runtime adds to a handler."""
    import uvloop

    from lbg_runtime.cli.bench.arms.dispatch import GOALS, LANES, RUNTIME, made_messages, measure, repeat
    from lbg_runtime.cli.log import quiet_log

    # One key has a long line of waiting messages, which the runtime warns about.
    quiet_log(logging.ERROR)
    rows: list[Row] = []
    ratios: list[Ratio] = []
    key_counts = keys or KEY_COUNTS
    for count in key_counts:
        case = counted(count, "key")
        tell("dispatch", case)
        rates = uvloop.run(measure(messages, rounds, count))
        rows += [Row(arm, "messages/s", values, case) for arm, values in rates.items()]
        ratios += [
            Ratio(f"{ours} / {peer}", within_rounds(rates[ours], rates[peer]), case, goal=GOALS[peer])
            for ours in (RUNTIME, LANES)
            for peer in GOALS
        ]
    if profile is not None:
        with profiled(profile, os.getpid()):
            uvloop.run(repeat(made_messages(messages, key_counts[-1]), PROFILED_ROUNDS))
    finish(Report("dispatch", rounds, rows, ratios, settings={"messages": messages}), json=json)
