"""`lbg bench receive`: how fast messages come in, from a broker's queue to their settlement.

The development broker in a process of its own, its queue full before the clock starts; the official client; real
sockets on loopback. Each measurement has a fresh broker and a fresh process for its arm, and the arms take turns:

- `callback`: the client's public receiver alone, whose callback reads the message and acknowledges it.
- `public`: the transport on the public path, lanes, an awaited handler that does nothing, a settlement.
- `fast`: the same on the fast path.
- `member`: the whole runtime on the fast path.

Rates are compared within a round, as on a shared machine the rates of different minutes are not comparable.
"""

from lbg_runtime.cli.bench.options import KEY_COUNTS, SLOW_SHARE, KeyCounts, MessagesOfFastArms, Rounds
from lbg_runtime.cli.bench.processes import BenchFailed, run_arm, run_broker
from lbg_runtime.cli.bench.profile import Profile
from lbg_runtime.cli.bench.report import Better, Measured, Ratio, Report, Row, finish, tell, within_rounds
from lbg_runtime.cli.options import Json
from lbg_runtime.model.counted import counted

ARMS = ("callback", "public", "fast", "member")
PEERS = ("callback", "public")
GOALS = {("fast", "callback"): 10.0, ("fast", "public"): 14.0}
SETTLE_FRAMES_GOAL = 0.25
PROFILED_ROUNDS = 5
"""How many times the messages of a measurement the profiled arm takes, as sampling needs a while."""
_ARMS_MODULE = "lbg_runtime.cli.bench.arms.receive"


def receive(
    messages: MessagesOfFastArms = 60_000,
    rounds: Rounds = 3,
    keys: KeyCounts = None,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure the receive path beside its peers. Takes minutes.

    Exit code 1 if a message is missing, comes twice or out of the order of its key, or is left on the queue.
    """
    rows: list[Row] = []
    ratios: list[Ratio] = []
    key_counts = keys or KEY_COUNTS
    for key_count in key_counts:
        case = counted(key_count, "key")
        measured: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
        for number in range(rounds):
            tell("receive", f"{case}, round {number + 1} of {rounds}")
            for arm in ARMS:
                count = messages // SLOW_SHARE if arm in PEERS else messages
                measured[arm].append(measure(arm, count, key_count))
        rows += rows_of(measured, case)
        ratios += ratios_of(measured, case)
    if profile is not None:
        count = messages * PROFILED_ROUNDS
        with run_broker("lbg_runtime.cli.bench.arms.filled_broker", count, key_counts[-1]) as broker:
            run_arm("member", _ARMS_MODULE, broker.host, count, key_counts[-1], profile=profile)
    finish(Report("receive", rounds, rows, ratios, settings={"messages": messages}), json=json)


def measure(arm: str, message_count: int, key_count: int) -> dict[str, float]:
    """One measurement: messages a second, and microseconds of processor time per message on both sides."""
    with run_broker("lbg_runtime.cli.bench.arms.filled_broker", message_count, key_count) as broker:
        before = broker.ask()
        spent = run_arm(arm, _ARMS_MODULE, broker.host, message_count, key_count)
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


_UNITS = {
    "rate": "messages/s",
    "client_cpu_us": "client us/message",
    "client_share": "client's cores",
    "broker_cpu_us": "broker us/message",
    "broker_share": "broker's cores",
    "settle_frames": "settle frames/message",
}


def rows_of(measured: Measured, case: str) -> list[Row]:
    return [
        Row(arm, unit, [each[name] for each in measured[arm]], case)
        for name, unit in _UNITS.items()
        for arm in measured
    ]


def ratios_of(measured: Measured, case: str) -> list[Ratio]:
    """The rate of each of our arms as a multiple of a peer's in the same round, and the frames that settle."""
    rates = {arm: [each["rate"] for each in rounds] for arm, rounds in measured.items()}
    ratios = [
        Ratio(f"{arm} / {peer}", within_rounds(rates[arm], rates[peer]), case, goal=GOALS.get((arm, peer)))
        for arm in measured
        if arm not in PEERS
        for peer in PEERS
    ]
    frames = [each["settle_frames"] for each in measured["fast"]]
    return [*ratios, Ratio("settle frames a message, fast", frames, case, Better.LESS, SETTLE_FRAMES_GOAL)]
