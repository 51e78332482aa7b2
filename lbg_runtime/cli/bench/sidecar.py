"""`lbg bench sidecar`: what the hop to an application costs, against a bare client that posts to the same application.

Real processes on loopback: the development broker, a member with a sidecar on the official client, and an application
on starlette and uvicorn that checks the order of each key. The bare client posts the same events with the library that
the sidecar uses, also one event of a key at a time, and does nothing else.

The arms take turns, round by round, and each figure is the median of its rounds, as other work on the machine disturbs
now one and now the other. Latency is measured from the arrival of a message at the member, or from the bare client's
call, to the end of the application's answer; the bare client calls at the times at which the messages of the same round
arrived, with all their bursts.
"""

import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import orjson
import typer

from lbg_runtime.cli.bench.options import Rounds
from lbg_runtime.cli.bench.processes import hear, run_broker, run_module
from lbg_runtime.cli.bench.profile import Profile, profiled
from lbg_runtime.cli.bench.report import Better, Ratio, Report, Row, finish, tell, within_rounds
from lbg_runtime.cli.live.run_folder import run_folder
from lbg_runtime.cli.options import DURATION, Json, duration_ms
from lbg_runtime.cli.quantile import quantile

if TYPE_CHECKING:
    import aiohttp

ARMS = ("bare_throughput", "sidecar_throughput", "bare_latency", "sidecar_latency")

THROUGHPUT_GOAL = 0.7
ADDED_MS_GOAL = 1.0
"""Most that the hop may add to the median."""
QUANTILES = {"p50": 0.5, "p99": 0.99}
WARM_UP = 0.125
"""Fraction of a latency arm's messages, at its beginning, that is not counted."""

_MODULES = "lbg_runtime.cli.bench.arms"
_WITHIN_S = 150.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Arm:
    """The figures of one arm, by the application's own account."""

    sent: int
    count: int
    out_of_order: int
    overlapping: int
    per_s: float
    latencies_ms: Sequence[float] = ()

    @property
    def is_right(self) -> bool:
        """Whether everything came once and in order, one event of a key at a time."""
        return self.count == self.sent and not self.out_of_order and not self.overlapping


