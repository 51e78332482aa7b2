"""The compose files: what they say, and every command in them run for real, as processes instead of containers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from lbg_runtime.config.load import parse_settings
from tests.docker.files import DOCKER, LBG, PYTHON, ROOT, compose, in_exec_form, instructions, manifests, seconds
from tests.docker.test_image import LEAVES_WITHIN_S
from tests.patience import PATIENCE_S
from tests.processes import running

FILES = {
    "PubSub+": ("compose.yaml",),
    "development": ("compose.yaml", "compose.dev.yaml"),
    "broker": ("compose.dev.yaml",),
}
SETTINGS = parse_settings(yaml.safe_load((DOCKER / "config.yaml").read_text()), "docker/config.yaml", {})
MEMBERS = 3
STARTED = 2
"""Members that are run: a third one does what they do."""

all_files = pytest.mark.parametrize("names", FILES.values(), ids=FILES)


def services(names: tuple[str, ...]) -> Mapping[str, dict[str, Any]]:
    found = compose(*names)["services"]
    assert isinstance(found, dict)
    return found


# -- what they say


@all_files
def test_nothing_has_more_rights_than_it_needs(names) -> None:
    for name, service in services(names).items():
        assert re.fullmatch(r"(solace/)?[a-z-]+(:\w+)?", service["image"]), "a short name"
        assert not {"privileged", "network_mode", "pid", "cap_add", "user", "entrypoint"} & set(service), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        if service["image"] == "lbg-runtime":
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).samefile(
                DOCKER / "Dockerfile"
            )
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DOCKER / source).exists() if source.startswith(".") else source in compose(*names)["volumes"]


@all_files
def test_secrets_are_those_of_tests_and_can_be_given(names) -> None:
    text = "".join((DOCKER / name).read_text() for name in names)
    given = re.findall(r"\w*(?:password|PASSWORD|TOKEN|token)\w*: *(\S+)", text)
    assert set(given) <= {
        "${LBG_MEMBER_PASSWORD:-for-tests-only}",
        "${LBG_PUBLISHER_PASSWORD:-for-tests-only}",
        "${LBG_CONDUCTOR_PASSWORD:-for-tests-only}",
        "${LBG_SEMP_PASSWORD:-admin}",
        "${LBG_STATUS_TOKEN:-for-tests-only}",
    }
    # The administrator's is for those who administer.
    assert {name for name, one in services(names).items() if "LBG_SEMP_PASSWORD" in one.get("environment", {})} <= {
        "group",
        "page",
    }


@all_files
def test_who_waits_for_somebody_waits_for_something_that_comes(names) -> None:
    for service in services(names).values():
        for other, on in service.get("depends_on", {}).items():
            awaited = services(names)[other]
            if on["condition"] == "service_healthy":
                assert "test" in awaited["healthcheck"]
            else:
                assert on["condition"] == "service_completed_successfully"
                assert "restart" not in awaited


def test_there_is_time_to_leave_in_order() -> None:
    group = services(FILES["PubSub+"])
    assert seconds(group["member"]["stop_grace_period"]) > SETTINGS.rebind.drain_timeout_ms / 1_000 + LEAVES_WITHIN_S
    assert group["member"]["deploy"]["replicas"] == MEMBERS


def test_the_development_broker_takes_the_place_of_the_other() -> None:
    alone, instead = services(FILES["broker"])["broker"], services(FILES["development"])["broker"]
    assert instead["image"] == alone["image"] == "lbg-runtime"
    assert instead["command"] == alone["command"]
    assert instead["ports"] == alone["ports"] == services(FILES["PubSub+"])["broker"]["ports"]
    # Where the settings look for it.
    assert SETTINGS.connection.host == ("tcp://broker:55555",)
    assert SETTINGS.semp is not None
    assert SETTINGS.semp.url == "http://broker:8080"
    assert "0.0.0.0:55555" in alone["command"]
    assert "0.0.0.0:8080" in alone["command"]


# -- what they do


class Machine:
    """Runs the services as processes: the same commands, with addresses of this machine."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self.folder = folder
        self.addresses: dict[str, str] = {}
        self._ending = ending
        self._services = services(FILES["development"])
        shutil.copytree(ROOT / "handlers", folder / "handlers", ignore=shutil.ignore_patterns("__pycache__", "test_*"))
        # Several members on one machine: each on a port of its own.
        settings = (DOCKER / "config.yaml").read_text()
        assert settings.count("127.0.0.1:9280") == 1
        (folder / "config.yaml").write_text(settings.replace("127.0.0.1:9280", "127.0.0.1:0"))
        # The image has the base dependencies and no others.
        (folder / "sitecustomize.py").write_text(WITHOUT_EXTRAS)

    def command(self, service: str) -> list[str]:
        entrypoint = in_exec_form(next(rest for word, rest in instructions() if word == "ENTRYPOINT"))
        assert entrypoint == [LBG]
        given = [re.sub(r"^0\.0\.0\.0:\d+$", "127.0.0.1:0", word) for word in self._services[service]["command"]]
        return [sys.executable, "-m", "lbg_runtime.cli", *given]

    def environment(self, service: str) -> dict[str, str]:
        return {
            **os.environ,
            **self.addresses,
            **self._services[service].get("environment", {}),
            "PYTHONPATH": os.pathsep.join((str(self.folder), str(ROOT))),
        }

    def start(self, service: str) -> "Service":
        process = self._ending.enter_context(
            running(
                self.command(service), cwd=self.folder, env=self.environment(service), stderr=subprocess.PIPE, text=True
            )
        )
        return Service(process)

    def run(self, service: str) -> None:
        subprocess.run(
            self.command(service), cwd=self.folder, env=self.environment(service), timeout=PATIENCE_S, check=True,
            capture_output=True,
        )  # fmt: skip

    def healthy(self, words: list[str], **replaced: str) -> bool:
        """What the health check of a service says, its addresses replaced by those here."""
        assert words[0] == PYTHON
        for old, new in replaced.items():
            (place,) = [place for place, word in enumerate(words) if old in word]
            words = [*words[:place], words[place].replace(old, new), *words[place + 1 :]]
        return (
            subprocess.run(
                [sys.executable, *words[1:]], timeout=PATIENCE_S, check=False, capture_output=True
            ).returncode
            == 0
        )


