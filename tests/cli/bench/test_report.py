"""The common form of all benches: what is in the object, when a goal is met, and the exit code."""

import json
import re

import pytest
import typer

from lbg_runtime.cli.bench.report import (
    Better,
    Ratio,
    Report,
    Row,
    finish,
    short,
    spread,
    within_rounds,
)
from lbg_runtime.cli.quantile import quantile


def made(*wrong: str) -> Report:
    return Report(
        "sample",
        3,
        [Row("ours", "messages/s", [3.0, 1.0, 2.0], "7 keys"), Row("peer", "messages/s", [0.5])],
        [
            Ratio("ours / peer", [12.0, 8.0, 10.0], "7 keys", goal=10.0),
            Ratio("cost", [1.5], better=Better.LESS, goal=1.25),
            Ratio("free", [1.0]),
        ],
        {"messages": 5},
        {"extra": [1], "steps_taken": {"kill": 2, "cut": 1}, "verdict": "valid", "nested": {"a": {"b": 1}}},
        wrong,
    )


def test_a_spread_is_of_median_lowest_and_highest() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "lowest": 1.0, "highest": 3.0}


@pytest.mark.parametrize(("value", "expected"), [(123_456.7, 123_457), (12.3456, 12.35), (0.123456, 0.1235), (0, 0)])
def test_a_figure_has_the_digits_that_mean_something(value: float, expected: float) -> None:
    assert short(value) == expected


def test_a_quantile_is_of_the_nearest_rank() -> None:
    assert [quantile(range(1, 101), part) for part in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert quantile([4.0], 0.5) == 4.0
    assert quantile([5, 1, 3, 4], 0.5) == 3


def test_ratios_are_taken_round_by_round() -> None:
    assert within_rounds([10.0, 30.0], [5.0, 10.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        within_rounds([1.0, 2.0], [1.0])


def test_the_object_has_always_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    finish(made(), json=True)
    told = json.loads(capsys.readouterr().out)
    assert list(told) == [
        "name", "date", "machine", "rounds", "settings", "rows", "ratios", "details", "right", "wrong",
    ]  # fmt: skip
    assert set(told["machine"]) == {"processor", "cores", "load", "python", "client"}
    assert (told["name"], told["rounds"], told["right"], told["wrong"]) == ("sample", 3, True, [])
    assert told["rows"][0] == {
        "case": "7 keys", "arm": "ours", "unit": "messages/s", "median": 2.0, "lowest": 1.0, "highest": 3.0,
    }  # fmt: skip
    with_goal, missed, free = told["ratios"]
    assert (with_goal["label"], free["label"]) == ("7 keys: ours / peer", "free")
    assert (with_goal["goal"], with_goal["better"], with_goal["met"]) == (10.0, "more", True)
    assert (missed["better"], missed["met"]) == ("less", False)
    assert "goal" not in free
    assert "met" not in free


def test_the_table_says_who_what_and_whether_a_goal_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    finish(made(), json=False)
    said = capsys.readouterr().out
    for part in ("ours", "messages/s", "7 keys: ours / peer", ">= 10: met", "<= 1.25: not met", "cores", "messages 5"):
        assert part in said
    assert "steps taken: kill 2, cut 1" in said
    assert "verdict: valid" in said
    assert "nested" not in said


def test_in_a_narrow_terminal_the_table_says_of_whom_and_in_what_its_figures_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures stood beside arms that had no name any more, and beside no unit."""
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "40")):
        monkeypatch.setenv(name, value)
    finish(made(), json=False)
    said = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "…" not in said
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in said.splitlines() if line[:1] == "│"]
    figures, ratios = ([row for row in rows if len(row) == columns] for columns in (6, 5))
    assert "".join(row[1] for row in figures) == "ourspeer"
    assert "".join(row[5] for row in figures) == "messages/s" * 2
    assert "".join(row[4] for row in ratios) == ">=10:met<=1.25:notmet"


def test_what_was_wrong_is_said_and_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        finish(made("two messages are missing"), json=True)
    assert left.value.exit_code == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["right"] is False
    assert "lbg bench sample: two messages are missing" in said.err
