"""`lbg validate --live DIRECTORY`: what it shows on a terminal, and how it sums a standing up."""

import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from io import StringIO
from os import terminal_size

import pytest

from lbg_runtime.cli.running_verdict import Tell, follow
from lbg_runtime.cli.standing import as_line
from lbg_runtime.model.errors import UserError
from lbg_runtime.validator.findings import NOTHING_YET, Finding, Law

CLEAN = replace(NOTHING_YET, published=9, handled_first=7, on_the_way=2)
BROKEN = replace(CLEAN, counts={**CLEAN.counts, Law.ORDER: 1})


class Terminal(StringIO):
    """Standard output and standard error of one terminal."""

    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        """What is left to be seen; no row is as long as the terminal is wide."""
        return [row.rpartition("\r\x1b[K")[2] for row in self.getvalue().split("\n")]


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """No fixture, as pytest takes the streams back before a test begins."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: terminal_size((40, 25)))
    return terminal


def test_on_a_terminal_a_finding_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    looks = iter([(CLEAN, ()), (BROKEN, (Finding(Law.ORDER, "2 came before 1", ()),))])

    def look(tell: Tell) -> bool:
        for told in looks:
            tell(*told)
        return False

    assert follow(look, 0, as_json=False) == 1
    progress = as_line(BROKEN)[:39]
    assert terminal.rows() == ["order: 2 came before 1", progress, as_line(BROKEN), ""]


def test_on_a_terminal_an_error_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)

    def look(tell: Tell) -> bool:
        tell(CLEAN, ())
        raise UserError("folder", "Permission denied", "a folder that can be read")

    with pytest.raises(UserError):
        follow(look, None, as_json=False)
    assert terminal.rows()[-1] == ""


@pytest.mark.parametrize("has_more", [False, True])
def test_a_signal_ends_it_with_how_the_run_stands(has_more: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def look(tell: Tell) -> bool:
        tell(CLEAN, ())
        os.kill(os.getpid(), signal.SIGTERM)
        return has_more

    assert follow(look, None, as_json=True) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["handled_first"] == 7
    assert told.err == ""


def test_a_standing_says_what_there_is_of_each_kind() -> None:
    assert as_line(CLEAN) == "valid so far: handled 7, on the way 2, duplicates 0, not judged yet 0"
    numbers = replace(BROKEN, overtaken=1, duplicates=2, doubtful=3, waiting=4, late=5, unnumbered=6)
    standing = replace(numbers, reasons=("a file is torn",), weak=frozenset({Law.ORDER}))
    assert as_line(standing) == (
        "unknown: handled 7, on the way 2, duplicates 2, not judged yet 4, order 1 (not proven),"
        " passed over 1 (lost, or out of order), too late to judge 5, doubtful 3,"
        " without publisher, key or number 6, not provable: a file is torn"
    )
