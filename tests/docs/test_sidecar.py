"""The first five minutes of docs/sidecar.md go as the page says."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.addresses import OWN_HOST, own_ports
from tests.docs.pages import ROOT, blocks, indented_lines
from tests.patience import PATIENCE_S
from tests.processes import running

pytestmark = pytest.mark.real_time

PAGE = ROOT / "docs" / "sidecar.md"


def test_the_first_five_minutes(tmp_path: Path) -> None:
    shown = ("55555", "3000", "3500")
    places = {"127.0.0.1": OWN_HOST, **dict(zip(shown, map(str, own_ports(len(shown))), strict=True))}

    def here(text: str) -> str:
        return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)

    (application,) = blocks(PAGE, "python")
    settings, _ = blocks(PAGE, "yaml")
    (curl,) = (line for line in indented_lines(PAGE) if line.startswith("curl -H"))
    (tmp_path / "application.py").write_text(here(application))
    (tmp_path / "config.yaml").write_text(here(settings))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = {"cwd": tmp_path, "env": environment, "text": True}
    member = [sys.executable, "-m", "lbg_runtime.cli", "run"]
    with (
        running([sys.executable, "application.py"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options) as it,
        running(member, stderr=subprocess.DEVNULL, **options),
    ):
        wait_for_answer(here("http://127.0.0.1:3500/v1/sidecar"))
        url, (data,) = here(curl).split()[-1], re.findall(r"-d '(.+?)'", curl)
        headers = dict(re.findall(r"-H '(.+?): (.+?)'", curl))
        httpx.post(url, content=data, headers=headers, timeout=PATIENCE_S, trust_env=False).raise_for_status()
        assert it.stdout.readline() == "customer-7 {'apples': 2}\n"


def wait_for_answer(url: str) -> None:
    """Until the sidecar listens, whatever it answers."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 10):
        try:
            httpx.get(url, trust_env=False)
        except httpx.TransportError:
            pause.wait(0.1)
        else:
            return
    raise AssertionError(f"nobody listens at {url}")
