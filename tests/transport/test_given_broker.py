"""What the conformance suite leaves on a broker that somebody named."""

import re
import subprocess
import sys

import httpx
import pytest

from lbg_runtime.testing.conformance_queues import MADE_BY_MEMBERS
from tests.processes import running
from tests.transport.given_broker import Given, GivenBrokerHarness

pytestmark = pytest.mark.real_time

ADMINISTRATOR = ("admin", "admin")


async def test_what_one_test_leaves_is_not_there_for_the_next_and_nothing_stays_behind():
    command = [sys.executable, "-m", "lbg_runtime.cli", "broker", "--smf", "127.0.0.1:0", "--semp", "127.0.0.1:0"]
    with running(command, stderr=subprocess.PIPE, text=True) as broker:
        line = next(line for line in broker.stderr if "lbg broker ready" in line)
        smf, semp = re.findall(r"127\.0\.0\.1:(\d+)", line)
        given = Given("127.0.0.1", int(smf), f"http://127.0.0.1:{semp}", "default", ADMINISTRATOR)
        for _ in range(2):
            harness = GivenBrokerHarness(given)
            await harness.begin()
            member = harness.make_transport("member")
            await member.open()
            assert not await member.has_queue(MADE_BY_MEMBERS)
            await member.provision(MADE_BY_MEMBERS, ["made/>"])
            await harness.end()
        async with httpx.AsyncClient(auth=ADMINISTRATOR) as http:
            left = await http.get(f"{given.semp}/SEMP/v2/config/msgVpns/default/queues")
        assert left.json()["data"] == []
