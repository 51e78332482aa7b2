"""A parked key with real processes: the official client, the command line, and SIGKILL at every step it can be told of.

What is looked at is the order in which messages were handled for the first time, by what the handlers themselves wrote.
"""

import json
import queue
import signal
import subprocess
import threading
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.testing.broker_on_port import BrokerOnPort
from tests.patience import PATIENCE_S
from tests.processes import lines_of, whole_lines
from tests.warm import Copy, WarmLbg

COUNT = 400
KEYS = 4
SHARDS, QUEUES = 12, 3
POISON, NUMBER = "1", 5

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]

HANDLERS = f"""
import asyncio, os
from pathlib import Path
from lbg_runtime import Handlers

handlers = Handlers()
here = Path(__file__).parent

@handlers.handler("orders/>")
async def on_order(message):
    if message.key == "{POISON}":
        if message.key_sequence == {NUMBER} and not (here / "mended").exists():
            raise ValueError("poison")
        await asyncio.sleep(0.01)
    with open(here / "handled", "a") as out:
        out.write(f"{{message.key}} {{message.key_sequence}}\\n")
"""

CONFIG = """
connection: {transport: solace, host: "%s"}
group: {name: orders, hash_prefix: h, hash_count: %d, queue_count: %d, provision: create_missing}
membership: {heartbeat: 200ms, settle: 300ms}
rebind: {min_tenure: 1s}
failure: {attempts: 2, then: park, backoff: {initial: 10ms, maximum: 20ms}}
handlers: [poisoned_handlers]
"""


