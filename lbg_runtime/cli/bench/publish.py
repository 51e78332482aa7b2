"""`lbg bench publish`: how fast messages go out, from the call that publishes to the broker's confirm.

The development broker in a process of its own; the official client; real sockets on loopback. Each measurement has a
fresh broker and a fresh process for its arm, and the arms take turns. All publish the same messages (256 bytes, with
key, publisher and number within the key as user properties, application message id and sender's time), of 100 keys:

- `receipts`: the client's public publisher alone; a thread publishes, a listener takes the receipts, 64 under way.
- `await_ack`: the client's call that waits for the confirm, one after the other. Its lock admits one caller at a time.
- `public`: the transport on the public path, 64 tasks that each await their message.
- `fast`: the same on the fast path.
- `hashed`: the hashed publisher with its ledger on the fast path, 64 tasks.

After each measurement, everything on the broker's queue is checked. Rates are compared within a round, as on a shared
machine the rates of different minutes are not comparable.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from lbg_runtime.cli.bench.options import SLOW_SHARE, MessagesOfFastArms, Rounds
from lbg_runtime.cli.bench.processes import BenchFailed, run_arm, run_broker
from lbg_runtime.cli.bench.profile import Profile
from lbg_runtime.cli.bench.report import Measured, Ratio, Report, Row, finish, tell, within_rounds
from lbg_runtime.cli.options import Json

ARMS = ("receipts", "await_ack", "public", "fast", "hashed")
PEERS = {"receipts": 8.0, "await_ack": 10.0}
"""Each peer with its goal: the rate of `hashed` as a multiple of the peer's."""
SLOW_ARMS = (*PEERS, "public")
PROFILED_ROUNDS = 5
"""How many times the messages of a measurement the profiled arm publishes, as sampling needs a while."""
_ARMS_MODULE = "lbg_runtime.cli.bench.arms.publish"
_BROKER_MODULE = "lbg_runtime.cli.bench.arms.publish_broker"


def publish(
    messages: MessagesOfFastArms = 60_000,
    rounds: Rounds = 5,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure confirmed publishing beside its peers. Takes a minute or two.

    Exit code 1 if a message is not confirmed, or is not on the broker once and in the order of its key.
    """
    measured: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        tell("publish", f"round {number + 1} of {rounds}")
        for arm in ARMS:
            measured[arm].append(measure(arm, messages // SLOW_SHARE if arm in SLOW_ARMS else messages))
    if profile is not None:
        with run_broker(_BROKER_MODULE) as broker:
            run_arm("hashed", _ARMS_MODULE, broker.host, messages * PROFILED_ROUNDS, profile=profile)
    rows, ratios = tuple(rows_of(measured)), tuple(ratios_of(measured))
    finish(Report("publish", rounds, rows, ratios, settings={"messages": messages}), json=json)


def measure(arm: str, message_count: int) -> dict[str, float]:
    """One measurement: messages a second, and microseconds of processor time per message on both sides."""
    with run_broker(_BROKER_MODULE) as broker:
        before = broker.ask()
        spent = run_arm(arm, _ARMS_MODULE, broker.host, message_count)
        after = broker.ask()
    check_content(arm, after, message_count)
    return {
        "rate": message_count / spent["seconds"],
        "client_cpu_us": spent["cpu_s"] / message_count * 1e6,
        "broker_cpu_us": (after["cpu_s"] - before["cpu_s"]) / message_count * 1e6,
    }


def check_content(arm: str, content: Mapping[str, Any], message_count: int) -> None:
    """Raise `BenchFailed` unless each message is on the queue once, whole, and behind the earlier ones of its key."""
    from lbg_runtime.cli.bench.arms.publish import KEYS, PUBLISHER
    from lbg_runtime.cli.bench.arms.receive import WrongCourse, check_course

    try:
        check_course(content["numbers"], message_count, KEYS)
    except WrongCourse as error:
        raise BenchFailed(arm, str(error)) from error
    for number, key, message_id in zip(content["numbers"], content["keys"], content["ids"], strict=True):
        if (key, message_id) != (f"key-{number % KEYS}", f"{PUBLISHER}-{number + 1}"):
            raise BenchFailed(arm, f"message {number} has the key {key} and the id {message_id}")


def rows_of(measured: Measured) -> Iterator[Row]:
    """The reported figures of each arm."""
    for arm, rounds in measured.items():
        yield Row(arm, "messages/s", [each["rate"] for each in rounds])
        yield Row(arm, "us of the client's processor a message", [each["client_cpu_us"] for each in rounds])
        yield Row(arm, "us of the broker's processor a message", [each["broker_cpu_us"] for each in rounds])


def ratios_of(measured: Measured) -> Iterator[Ratio]:
    """Our own arms compared with the client's. The goal is for the whole publisher, so the transport alone has none."""
    for arm in ("fast", "hashed"):
        for peer, goal in PEERS.items():
            values = within_rounds(*([each["rate"] for each in measured[one]] for one in (arm, peer)))
            yield Ratio(f"{arm} / {peer}", values, goal=goal if arm == "hashed" else None)