class Service:
    """A process whose log is read all the time."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self.lines.append("")
            self._news.notify_all()

    def until(self, sign: str, times: int = 1) -> str:
        with self._news:
            assert self._news.wait_for(lambda: self._found(sign) >= times or self.lines[-1:] == [""], PATIENCE_S), sign
            assert self._found(sign) >= times, "".join(self.lines)
            return next(line for line in self.lines if sign in line)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def _found(self, sign: str) -> int:
        return sum(sign in line for line in self.lines)


WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyarrow", "numpy", "psycopg", "opentelemetry", "pytest", "hypothesis"}:
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)

sys.meta_path.insert(0, Missing())
"""


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    with ExitStack() as ending:
        yield Machine(folder, ending)


@pytest.mark.real_time
@pytest.mark.end_to_end
@pytest.mark.timeout(300)
def test_the_whole_group_runs_is_healthy_is_watched_and_leaves_in_order(tmp_path: Path) -> None:
    image_health = in_exec_form(
        next(rest for word, rest in instructions() if word == "HEALTHCHECK").partition("CMD ")[2]
    )
    token = services(FILES["development"])["page"]["environment"]["LBG_STATUS_TOKEN"]
    shown = {"Authorization": f"Bearer {token}"}
    (scaled,) = [each for each in manifests() if each["kind"] == "ScaledObject"]
    (trigger,) = scaled["spec"]["triggers"]
    with machine(tmp_path) as here:
        broker = here.start("broker")
        smf, semp = re.findall(r"127\.0\.0\.1:\d+", broker.until("lbg broker ready: "))
        here.addresses |= {"LBG_HOST": f"tcp://{smf}", "LBG_SEMP_URL": f"http://{semp}"}
        health = {
            name: one["healthcheck"].get("test", [])[1:]
            for name, one in compose("compose.dev.yaml")["services"].items()
        }
        assert here.healthy(health["broker"], **{"55555": smf.rpartition(":")[2]})
        here.run("group")
        members = [here.start("member") for _ in range(STARTED)]
        for member in members:
            address = json.loads(member.until('"status_served"'))["address"]
            assert here.healthy(image_health, **{"127.0.0.1:9280": address})
        publisher, page = here.start("publisher"), here.start("page")
        for member in members:
            member.until('"order_handled"', times=5)
        url = page.until("lbg dashboard: ").split()[-1]
        page_health = services(FILES["development"])["page"]["healthcheck"]["test"][1:]
        assert here.healthy(page_health, **{"http://127.0.0.1:9281/": url})
        path = trigger["metadata"]["url"].partition(":9281")[2]
        # No number, until it is known: asked for whenever the page has news. Bounded by the test's own time limit.
        with (
            httpx.Client(base_url=url, headers=shown, timeout=PATIENCE_S, trust_env=False) as client,
            client.stream("GET", "/v1/feed") as feed,
        ):
            answers = (client.get(path) for line in feed.iter_lines() if line)
            told = next(answer.json() for answer in answers if answer.status_code != 503)
        assert isinstance(told[trigger["metadata"]["valueLocation"]], int)
        assert told["max_members"] == SETTINGS.group.queue_count
        assert publisher.stop() == 0
        assert [member.stop() for member in members] == [0] * STARTED
        assert all('"left_behind": 0' in member.until('"member_left"') for member in members)
        assert (page.stop(), broker.stop()) == (0, 0)
    log = "".join(line for service in (broker, *members, publisher, page) for line in service.lines)
    assert "Traceback" not in log
    assert "for-tests-only" not in log, "secrets have no place in a log"