class Stage:
    """A broker, members by name, and what their logs say."""

    def __init__(self, folder: Path, broker: BrokerOnPort, lbg: WarmLbg, stack: ExitStack) -> None:
        self.folder, self.broker, self.lbg, self.stack = folder, broker, lbg, stack
        self.members: dict[str, Copy] = {}
        self.events: queue.Queue[tuple[str, dict[str, object]]] = queue.Queue()
        self.lives = 0
        (folder / "poisoned_handlers.py").write_text(HANDLERS)
        (folder / "config.yaml").write_text(CONFIG % (broker.url, SHARDS, QUEUES))

    def running(self, *words: str, **streams: int) -> AbstractContextManager[Copy]:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **streams}
        return self.lbg.running(self.folder, *words, **streams)

    def start(self) -> str:
        self.lives += 1
        name = f"m{self.lives}"
        member = self.running("run", "--member-id", name, "--json", stderr=subprocess.PIPE)
        process = self.members[name] = self.stack.enter_context(member)
        threading.Thread(target=self._read, args=(name, process), daemon=True).start()
        return name

    def _read(self, name: str, process: Copy) -> None:
        for line in lines_of(process.stderr):
            if line.startswith("{"):
                self.events.put((name, json.loads(line)))

    def until(self, event: str, **facts: object) -> str:
        """The member that says so, and lives."""
        while True:
            name, told = self.events.get(timeout=PATIENCE_S)
            is_meant = told["event"] == event and all(told.get(fact) == value for fact, value in facts.items())
            if is_meant and self.members[name].poll() is None:
                return name

    def kill(self, name: str) -> None:
        self.members[name].send_signal(signal.SIGKILL)
        self.members[name].wait(PATIENCE_S)

    def ask(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.lbg(self.folder, "parked", *words)

    def handled(self) -> list[tuple[str, int]]:
        lines = whole_lines(self.folder / "handled")
        return [(key, int(number)) for key, number in map(str.split, lines)]

    def wait_for(self, condition, what: str) -> None:
        pause = threading.Event()
        for _ in range(PATIENCE_S * 50):
            if condition():
                return
            pause.wait(0.02)
        raise AssertionError(f"not in time: {what}")


def first_handlings(handled: list[tuple[str, int]]) -> dict[str, list[int]]:
    firsts: dict[str, list[int]] = {}
    for key, number in dict.fromkeys(handled):
        firsts.setdefault(key, []).append(number)
    return firsts


def publish_until(publishing: Copy, begin: int, end: int) -> None:
    """The messages of the keys in turn with these numbers."""
    assert publishing.stdin is not None
    publishing.stdin.writelines(f'{{"key": "{number % KEYS}"}}\n' for number in range(begin, end))
    publishing.stdin.flush()


def test_a_parked_key_keeps_its_order_through_sigkill_at_every_step(lbg: WarmLbg, tmp_path: Path) -> None:
    with BrokerOnPort() as broker, ExitStack() as stack:
        stage = Stage(tmp_path, broker, lbg, stack)
        stage.start()
        stage.until("parking_opened")
        stage.start()
        # As the test goes on, not by the clock: a machine may take longer to start a member than to publish everything.
        load = ("publish", "--topic", "orders/new", "--key-from", "json:/key")
        publishing = stack.enter_context(stage.running(*load, stdin=subprocess.PIPE))
        publish_until(publishing, 0, COUNT // 3)

        # It lies in the parking queue, and the settlement of its original waits for the client's timer.
        stage.kill(stage.until("key_parked"))
        stage.start()
        # The next owner has just read what is parked, and parks what follows.
        where = parking_queues()[shard_of(HashFunction.CRC32, POISON, SHARDS) % QUEUES]
        stage.kill(stage.until("parking_opened", parking=where))
        stage.start()
        owner = stage.until("parking_opened", parking=where)
        # In the middle of what follows.
        before = broker.queue_status(where).depth
        publish_until(publishing, COUNT // 3, COUNT - 40)
        broker.wait_until(where, lambda status: status.depth > before + 10, within_s=PATIENCE_S)
        stage.kill(owner)
        publish_until(publishing, COUNT - 40, COUNT)
        stage.start()
        assert publishing.stdin is not None
        publishing.stdin.close()
        assert publishing.wait(PATIENCE_S) == 0
        stage.until("parking_opened", parking=where)
        queues = [f"orders/{index}" for index in range(QUEUES)]
        stage.wait_for(lambda: not any(broker.queue_status(each).depth for each in queues), "parked")

        firsts = first_handlings(stage.handled())
        assert firsts[POISON] == list(range(1, NUMBER))
        listed = json.loads(stage.ask("list", "--json").stdout)["parked"]
        assert [(each["lane"], each["error"]) for each in listed] == [(f"key {POISON}", "ValueError: poison")]
        handled = sum(map(len, firsts.values()))
        # Besides them, the fence of the owner; copies and former fences go with the client's timer.
        stage.wait_for(lambda: broker.queue_status(where).depth - 1 == COUNT - handled, "all of the key is parked")

        # The order to unpark is killed half-way, then given, and the owner is killed in the middle of the replay.
        (tmp_path / "mended").touch()
        with stage.running("parked", "unpark", POISON) as asking:
            stage.wait_for(lambda: any(name.startswith("lbg-parked-") for name in broker.client_names()), "it looks")
            asking.send_signal(signal.SIGKILL)
        asked = stage.ask("unpark", POISON)
        assert asked.returncode == 0, asked.stderr
        stage.wait_for(lambda: (POISON, NUMBER + 20) in stage.handled(), "the replay has begun")
        living = [name for name, process in stage.members.items() if process.poll() is None]
        client = next(flow.client_name for flow in broker.queue_status(where).flows if flow.active)
        stage.kill(next(name for name in living if f"/{name}/" in client))
        stage.wait_for(lambda: len(set(stage.handled())) == COUNT, "all is handled")
        stage.wait_for(lambda: all(broker.queue_status(each).depth == 1 for each in parking_queues()), "settled")

        for key, numbers in first_handlings(stage.handled()).items():
            assert numbers == list(range(1, len(numbers) + 1)), key
        assert stage.ask("show", POISON).returncode == 1


def parking_queues() -> list[str]:
    return [f"{PARKING_PREFIX}orders/{index}" for index in range(QUEUES)]
