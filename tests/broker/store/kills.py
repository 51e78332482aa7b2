"""SIGKILL the broker again and again while real clients publish and consume; then look at what became of everything.

All the while it keeps a replay log. After one more SIGKILL at the end it is replayed, and must be the latest messages
that were confirmed: as many as fit, in the order of their keys, each once.

`python -m tests.broker.store.kills --kills 1000` says what it saw, exit 1 where a law is broken. The official client
reconnects by itself throughout; no line here helps it.
"""

import argparse
import json
import logging
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from solace.messaging.config.replay_strategy import ReplayStrategy
from solace.messaging.messaging_service import MessagingService
from solace.messaging.publisher.persistent_message_publisher import MessagePublishReceiptListener
from solace.messaging.receiver.message_receiver import MessageHandler
from solace.messaging.resources.queue import Queue
from solace.messaging.resources.topic import Topic

from tests.addresses import OWN_HOST
from tests.patience import PATIENCE_S
from tests.warm import LBG, Copy, Warm, warm_process

QUEUES = 3
KEYS = 12
REPLAY_LOG = "2M"
"""So small that it is trimmed all the time, and that starting does not take longer and longer."""

REPLAY_LOG_MANY = 10_000
"""Messages of this test of which such a log has more."""

Seen = tuple[int, bool]
"""Number of a message in its key, and whether it came flagged."""


@dataclass
class Verdict:
    """What a run saw; `broken` says what was not as it must be."""

    kills: int = 0
    published: int = 0
    confirmed: int = 0
    received: int = 0
    repeated: int = 0
    left_in_store: int = 0
    replayed: int = 0
    slowest_start_ms: int = 0
    broken: list[str] = field(default_factory=list)


