"""docs/start.md as a reader follows it: its files, and every command, in the order of the page and for real."""

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.addresses import OWN_HOST, own_ports
from tests.docs.pages import DOCS, ROOT, blocks, command
from tests.patience import PATIENCE_S
from tests.processes import lines_of, running

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end, pytest.mark.timeout(300)]

PAGE = DOCS / "start.md"
LASTING = {"run": "member_started", "broker": "lbg broker ready", "dashboard": "lbg dashboard: "}
"""Commands that go on, and what they say when they are there."""


class Terminal:
    """Types in commands; those that go on have a window of their own."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self.folder = folder
        self.windows: list[Window] = []
        self._ending = ending
        (folder / "lbg").write_text(f'#!/bin/sh\nexec {sys.executable} -m lbg_runtime.cli "$@"\n')
        (folder / "lbg").chmod(0o755)
        shown = ("127.0.0.1:55555", "127.0.0.1:8080")
        self._places = {place: f"{OWN_HOST}:{port}" for place, port in zip(shown, own_ports(len(shown)), strict=True)}
        self._environment = {
            **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip

    def here(self, text: str) -> str:
        """With ports that are free on this machine."""
        for shown, free in self._places.items():
            text = text.replace(shown, free)
        return text

    def type_in(self, line: str) -> None:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self._environment[name] = value
            return
        lasting = next((LASTING[word] for word in re.findall(r"lbg (\w+)", line) if word in LASTING), None)
        if lasting is None:
            done = subprocess.run(
                ["sh", "-c", self.here(line)], cwd=self.folder, env=self._environment, timeout=PATIENCE_S,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            return
        words = ["sh", "-c", self.here(re.sub(r"\blbg ", "exec lbg ", line))]
        process = self._ending.enter_context(
            running(
                words,
                cwd=self.folder,
                env=self._environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
        self.windows.append(Window(process))
        self.windows[-1].until(lasting)

    def close(self) -> None:
        """Ctrl-C in every window, the newest first."""
        while self.windows:
            window = self.windows.pop()
            window.process.send_signal(signal.SIGINT)
            assert window.process.wait(PATIENCE_S) == 0, window.said


class Window:
    """What a command that goes on has said."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.said = ""
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in lines_of(self.process.stdout):
            with self._news:
                self.said += line
                self._news.notify_all()

    def until(self, sign: str, times: int = 1) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.said.count(sign) >= times, PATIENCE_S), (sign, self.said)


def test_following_the_page_works(tmp_path: Path) -> None:
    (code,) = blocks(PAGE, "python")
    settings, more = blocks(PAGE, "yaml")
    first, publish, why, second, status, broker, group = (
        [command(line) for line in block.splitlines()] for block in blocks(PAGE, "sh")
    )
    assert code.startswith("# shop.py\n")
    assert settings.startswith("# config.yaml\n")
    with ExitStack() as ending:
        terminal = Terminal(tmp_path, ending)
        (tmp_path / "shop.py").write_text(code)
        (tmp_path / "config.yaml").write_text(terminal.here(settings))
        for line in (*first, *publish):
            terminal.type_in(line)
        (member,) = terminal.windows
        member.until("customer-7 two apples")
        member.until('"number":', times=1_000)
        for line in (*why, *second, *status):
            terminal.type_in(line)
        terminal.close()
        for line in broker:
            terminal.type_in(line)
        (tmp_path / "config.yaml").write_text(terminal.here(settings + more))
        for line in group:
            terminal.type_in(line)
        page = terminal.windows[-1].said
        assert re.search(r"http://127\.0\.0\.1:\d+/", page)
        terminal.close()