def sidecar(
    messages: Annotated[
        int, typer.Option(min=1000, max=200_000, help="Messages for measuring the highest throughput.")
    ] = 5000,
    duration: Annotated[
        str, typer.Option(metavar=DURATION, help="How long a steady rate lasts, for measuring the latency.")
    ] = "3s",
    rate: Annotated[int, typer.Option(min=1, max=3000, help="Messages per second for measuring the latency.")] = 1000,
    keys: Annotated[int, typer.Option(min=1, max=1000, help="Number of different keys.")] = 64,
    rounds: Rounds = 3,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure latency and throughput of the hop to an application.

    Exit code 1 unless every count and order is right.
    """
    import uvloop

    seconds = duration_ms("--duration", duration, least_ms=1_000, most_ms=120_000) / 1_000
    with run_folder("lbg-bench-") as folder:
        arms: dict[str, list[Arm]] = {name: [] for name in ARMS}
        for number in range(rounds):
            tell("sidecar", f"round {number + 1} of {rounds}")
            part = folder.path / str(number)
            part.mkdir()
            picture = profile if number == 0 else None
            for name, arm in uvloop.run(_measure(part, messages, round(seconds * rate), rate, keys, picture)).items():
                arms[name].append(arm)
        folder.is_wanted = not all(arm.is_right for played in arms.values() for arm in played)
    settings = {"messages": messages, "rate": rate, "seconds": seconds, "keys": keys}
    finish(
        Report("sidecar", rounds, rows_of(arms), ratios_of(arms), settings, {"checked": checked(arms)}, wrong_of(arms)),
        json=json,
    )


# -- the arms


async def _measure(
    folder: Path, messages: int, timed: int, rate: int, keys: int, profile: Path | None
) -> dict[str, Arm]:
    import aiohttp

    async with AsyncExitStack() as stack:
        application, _ = stack.enter_context(run_module(f"{_MODULES}.sidecar_application", (), subprocess.PIPE))
        url: str = hear("the application", application)["url"]
        broker = stack.enter_context(run_broker(f"{_MODULES}.filled_broker", messages, keys))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2))
        )
        config = _write_config(folder, broker.host, url)
        arms = {"bare_throughput": await _bare(session, url, messages, keys)}
        async with _lbg(folder, "run", "--config", str(config)) as pid:
            stack.enter_context(profiled(profile, pid))
            arms["sidecar_throughput"] = await _told(session, url, messages)
        journal = folder / "journal"
        async with _lbg(folder, "run", "--config", str(config), "--journal", str(journal)):
            await _until_active(journal)
            publish = ("publish", "--config", str(config), "--topic", "orders/new", "--count", str(timed))
            async with _lbg(folder, *publish, "--rate", str(rate), "--keys", str(keys), is_endless=False):
                arm = await _told(session, url, timed)
        handled = _journal_times_ns(journal)
        latencies_ms = [(done_ns - arrived_ns) / 1e6 for arrived_ns, done_ns in handled]
        arms["sidecar_latency"] = replace(arm, latencies_ms=latencies_ms)
        moments_s = [(arrived_ns - handled[0][0]) / 1e9 for arrived_ns, _ in handled]
        arms["bare_latency"] = await _bare(session, url, timed, keys, moments_s)
        return arms


async def _bare(
    session: "aiohttp.ClientSession", url: str, count: int, keys: int, moments_s: Sequence[float] = ()
) -> Arm:
    """Post `count` events, those of a key one after another; at these moments, or as fast as possible."""
    locks = [anyio.Lock() for _ in range(keys)]
    latencies_ms: list[float] = []
    bodies = [_event(key) for key in range(keys)]

    async def post(index: int) -> None:
        key, number = index % keys, index // keys + 1
        headers, body = bodies[key]
        async with locks[key]:
            began_ns = time.monotonic_ns()
            told = {**headers, "lbg-fencing-token": str(number)}
            async with session.post(f"{url}/orders", data=body, headers=told) as response:
                await response.read()
            latencies_ms.append((time.monotonic_ns() - began_ns) / 1e6)

    async def post_key(key: int) -> None:
        for index in range(key, count, keys):
            await post(index)

    async with anyio.create_task_group() as tasks:
        began_s = anyio.current_time()
        for index, moment_s in enumerate(moments_s):
            await anyio.sleep_until(began_s + moment_s)
            tasks.start_soon(post, index)
        for key in range(keys) if not moments_s else ():
            tasks.start_soon(post_key, key)
    return await _told(session, url, count, latencies_ms)


async def _told(session: "aiohttp.ClientSession", url: str, sent: int, latencies_ms: Sequence[float] = ()) -> Arm:
    """The application's account, once it has all that were sent, or has not got them in time."""
    with anyio.move_on_after(_WITHIN_S):
        while (await _ask(session, "GET", f"{url}/look"))["count"] < sent:  # noqa: ASYNC110 - it is in another process
            await anyio.sleep(_POLL_S)
    report = await _ask(session, "POST", f"{url}/report")
    per_s = (report["count"] - 1) * 1e9 / max(1, report["last_ns"] - report["first_ns"])
    return Arm(sent, report["count"], report["out_of_order"], report["overlapping"], per_s, latencies_ms)


async def _ask(session: "aiohttp.ClientSession", method: str, url: str) -> dict[str, int]:
    async with session.request(method, url) as response:
        told: dict[str, int] = orjson.loads(await response.read())
        return told


async def _until_active(journal: Path) -> None:
    """Wait until the member is fed: the wait of messages that gather before would count as latency."""
    from lbg_runtime.cli.live.tail import JournalTail

    tail = JournalTail(journal)
    with anyio.fail_after(_WITHIN_S):
        while not any(record.fields.get("event") == "active" for record in tail.read()):  # noqa: ASYNC110 - as above
            await anyio.sleep(_POLL_S)


def _event(key: int) -> tuple[dict[str, str], bytes]:
    """What the sidecar sends for a message of the filled broker."""
    from lbg_runtime.cli.bench.arms.filled_broker import stamped
    from lbg_runtime.cli.bench.arms.shapes import QUEUE, SHAPE, TOPIC
    from lbg_runtime.model.ids import Epoch
    from lbg_runtime.sidecar.event import STRUCTURED_TYPE, Event, facts, structured

    message, shard = stamped(SHAPE, key, 1, key), key % SHAPE.hash_count
    event = Event(message, TOPIC, message.key or "", shard, QUEUE, Epoch(1), 1, False, "", "/bench")
    return {**facts(event), "content-type": STRUCTURED_TYPE}, structured(event, "pubsub")


def _journal_times_ns(folder: Path) -> list[tuple[int, int]]:
    """Arrival and end of the answer of every message, in order of arrival."""
    from lbg_runtime.cli.live.tail import accepted_dispatches

    return sorted((record["receive_mono_ns"], record["done_mono_ns"]) for record in accepted_dispatches(folder))


# -- processes


def _write_config(folder: Path, host: str, url: str) -> Path:
    from lbg_runtime.cli.bench.arms.shapes import SHAPE

    config = folder / "config.yaml"
    settings = {
        "connection": {"transport": "solace", "host": host},
        "group": asdict(SHAPE),
        "membership": {"settle": "200ms"},
        "sidecar": {"application": url, "listen": "off"},
    }
    # JSON is YAML, and quotes whatever needs it.
    config.write_bytes(orjson.dumps(settings, option=orjson.OPT_INDENT_2))
    return config


@asynccontextmanager
async def _lbg(folder: Path, *command: str, is_endless: bool = True) -> AsyncIterator[int]:
    """Run an `lbg` command; yield its process id. At the end it is asked to leave, or awaited if it ends by itself."""
    from lbg_runtime.cli.live.processes import lbg_process

    name = command[0]
    async with lbg_process(name, [*command, "--exit-with-parent"], folder / f"{name}.log") as child:
        yield child.pid
        if not is_endless:
            with anyio.move_on_after(_WITHIN_S):
                await child.process.wait()
        await child.stop()


# -- figures


def rows_of(arms: Mapping[str, Sequence[Arm]]) -> list[Row]:
    """The figures of all arms, each with its rounds."""
    rows = [Row(name, "messages/s", [arm.per_s for arm in arms[name]]) for name in ARMS[:2]]
    for part in QUANTILES:
        for name in ARMS[2:]:
            # If nothing was handled there is no value, and `wrong_of` says so.
            values = [found[part] for arm in arms[name] if (found := quantiles(arm.latencies_ms))]
            rows += [Row(f"{name} {part}", "ms", values)] if values else []
    return rows


def ratios_of(arms: Mapping[str, Sequence[Arm]]) -> list[Ratio]:
    """Throughput of the hop divided by that of the bare client, and what the hop adds."""
    bare, hop = ([arm.per_s for arm in arms[name]] for name in ARMS[:2])
    ratios = [Ratio("throughput, sidecar / bare client", within_rounds(hop, bare), goal=THROUGHPUT_GOAL)]
    rounds = zip(*([quantiles(arm.latencies_ms) for arm in arms[name]] for name in ARMS[2:]), strict=True)
    both = [(bare_ms, hop_ms) for bare_ms, hop_ms in rounds if bare_ms and hop_ms]
    if not both:
        return ratios
    for part in QUANTILES:
        values = [hop_ms[part] / bare_ms[part] for bare_ms, hop_ms in both]
        ratios.append(Ratio(f"latency {part}, sidecar / bare client", values, better=Better.LESS))
    added_ms = [hop_ms["p50"] - bare_ms["p50"] for bare_ms, hop_ms in both]
    return [*ratios, Ratio("ms added at p50", added_ms, better=Better.LESS, goal=ADDED_MS_GOAL)]


def checked(arms: Mapping[str, Sequence[Arm]]) -> dict[str, dict[str, int]]:
    """The counts of all rounds, by arm."""
    return {
        name: {
            "sent": sum(arm.sent for arm in played),
            "handled": sum(arm.count for arm in played),
            "out_of_order": sum(arm.out_of_order for arm in played),
            "overlapping": sum(arm.overlapping for arm in played),
        }
        for name, played in arms.items()
    }


def wrong_of(arms: Mapping[str, Sequence[Arm]]) -> list[str]:
    """What did not come once, in order, one event of a key at a time: in words, by arm."""
    return [
        f"{name}: {found['handled']} of {found['sent']} handled, {found['out_of_order']} out of order, "
        f"{found['overlapping']} overlapping"
        for name, found in checked(arms).items()
        if not all(arm.is_right for arm in arms[name])
    ]


def quantiles(latencies_ms: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile (nearest rank) without the warm-up; empty for no values."""
    counted = latencies_ms[int(len(latencies_ms) * WARM_UP) :]
    if not counted:
        return {}
    return {name: round(quantile(counted, part), 3) for name, part in QUANTILES.items()}
