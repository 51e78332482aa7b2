"""A member under one policy, in a process of its own: handles all but the poisoned key, and reports what that took.

Arguments: the arm, where the broker is, how many messages, of how many keys, the arm whose keys count, and when to
begin, on the machine's monotonic clock: members that are compared begin together.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

import uvloop

from lbg_runtime.cli.bench.arms.poison_broker import POISONED, SHAPE, is_measured
from lbg_runtime.cli.bench.arms.receive import WrongCourse, check_course, settings_for
from lbg_runtime.cli.bench.arms.shapes import TOPIC
from lbg_runtime.cli.bench.poison import POLICIES, SAMPLE
from lbg_runtime.cli.lines import say
from lbg_runtime.cli.log import quiet_log
from lbg_runtime.config.settings import ClientPathChoice, Settings
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.transport.solace.transport import SolaceTransport

PATIENCE_S = 120.0


class Poison(Exception):
    """What all messages of the poisoned key fail with."""


def check_measured(arm: str, ids: Sequence[str], count: int, key_count: int) -> None:
    """Raise `WrongCourse` unless every message that counts came once, and in the order of its key."""
    keys = [key for key in range(key_count) if is_measured(arm, key)]
    numbers = [number for number in range(count) if is_measured(arm, number % key_count)]
    # The keys that count take turns as well: the place modulo their number is the key.
    place = {number: at for at, number in enumerate(numbers)}
    check_course([str(place[int(number)]) for number in ids], len(numbers), len(keys))


async def take(arm: str, host: str, count: int, key_count: int, measured_as: str, begin_s: float) -> dict[str, object]:
    """When every 100th message that counts was handled; processor time per message; number of failed attempts."""
    expected = sum(is_measured(measured_as, number % key_count) for number in range(count))
    ids: list[str] = []
    moments: list[float] = []
    cpu_s: list[float] = []
    failed = 0
    gate = asyncio.Event()
    asyncio.get_running_loop().call_later(max(0.0, begin_s - time.monotonic()), gate.set)
    is_poisoned = arm != "no poison"
    handlers = Handlers()
    poisoned_key = f"key-{POISONED}"
    measured_keys = {f"key-{key}" for key in range(key_count) if is_measured(measured_as, key)}

    @handlers.handler(TOPIC)
    async def handle(message: Message) -> None:
        nonlocal failed
        if not gate.is_set():
            await gate.wait()
        if is_poisoned and message.key == poisoned_key:
            failed += 1
            raise Poison
        if message.key not in measured_keys:
            return
        ids.append(message.message_id or "")
        if not len(ids) % SAMPLE or len(ids) == expected:
            moments.append(time.monotonic())
            cpu_s.append(time.process_time())
        if len(ids) == expected:
            app.stop()

    settings = Settings.model_validate(
        {
            "group": asdict(SHAPE),
            "membership": {"mode": "static", "index": 0, "count": 1},
            "rebind": {"drain_timeout": "2s"},
            "failure": POLICIES[arm],
        }
    )
    app = App(handlers, settings, session=SolaceTransport(settings_for(host, ClientPathChoice.FAST)))
    async with asyncio.timeout(PATIENCE_S):
        await app.run()
    if is_poisoned and not failed:
        raise WrongCourse("the poisoned key was not met while the others were handled")
    check_measured(measured_as, ids, count, key_count)
    return {"moments": moments, "cpu_us": (cpu_s[-1] - cpu_s[0]) / (expected - SAMPLE) * 1e6, "failed": failed}


if __name__ == "__main__":
    import logging

    quiet_log(logging.CRITICAL)
    arm, host, count, key_count, measured_as, begin_s = sys.argv[1:]
    say(uvloop.run(take(arm, host, int(count), int(key_count), measured_as, float(begin_s))))
