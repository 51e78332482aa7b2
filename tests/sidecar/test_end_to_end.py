"""Broker, sidecar and application, each a process of its own, the official client between; and what a SIGKILL does."""

import asyncio
import itertools
import json
import re
import signal
import sys
import time
from contextlib import ExitStack
from itertools import pairwise

import pytest

from lbg_runtime import open_publisher
from tests.addresses import OWN_HOST, own_ports
from tests.foreign_client import ForeignClient
from tests.patience import PATIENCE_S
from tests.processes import running, whole_lines

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]

_numbers = itertools.count(1)


def until(look, log):
    """What `look` finds, once it finds something."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < end_s, log.read_text()
        time.sleep(0.02)
    return found


class Stage:
    """The processes of one test; whatever happens, they are gone when it ends."""

    def __init__(self, folder, lbg, stack, broker, number):
        """A group of its own on the broker, by its number."""
        self.folder = folder
        self.broker = f"tcp://{broker}"
        self.prefix = f"h{number}"
        self.lbg = lbg
        self.log = folder / "events.jsonl"
        self._stack = stack
        (self.port,) = own_ports(1)
        config = {
            "connection": {"transport": "solace", "host": self.broker},
            "group": {
                "name": f"orders-{number}",
                "hash_prefix": self.prefix,
                "hash_count": 8,
                "queue_count": 2,
                "provision": "create_missing",
            },
            "membership": {"heartbeat": "300ms", "settle": "300ms"},
            "sidecar": {"application": f"http://{OWN_HOST}:{self.port}", "listen": "off"},
        }
        (folder / "config.yaml").write_text(json.dumps(config))

    def sidecar(self):
        with (self.folder / "sidecar.log").open("ab") as output:
            return self._stack.enter_context(self.lbg.running(self.folder, "run", stdout=output, stderr=output))

    def application(self, kind="plain"):
        command = [sys.executable, "-m", f"tests.sidecar.{kind}_application", OWN_HOST, str(self.port), self.log]
        with (self.folder / "application.log").open("ab") as output:
            return self._stack.enter_context(running(command, stdout=output, stderr=output))

    def said(self, event):
        return (self.folder / "sidecar.log").read_text().count(f'"{event}"')

    def publish(self, lines):
        """Here, as one more process would cost more than the publisher."""

        async def publish():
            async with open_publisher(self.folder / "config.yaml") as publisher:
                for line in lines:
                    await publisher.submit("orders/new", json.dumps(line).encode(), key=line["k"])

        asyncio.run(publish())

    def until(self, look):
        """What `look` finds, once it finds something."""
        return until(look, self.folder / "sidecar.log")

    def steps(self):
        return [json.loads(line) for line in whole_lines(self.log)]

    def began(self, key, number):
        return [step for step in self.steps() if (step["step"], step["key"], step["n"]) == ("begin", key, number)]

    def ended(self):
        """Numbers by key, in the order in which they were handled to the end."""
        found = {}
        for step in self.steps():
            if step["step"] == "end":
                found.setdefault(step["key"], []).append(step["n"])
        return found


@pytest.fixture(scope="module")
def broker(lbg, tmp_path_factory):
    """The address of a broker in a process of its own, for all tests."""
    folder = tmp_path_factory.mktemp("broker")
    log = folder / "broker.log"
    with log.open("wb") as output, lbg.running(folder, "broker", "--smf", "127.0.0.1:0", stderr=output):
        yield until(lambda: re.search(r"ready: smf (\S+)\n", log.read_text()), log)[1]


@pytest.fixture
def stage(tmp_path, lbg, broker):
    with ExitStack() as stack:
        yield Stage(tmp_path, lbg, stack, broker, next(_numbers))


def messages(keys=6, count=10, **special):
    """So many of each key; `k1_3="drop"` says what to do with one of them."""
    return [
        {"k": f"k{key}", "n": number, "do": special.get(f"k{key}_{number}")}
        for number in range(1, count + 1)
        for key in range(keys)
    ]


IN_ORDER = {f"k{key}": list(range(1, 11)) for key in range(6)}


@pytest.mark.parametrize("kind", ["plain", "dapr"])
def test_an_application_for_dapr_gets_events_in_key_order_with_retry_and_drop_honoured(stage, kind):
    """With the Dapr SDK itself, and with its routes and answers written by hand."""
    sidecar = stage.sidecar()
    stage.until(lambda: stage.said("application_away"))
    stage.application(kind)
    # The second to come; the queues are there when the member has begun.
    stage.until(lambda: stage.said("active") >= 2)
    stage.publish(messages(k1_3="retry twice", k2_4="drop"))
    stage.until(lambda: sum(map(len, stage.ended().values())) == 59)
    assert stage.ended() == {**IN_ORDER, "k2": [1, 2, 3, 5, 6, 7, 8, 9, 10]}
    assert [step["attempt"] for step in stage.began("k1", 3)] == ["1", "2", "3"]
    assert len(stage.began("k2", 4)) == 1
    sidecar.send_signal(signal.SIGTERM)
    assert sidecar.wait(PATIENCE_S) == 0
    assert stage.said("event_dropped") == 1
    assert stage.said("handling_failed") == 2


def test_an_application_that_is_killed_in_the_middle_of_an_event_gets_it_again_and_all_others_in_order(stage):
    application = stage.application()
    sidecar = stage.sidecar()
    stage.until(lambda: stage.said("active") >= 2)
    stage.publish(messages(k1_3="hang once"))
    stage.until(lambda: stage.began("k1", 3))
    application.kill()
    application.wait(PATIENCE_S)
    stage.application()
    stage.until(lambda: {key: list(dict.fromkeys(numbers)) for key, numbers in stage.ended().items()} == IN_ORDER)
    assert [step["attempt"] for step in stage.began("k1", 3)] == ["1", "2"]
    assert stage.ended()["k1"] == IN_ORDER["k1"]
    sidecar.send_signal(signal.SIGTERM)
    assert sidecar.wait(PATIENCE_S) == 0


def test_what_a_killed_sidecar_had_given_out_comes_again_flagged_from_the_next_one(stage):
    stage.application()
    first = stage.sidecar()
    stage.until(lambda: stage.said("active") >= 2)
    stage.publish(messages(k1_3="hang once"))
    stage.until(lambda: stage.began("k1", 3))
    first.kill()
    first.wait(PATIENCE_S)
    second = stage.sidecar()
    stage.until(lambda: {key: list(dict.fromkeys(numbers)) for key, numbers in stage.ended().items()} == IN_ORDER)
    assert [step["redelivered"] for step in stage.began("k1", 3)] == ["false", "true"]
    # What was handled and not yet settled may come once more, flagged: from somewhere before the end of its key on.
    assert all(sum(after <= before for before, after in pairwise(numbers)) <= 1 for numbers in stage.ended().values())
    seen = set()
    for step in stage.steps():
        if step["step"] == "end":
            assert step["redelivered"] == "true" or (step["key"], step["n"]) not in seen
            seen.add((step["key"], step["n"]))
    second.send_signal(signal.SIGTERM)
    assert second.wait(PATIENCE_S) == 0


def test_an_application_is_told_the_trace_context_of_the_vendors_integration(stage):
    """Without spans of ours, and without the properties of the W3C."""
    stage.application()
    sidecar = stage.sidecar()
    stage.until(lambda: stage.said("active") >= 2)
    client = ForeignClient(stage.broker)
    client.service.connect()
    order = client.message((b"\xc1" * 16, b"\xc2" * 8, True, None), None, {"JMSXGroupID": "k"}, b'{"k": "k", "n": 1}')
    client.publish(f"{stage.prefix}/0/orders/new", order)
    client.service.disconnect()
    (step,) = stage.until(lambda: stage.began("k", 1))
    assert step["traceparent"] == f"00-{'c1' * 16}-{'c2' * 8}-01"
    sidecar.send_signal(signal.SIGTERM)
    assert sidecar.wait(PATIENCE_S) == 0
