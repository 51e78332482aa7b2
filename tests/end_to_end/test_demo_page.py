"""`lbg demo --page`: the story with its live page."""

import http.client
import json
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.test_demo import BOUND_S, demo_command, demo_environment, processes_of_session, wait_until_gone
from tests.processes import running
from tests.warm import WarmLbg

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]


def test_the_page_is_there_from_the_beginning_and_ends_with_the_demo_whose_logs_stay(tmp_path: Path) -> None:
    # Its own session: SIGINT goes to the demo alone, as `kill -INT` would, and not to its children.
    with running(
        demo_command("--json", "--page"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=demo_environment(tmp_path), start_new_session=True,
    ) as process:  # fmt: skip
        while not (line := process.stderr.readline()).startswith("the page: "):
            assert line, "the demo ended by itself"
        with closing(http.client.HTTPConnection(urlsplit(line.split()[-1]).netloc, timeout=BOUND_S)) as connection:
            connection.request("GET", "/v1/feed")
            feed = connection.getresponse()
            members: dict[str, list[object]] = {}
            owners: dict[str, object] = {}
            rates: set[str] = set()
            # Queues have been handled that have no owner in this moment: they are on their way to the second member.
            while not (len(members) == 2 and len(rates) == 8 and None not in owners.values()):
                line = feed.readline()
                assert line, "the feed ended"
                if line.startswith(b"data: "):
                    told = json.loads(line.removeprefix(b"data: "))
                    members |= told["members"]
                    owners |= {index: row[0] for index, row in told["queues"].items()}
                    rates |= {index for index, row in told["queues"].items() if row[6]}
            assert sorted(row[0] for row in members.values()) == ["member-0", "member-1"]
            children = processes_of_session(process.pid) - {process.pid}
            # A broker, a publisher and two members.
            assert len(children) >= 4
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=BOUND_S)
            assert process.returncode == 130
            assert "journals and logs: " in told
            assert "Traceback" not in told
        wait_until_gone(children)


def test_a_page_needs_members_that_talk(lbg: WarmLbg, tmp_path: Path) -> None:
    done = lbg(tmp_path, "demo", "--page", "--rebind-mode", "cycle")
    told = "given with --rebind-mode cycle; expected --rebind-mode cooperative: members of a cycle do not talk"
    assert (done.returncode, done.stderr) == (2, f"lbg: --page: {told}\n")
