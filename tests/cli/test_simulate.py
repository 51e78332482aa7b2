"""`lbg simulate`: a table of both modes, a replay line for a failing seed, exit codes."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from lbg_runtime.cli.main import command_line
from lbg_runtime.cli.simulate import SimulatedMode
from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.model.errors import UserError
from lbg_runtime.sim import campaign
from lbg_runtime.sim.figures import Duplicates
from lbg_runtime.sim.simulation import SimResult
from lbg_runtime.sim.story import StoryFigures
from lbg_runtime.sim.violation import Violation

app = command_line()

STORY = StoryFigures(3_500, 4, 0, (52, 55), (2,), 3, Duplicates(7, 0, 0), ())


@pytest.fixture(autouse=True)
def _quick_stories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "tell_story", lambda *_: STORY)


def lbg_simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_both_modes_stand_side_by_side() -> None:
    result = lbg_simulate("--seeds", "2")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["cooperative", "cycle"]
    rows = {line[:52].strip(): line[52:].split() for line in lines[1:]}
    assert rows["seeds failed"] == ["0", "0"]
    assert rows["laws broken"] == ["none", "none"]
    assert rows["time until a joiner owns its share, median / p95"] == ["3500", "/", "3500", "ms"] * 2


def test_json_is_one_object_with_the_figures_of_each_mode() -> None:
    result = lbg_simulate("--seeds", "2", "--rebind-mode", "cycle", "--members", "3", "--queues", "4", "--json")
    [figures] = json.loads(result.stdout)["modes"]
    assert (figures["mode"], figures["members"], figures["queues"], figures["seeds"]) == ("cycle", 3, 4, 2)
    assert (figures["move_pause_p99_ms"], figures["duplicates_per_crash"]) == (55, 7.0)
    assert (figures["seeds_failed"], figures["failures"]) == (0, [])


def test_a_seed_that_is_no_number_in_json_is_refused() -> None:
    replay = ("--seeds", "1", "--rebind-mode", "cycle", "--json")
    assert lbg_simulate("--first", str(10**26), *replay, "--history").exit_code == 2
    assert json.loads(lbg_simulate("--first", str(10**15), *replay).stdout)["modes"]


def test_a_failing_seed_comes_with_one_line_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_with_a_fault(scope: campaign.Scope, seed: int, numbers=None, parts=None) -> SimResult:  # type: ignore[no-untyped-def]
        result = run_seed(scope, seed, numbers, parts)
        struck = any(fault.number == 2 for fault in result.plan)
        return replace(result, violations=(Violation("some_law", 5, "a story"),) if struck else ())

    run_seed = campaign.run_seed
    monkeypatch.setattr(campaign, "run_seed", breaks_with_a_fault)
    result = lbg_simulate("--seeds", "1", "--first", "155", "--rebind-mode", "cooperative", "--members", "3")
    assert result.exit_code == 1
    [line] = [line for line in result.stdout.splitlines() if line.startswith("seed 155 ")]
    assert "breaks some_law, faults needed: 2 " in line
    command = "lbg simulate --rebind-mode cooperative --first 155 --seeds 1 --members 3 --faults '2'"
    assert line.endswith(command)
    replay = lbg_simulate(*command.replace("'", "").split()[2:])
    assert replay.exit_code == 1
    assert "5 ms, some_law: a story" in replay.stdout


def test_a_replay_shows_faults_and_verdict() -> None:
    result = lbg_simulate("--seeds", "1", "--first", "3", "--rebind-mode", "cooperative", "--history")
    assert result.exit_code == 0
    assert "LifeStarted(" in result.stdout
    assert result.stdout.endswith("every law holds\n")


def test_a_replay_as_json_is_one_object_too() -> None:
    arguments = ("--seeds", "1", "--first", "3", "--rebind-mode", "cooperative", "--faults", "1,0", "--json")
    result = lbg_simulate(*arguments)
    assert result.exit_code == 0
    replay = json.loads(result.stdout)
    assert (replay["mode"], replay["seed"], replay["violations"]) == ("cooperative", 3, [])
    assert [fault["number"] for fault in replay["faults"]] == [0, 1]
    assert replay["settings"]["mode"] == "cooperative"
    assert "history" not in replay
    history = json.loads(lbg_simulate(*arguments, "--history").stdout)["history"]
    assert history[0].startswith("LifeStarted(")


def test_a_seed_can_be_replayed_without_any_of_its_faults() -> None:
    result = lbg_simulate("--seeds", "1", "--first", "3", "--rebind-mode", "cooperative", "--faults", "")
    assert result.exit_code == 0
    assert "\nfault " not in result.stdout


@pytest.mark.parametrize("faults", ["999", "0,999", "-1", "0,,1", "0,", ",", "0,x"])
def test_only_faults_that_the_seed_has_can_be_replayed(faults: str) -> None:
    error = lbg_simulate("--seeds", "1", "--first", "3", "--rebind-mode", "cooperative", "--faults", faults).exception
    assert isinstance(error, UserError)
    assert str(error).startswith("--faults: ")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--seeds", "2", "--faults", "1"),
        ("--seeds", "1", "--history"),
        ("--seeds", "1", "--rebind-mode", "cycle", "--faults", "x"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...]) -> None:
    assert isinstance(lbg_simulate(*arguments).exception, UserError)


def test_the_modes_are_those_of_the_setting_and_both() -> None:
    assert [mode.value for mode in SimulatedMode] == [*(mode.value for mode in RebindMode), "both"]
    refused = lbg_simulate("--rebind-mode", "fast")
    assert refused.exit_code == 2
    assert "'cooperative', 'cycle', 'both'" in refused.stderr
