"""`lbg bench acks`: the frames with which a member settles, counted at the broker, by what its handler does.

A handler that does nothing settles in the order of arrival. Handlers that wait 1 to 20 ms end in a different order than
they began, and the client packs only neighbours into one range; with more than 511 deliveries out and not settled, it
sends a frame for each (docs/protocol.md), unless the runtime prevents that. So there is an arm with few and one with
many handlers at a time.
"""

from lbg_runtime.cli.bench.group_trial import Burst, group_trial
from lbg_runtime.cli.bench.options import MessagesOfBurst, Rounds
from lbg_runtime.cli.bench.profile import Profile, profiled
from lbg_runtime.cli.bench.report import Better, Ratio, Report, Row, finish, tell, within_rounds
from lbg_runtime.cli.options import Json

GOAL = 0.25
KEYS = 10_000
WAIT_MS = (1.0, 20.0)
NO_OP = "no-op handler"
FEW = "waiting handler, 256 in flight"
MANY = "waiting handler, 2,000 in flight"
ARMS = {NO_OP: (256, 64, (0.0, 0.0)), FEW: (256, 256, WAIT_MS), MANY: (2_000, 2_000, WAIT_MS)}
"""By arm: most in flight, most handlers at a time, shortest and longest wait."""


def acks(
    messages: MessagesOfBurst = 50_000,
    rounds: Rounds = 3,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Count the frames with settlements per message.

    Exit code 1 if a message is missing, comes twice or out of order.
    """
    bursts: dict[str, list[Burst]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for arm, (max_in_flight, runners, wait_ms) in ARMS.items():
            tell("acks", f"round {number + 1} of {rounds}: {arm}")
            with group_trial(1, max_in_flight=max_in_flight, runners=runners, wait_ms=wait_ms) as trial:
                trial.burst(1_000, KEYS)
                with profiled(profile if number == 0 and arm == MANY else None, trial.pids[0]):
                    bursts[arm].append(trial.burst(messages, KEYS))
    rows = []
    ratios = []
    for arm, found in bursts.items():
        frames = [burst.frames_per_message for burst in found]
        rows += [
            Row(arm, "settle frames/message", frames),
            Row(arm, "messages/s", [burst.per_s for burst in found]),
            Row(arm, "member us/message", [burst.member_cpu_us for burst in found]),
            Row(arm, "broker us/message", [burst.broker_cpu_us for burst in found]),
        ]
        ratios.append(Ratio(f"settle frames a message, {arm}", frames, better=Better.LESS, goal=GOAL))
    # Many at a time should be quicker than few, not slower.
    rates = within_rounds([burst.per_s for burst in bursts[MANY]], [burst.per_s for burst in bursts[FEW]])
    ratios.append(Ratio("rate, 2,000 / 256 in flight", rates, goal=1.0))
    finish(Report("acks", rounds, rows, ratios, {"messages": messages, "keys": KEYS}), json=json)