class Broker:
    """`lbg broker --store` in a process, always on the same ports."""

    def __init__(self, warm: Warm, store: Path, limit_bytes: int | None = None, options: tuple[str, ...] = ()) -> None:
        """`limit_bytes`: how large its files may become. `options`: more of them on the command line."""
        self.store = store
        self.options = options
        self._warm = warm
        self._limit_bytes = limit_bytes
        self._said: list[str] = []
        self.smf = self.semp = f"{OWN_HOST}:0"
        self.process: Copy | None = None
        self.start()

    def start(self) -> float:
        began = time.monotonic()
        options = ("--smf", self.smf, "--semp", self.semp, "--store", self.store, "--exit-with-parent", *self.options)
        program = LBG
        if self._limit_bytes is not None:
            limits = (self._limit_bytes, self._limit_bytes)
            program = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, {limits}); {LBG}"
        self._ending = ExitStack()
        self.process = self._ending.enter_context(
            self._warm.running(program, "broker", *options, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        )
        assert self.process.stderr is not None
        # Its log is there as well; it ends where the process does.
        line = next((line for line in self.process.stderr if "lbg broker ready" in line), None)
        if line is None:
            self._ending.close()
            raise RuntimeError("the broker did not start")
        self._said = []
        self._reader = threading.Thread(target=self._said.extend, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        self.smf, self.semp = (part.rpartition(" ")[2] for part in line.strip().split(", "))
        return time.monotonic() - began

    def end(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self._ending.close()

    def last_words(self) -> str:
        """The last line on standard error of a process that has ended."""
        self._reader.join(PATIENCE_S)
        return self._said[-1]

    def depth(self, queue: str) -> int:
        url = f"http://{self.semp}/SEMP/v2/monitor/msgVpns/default/queues/{queue}"
        answer = httpx.get(url, auth=("admin", "admin"), timeout=PATIENCE_S, trust_env=False)
        count: int = answer.json()["collections"]["msgs"]["count"]
        return count

    def configure(self, path: str, **body: object) -> None:
        url = f"http://{self.semp}/SEMP/v2/config/msgVpns/default/{path}"
        answer = httpx.post(url, json=body, auth=("admin", "admin"), timeout=PATIENCE_S, trust_env=False)
        answer.raise_for_status()


class Receipts(MessagePublishReceiptListener):
    def __init__(self) -> None:
        self.confirmed: dict[int, list[int]] = defaultdict(list)
        self.answered = 0

    def on_publish_receipt(self, publish_receipt: Any) -> None:
        self.answered += 1
        if publish_receipt.is_persisted:
            key, number = publish_receipt.user_context
            self.confirmed[key].append(number)


class Consumer(MessageHandler):
    """Acknowledges what it is shown, some of it only later, from another thread."""

    def __init__(self, seed: int) -> None:
        self.seen: dict[int, list[Seen]] = defaultdict(list)
        self.receiver: Any = None
        self._random = random.Random(seed)
        self._held: list[Any] = []
        self._lock = threading.Lock()

    def on_message(self, message: Any) -> None:
        key, _, number = message.get_payload_as_string().partition(":")
        with self._lock:
            self.seen[int(key)].append((int(number), message.is_redelivered()))
            self._held.append(message)
            if self._random.random() < 0.3:
                self._acknowledge()

    def acknowledge(self) -> None:
        with self._lock:
            self._acknowledge()

    def _acknowledge(self) -> None:
        for message in self._held:
            self.receiver.ack(message)
        self._held.clear()


def run(
    warm: Warm, kills: int, seed: int, store: Path, *, deadline_s: float = 1e9, tell: Callable[[str], None] = print
) -> Verdict:
    """Kill so often, or until the time is over."""
    chance = random.Random(seed)
    verdict = Verdict()
    broker = Broker(warm, store, options=("--replay-log", REPLAY_LOG))
    for index in range(QUEUES):
        broker.configure("queues", queueName=f"q{index}", permission="delete", ingressEnabled=True, egressEnabled=True)
        broker.configure(f"queues/q{index}/subscriptions", subscriptionTopic=f"keys/{index}/>")
    consuming, consumers = _consume(broker, seed)
    publishing = _service(broker, "publisher")
    publisher = publishing.create_persistent_message_publisher_builder().on_back_pressure_wait(255).build().start()
    receipts = Receipts()
    publisher.set_message_publish_receipt_listener(receipts)
    stop = threading.Event()
    numbers = dict.fromkeys(range(KEYS), 0)
    published: list[tuple[int, int]] = []

    def publish() -> None:
        choice = random.Random(seed + 1)
        while not stop.wait(choice.choice((0.0, 0.0, 0.0, 0.002))):
            key = choice.randrange(KEYS)
            numbers[key] += 1
            published.append((key, numbers[key]))
            topic = Topic.of(f"keys/{key % QUEUES}/{key}")
            message = publishing.message_builder().build(f"{key}:{numbers[key]}")
            publisher.publish(message, topic, user_context=(key, numbers[key]))

    thread = threading.Thread(target=publish)
    thread.start()
    ends_at = time.monotonic() + deadline_s
    while verdict.kills < kills and time.monotonic() < ends_at:
        time.sleep(chance.uniform(0.02, 0.6))
        broker.end(signal.SIGKILL)
        verdict.kills += 1
        verdict.slowest_start_ms = max(verdict.slowest_start_ms, round(broker.start() * 1000))
        if verdict.kills % 50 == 0:
            tell(f"{verdict.kills} kills, {sum(numbers.values())} published, {receipts.answered} answered")
    stop.set()
    thread.join()
    verdict.published = sum(numbers.values())
    _wait(lambda: receipts.answered >= verdict.published, verdict, "not every message was answered")

    def received() -> bool:
        for consumer in consumers:
            consumer.acknowledge()
        return all(set(receipts.confirmed[key]) <= _numbers(consumers, key) for key in range(KEYS))

    _wait(received, verdict, "not every confirmed message came")
    for consumer in consumers:
        consumer.receiver.terminate(2000)
    publisher.terminate(2000)
    publishing.disconnect()
    consuming.disconnect()
    _judge(verdict, receipts, consumers)
    broker.end(signal.SIGKILL)
    verdict.kills += 1
    broker.start()
    _judge_replay(verdict, broker, receipts, published)
    broker.end(signal.SIGTERM)
    kept = sqlite3.connect(store)
    verdict.left_in_store = kept.execute("SELECT count(*) FROM message").fetchone()[0]
    logged = kept.execute("SELECT count(*) FROM logged").fetchone()[0]
    kept.close()
    if logged != verdict.replayed:
        verdict.broken.append(f"{logged} messages are in the store for the replay log, which has {verdict.replayed}")
    if verdict.left_in_store:
        verdict.broken.append(f"{verdict.left_in_store} messages that were acknowledged are still in the store")
    return verdict


def _service(broker: Broker, name: str) -> Any:
    properties = {
        "solace.messaging.transport.host": f"tcp://{broker.smf}",
        "solace.messaging.service.vpn-name": "default",
        "solace.messaging.authentication.scheme.basic.username": "user",
        "solace.messaging.authentication.scheme.basic.password": "password",
        "solace.messaging.transport.reconnection-attempts": -1,
        "solace.messaging.transport.reconnection-attempts-wait-interval": 100,
    }
    return MessagingService.builder().from_properties(properties).build(name).connect()


def _consume(broker: Broker, seed: int, replay: ReplayStrategy | None = None) -> tuple[Any, list[Consumer]]:
    service = _service(broker, "consumer")
    consumers = [Consumer(seed + index) for index in range(QUEUES)]
    for index, consumer in enumerate(consumers):
        builder = service.create_persistent_message_receiver_builder().with_message_client_acknowledgement()
        if replay is not None:
            builder = builder.with_message_replay(replay)
        consumer.receiver = builder.build(Queue.durable_exclusive_queue(f"q{index}")).start()
        consumer.receiver.receive_async(consumer)
    return service, consumers


def _numbers(consumers: list[Consumer], key: int) -> set[int]:
    return {number for number, _ in list(consumers[key % QUEUES].seen[key])}


def _wait(condition: Callable[[], bool], verdict: Verdict, otherwise: str) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > ends_at:
            verdict.broken.append(otherwise)
            return
        time.sleep(0.05)


def _judge(verdict: Verdict, receipts: Receipts, consumers: list[Consumer]) -> None:
    for key in range(KEYS):
        confirmed, seen = receipts.confirmed[key], list(consumers[key % QUEUES].seen[key])
        verdict.confirmed += len(confirmed)
        verdict.received += len(seen)
        numbers = [number for number, _ in seen]
        if missing := set(confirmed) - set(numbers):
            verdict.broken.append(f"key {key}: {len(missing)} confirmed messages never came: {sorted(missing)[:5]}")
        firsts = list(dict.fromkeys(numbers))
        verdict.repeated += len(numbers) - len(firsts)
        if firsts != sorted(firsts):
            verdict.broken.append(f"key {key}: out of order")
        known: set[int] = set()
        for number, is_flagged in seen:
            if number in known and not is_flagged:
                verdict.broken.append(f"key {key}: {number} came again and was not flagged")
            known.add(number)


def _judge_replay(verdict: Verdict, broker: Broker, receipts: Receipts, published: list[tuple[int, int]]) -> None:
    service, consumers = _consume(broker, 0, ReplayStrategy.all_messages())
    # All that is replayed is on its queue when the bind is answered.
    expected = sum(broker.depth(f"q{index}") for index in range(QUEUES))

    def replayed() -> bool:
        for consumer in consumers:
            consumer.acknowledge()
        verdict.replayed = sum(len(seen) for consumer in consumers for seen in list(consumer.seen.values()))
        return verdict.replayed >= expected and all(broker.depth(f"q{index}") == 0 for index in range(QUEUES))

    _wait(replayed, verdict, "not every replayed message came")
    for consumer in consumers:
        consumer.receiver.terminate(2000)
    service.disconnect()
    # One client published, so the order of all is that in which it did.
    confirmed = {(key, number) for key, numbers in receipts.confirmed.items() for number in numbers}
    accepted = [each for each in published if each in confirmed]
    latest: dict[int, list[int]] = defaultdict(list)
    for key, number in accepted[len(accepted) - verdict.replayed :]:
        latest[key].append(number)
    for key in range(KEYS):
        seen = consumers[key % QUEUES].seen[key]
        if seen != [(number, False) for number in latest[key]]:
            verdict.broken.append(f"key {key}: what was replayed is not what was published last")
    if verdict.replayed < min(len(accepted), REPLAY_LOG_MANY):
        verdict.broken.append(f"only {verdict.replayed} of {len(accepted)} messages were replayed")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    # The client tells of every connection that it loses.
    logging.getLogger("solace.messaging").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory, warm_process() as warm:
        verdict = run(warm, asked.kills, asked.seed, Path(directory) / "store", deadline_s=asked.minutes * 60)
    print(json.dumps(asdict(verdict), indent=1))  # noqa: T201  # what it is for
    sys.exit(1 if verdict.broken else 0)


if __name__ == "__main__":
    main()
