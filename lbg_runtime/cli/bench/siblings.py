"""`lbg bench processes`: one member process against several, on the same broker, which takes its part of the cores.

The members are those of `group_trial`; each burst begins with full queues. The rate is that of all members together,
from the first handling to the last one. A burst is long, so that its end, when some queues are empty already, weighs
little: with 100,000 messages, two processes are done in less than a second.
"""

from typing import Annotated

import typer

from lbg_runtime.cli.bench.group_trial import Burst, group_trial
from lbg_runtime.cli.bench.options import MessagesOfBurst, Rounds
from lbg_runtime.cli.bench.profile import Profile, profiled
from lbg_runtime.cli.bench.report import Ratio, Report, Row, finish, tell, within_rounds
from lbg_runtime.cli.options import Json

GOAL = 1.4
QUEUES = 8


def processes(
    messages: MessagesOfBurst = 400_000,
    keys: Annotated[int, typer.Option(min=1, help="Number of different keys.")] = 1_000,
    count: Annotated[
        int, typer.Option("--processes", min=2, max=16, help="Number of members in the larger arm; the other has one.")
    ] = 2,
    rounds: Rounds = 3,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure what additional member processes bring.

    Exit code 1 if a message is missing, comes twice or out of order.
    """
    bursts: dict[int, list[Burst]] = {1: [], count: []}
    for number in range(rounds):
        for members in bursts:
            tell("processes", f"round {number + 1} of {rounds}: {_words(members)}")
            with group_trial(QUEUES, members) as trial:
                trial.burst(max(1_000, messages // 10), keys)
                with profiled(profile if number == 0 and members == count else None, trial.pids[0]):
                    bursts[members].append(trial.burst(messages, keys))
    rows = []
    for members, found in bursts.items():
        rows += [
            Row(_words(members), "messages/s", [burst.per_s for burst in found]),
            Row(_words(members), "members' us/message", [burst.member_cpu_us for burst in found]),
            Row(_words(members), "broker us/message", [burst.broker_cpu_us for burst in found]),
        ]
    rates = within_rounds([burst.per_s for burst in bursts[count]], [burst.per_s for burst in bursts[1]])
    # The goal is for two processes; there is none for more.
    ratio = Ratio(f"{_words(count)} / 1 process", rates, goal=GOAL if count == 2 else None)
    settings = {"messages": messages, "keys": keys, "queues": QUEUES}
    finish(Report("processes", rounds, rows, [ratio], settings), json=json)


def _words(members: int) -> str:
    return "1 process" if members == 1 else f"{members} processes"
