"""How ratios are compared with kept ones, what the file holds, and one bench run through the whole."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer

from lbg_runtime.cli.bench import everything
from lbg_runtime.cli.bench.commands import bench
from lbg_runtime.cli.bench.everything import (
    BENCHES,
    Short,
    Standing,
    all_,
    chosen_benches,
    compare,
    has_fallen,
    kept_object,
    read_kept,
)
from lbg_runtime.model.errors import UserError


def ratio(median: float, better: str = "more", **more: Any) -> dict[str, Any]:
    return {"label": "r", "median": median, "lowest": median, "highest": median, "better": better, **more}


def kept(**medians: float) -> dict[str, Any]:
    return {"date": "d", "machine": {}, "ratios": {name: {"median": value} for name, value in medians.items()}}


def test_a_ratio_falls_by_more_than_its_share_or_not() -> None:
    assert not has_fallen(ratio(7.01), kept=10.0, share=0.3)
    assert has_fallen(ratio(6.99), kept=10.0, share=0.3)
    assert not has_fallen(ratio(100.0), kept=10.0, share=0.3)


def test_where_less_is_better_more_has_fallen() -> None:
    assert not has_fallen(ratio(1.29, "less"), kept=1.0, share=0.3)
    assert has_fallen(ratio(1.31, "less"), kept=1.0, share=0.3)
    assert not has_fallen(ratio(0.1, "less"), kept=1.0, share=0.3)
    assert not has_fallen(ratio(2.49, "less"), kept=1.0, share=1.5)
    assert has_fallen(ratio(2.51, "less"), kept=1.0, share=1.5)


def test_a_small_count_that_still_meets_its_goal_has_not_fallen() -> None:
    assert not has_fallen(ratio(0.02, "less", goal=0.25, met=True), kept=0.005, share=0.3)
    assert has_fallen(ratio(0.3, "less", goal=0.25, met=False), kept=0.005, share=0.3)
    # It did not meet its goal before, either.
    assert not has_fallen(ratio(0.61, "less", goal=0.25, met=False), kept=0.6, share=0.3)


def test_every_ratio_has_its_standing() -> None:
    benches = [Short("one", ""), Short("two", ""), Short("failed", "")]
    reports = {
        "one": {"ratios": [ratio(10.0), ratio(1.0, label="7 keys: r")]},
        "two": {"ratios": [ratio(1.0)]},
    }
    before = {"one": kept(r=9.0, gone=3.0), "two": kept(r=5.0), "failed": kept(r=1.0)}
    found = {(each.bench, each.ratio): each.standing for each in compare(reports, before, benches)}
    assert found == {
        ("one", "r"): Standing.AS_KEPT,
        ("one", "7 keys: r"): Standing.NEW,
        ("one", "gone"): Standing.MISSING,
        ("two", "r"): Standing.FELL,
    }


def test_what_is_written_is_read_again_and_benches_that_were_not_run_stay_with_their_date(tmp_path: Path) -> None:
    reports = {"one": {"date": "today", "machine": {"cores": 2}, "ratios": [ratio(10.0)]}}
    other = {"date": "then", "machine": {"cores": 8}, "ratios": {"x": {"median": 2.0, "lowest": 1.0, "highest": 3.0}}}
    file = tmp_path / "kept.json"
    file.write_text(json.dumps(kept_object(reports, {"one": kept(old=1.0), "other": other})))
    found = read_kept(file)
    assert found["other"] == other
    assert found["one"] == {
        "date": "today",
        "machine": {"cores": 2},
        "ratios": {"r": {"median": 10.0, "lowest": 10.0, "highest": 10.0}},
    }


@pytest.mark.parametrize(
    "text", ["", "[]", '{"ratios": {}}', '{"benches": {"one": {"ratios": {"r": {}}}}}', '{"benches": {"one": 1}}']
)
def test_a_file_that_is_something_else_is_a_users_mistake(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kept.json"
    file.write_text(text)
    with pytest.raises(UserError, match="that `lbg bench all --keep` wrote"):
        read_kept(file)
    with pytest.raises(UserError, match="No such file"):
        read_kept(tmp_path / "nowhere.json")


def test_benches_are_commands_and_can_be_chosen() -> None:
    commands = {command.name or command.callback.__name__ for command in bench.registered_commands if command.callback}
    assert {each.name for each in BENCHES} <= commands
    assert [each.name for each in chosen_benches(["receive", "dispatch"])] == ["dispatch", "receive"]
    with pytest.raises(UserError, match="--only"):
        chosen_benches(["nonsense"])


def test_the_file_of_the_repository_holds_the_benches_that_run() -> None:
    held = read_kept(Path(__file__).parents[3] / "docs" / "benchmarks.json")
    assert set(held) == {each.name for each in BENCHES}


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_bench_is_run_kept_and_found_fallen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(everything, "BENCHES", (Short("dispatch", "--messages 1000 --rounds 1 --keys 7"),))
    file = tmp_path / "kept.json"

    def run(*, keep: bool) -> tuple[int, Any]:
        with pytest.raises(typer.Exit) as left:
            all_(keep=keep, file=file, only=None, json=True)
        return left.value.exit_code, json.loads(capsys.readouterr().out)

    code, told = run(keep=True)
    assert (code, told["failed"]) == (0, [])
    written = json.loads(file.read_text())
    assert set(written["benches"]["dispatch"]) == {"date", "machine", "ratios"}
    for each in written["benches"]["dispatch"]["ratios"].values():
        each["median"] *= 1_000
    file.write_text(json.dumps(written))
    code, told = run(keep=False)
    assert code == 1
    assert {each["standing"] for each in told["compared"]} == {"fell"}


def test_what_was_kept_stays_and_what_was_measured_is_printed_if_the_file_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = {"date": "d", "machine": {}, "ratios": [ratio(7.0)]}
    monkeypatch.setattr(everything, "BENCHES", (Short("dispatch", ""),))
    monkeypatch.setattr(everything, "_run", lambda _: report)
    file = tmp_path / "kept.json"
    file.write_text(json.dumps({"benches": {"other": kept(r=1.0)}}))
    before = file.read_text()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(UserError, match=r"kept\.json: No space left on device; expected a file"):
            all_(keep=True, file=file, only=None, json=True)
    assert json.loads(capsys.readouterr().out)["reports"] == [report]
    assert (file.read_text(), list(tmp_path.iterdir())) == (before, [file])
    with pytest.raises(UserError, match="No such file or directory"):
        all_(keep=True, file=tmp_path / "nowhere" / "kept.json", only=None, json=True)
    with pytest.raises(typer.Exit):
        all_(keep=True, file=file, only=None, json=True)
    assert set(read_kept(file)) == {"dispatch", "other"}


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_bench_that_fails_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(everything, "BENCHES", (Short("dispatch", "--messages 1"),))
    with pytest.raises(typer.Exit) as left:
        all_(keep=True, file=tmp_path / "kept.json", only=None, json=False)
    assert left.value.exit_code == 1
    said = capsys.readouterr().err
    assert "lbg bench all: dispatch failed" in said
    assert f"{tmp_path / 'kept.json'} is left as it was" in said
    assert not (tmp_path / "kept.json").exists()
