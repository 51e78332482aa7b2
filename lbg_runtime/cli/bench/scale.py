"""`lbg bench scale`: what many queues and many keys cost a member, compared with few of them in the same round.

One member on the official client's fast path, the development broker with all queues; a burst of messages is handled
by a handler that does nothing, and the member's own processor time is divided by their number. The large group has had
the given number of keys before it is measured; idle keys hold what the member's memory has grown by since there was one
key for each queue.
"""

from typing import Annotated

import typer

from lbg_runtime.cli.bench.group_trial import Burst, group_trial
from lbg_runtime.cli.bench.options import MessagesOfBurst, Rounds
from lbg_runtime.cli.bench.profile import Profile, profiled
from lbg_runtime.cli.bench.report import Better, Ratio, Report, Row, finish, tell, within_rounds
from lbg_runtime.cli.options import Json

FEW_QUEUES, FEW_KEYS = 8, 100
COST_GOAL = 1.25
MEMORY_GOAL_MB = 10.0


def scale(
    messages: MessagesOfBurst = 100_000,
    queues: Annotated[int, typer.Option(min=1, max=10_000, help="Number of queues of the large group.")] = 1_000,
    keys: Annotated[
        int, typer.Option(min=1, help="Number of keys that the large group has had before it is measured.")
    ] = 1_000_000,
    rounds: Rounds = 3,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure the cost of a message with many queues and keys.

    Exit code 1 if a message is missing, comes twice or out of order.
    """
    few: list[Burst] = []
    many: list[Burst] = []
    grown_mb: list[float] = []
    for number in range(rounds):
        tell("scale", f"round {number + 1} of {rounds}: {FEW_QUEUES} queues, {FEW_KEYS} keys")
        with group_trial(FEW_QUEUES) as trial:
            trial.burst(messages, FEW_KEYS)
            few.append(trial.burst(messages, FEW_KEYS))
        tell("scale", f"round {number + 1} of {rounds}: {queues} queues, {keys} keys")
        with group_trial(queues) as trial:
            # One key for each queue: messages in flight from all of them at once take memory that is not that of keys.
            trial.burst(messages, queues)
            before = trial.burst(messages, queues)
            for first in range(0, keys, messages):
                seen = trial.burst(messages, min(messages, keys - first), first)
            grown_mb.append((seen.member_memory_bytes[0] - before.member_memory_bytes[0]) / 1e6)
            with profiled(profile if number == 0 else None, trial.pids[0]):
                # Messages of all keys, as far as they go: every key was idle for long.
                many.append(trial.burst(messages, min(messages, keys)))
    rows = []
    for case, bursts in ((f"{FEW_QUEUES} queues, {FEW_KEYS} keys", few), (f"{queues} queues, {keys} keys", many)):
        rows += [
            Row("member", "us of processor/message", [burst.member_cpu_us for burst in bursts], case),
            Row("broker", "us of processor/message", [burst.broker_cpu_us for burst in bursts], case),
            Row("both", "messages/s", [burst.per_s for burst in bursts], case),
            Row("member", "settle frames/message", [burst.frames_per_message for burst in bursts], case),
        ]
    rows.append(Row("member", "MB more memory after all keys", grown_mb, f"{queues} queues, {keys} keys"))
    cost = within_rounds([burst.member_cpu_us for burst in many], [burst.member_cpu_us for burst in few])
    ratios = [
        Ratio("cost of a message, many / few", cost, better=Better.LESS, goal=COST_GOAL),
        Ratio("MB more memory after all keys", grown_mb, better=Better.LESS, goal=MEMORY_GOAL_MB),
    ]
    finish(Report("scale", rounds, rows, ratios, {"messages": messages, "queues": queues, "keys": keys}), json=json)
