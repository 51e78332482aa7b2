"""`lbg group restripe`: what it says, and what it adds to a refusal."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lbg_runtime.cli.main import command_line
from lbg_runtime.core.restripe.records import StripePlan
from lbg_runtime.model.errors import QueueUnfit, SempUnreachable, UserError
from lbg_runtime.runtime.restripe.restriper import Progress

app = command_line()


def restripe(folder: Path, queues: int, *options: str) -> Result:
    config = folder / "config.yaml"
    config.write_text("group: {name: orders, hash_prefix: h, hash_count: 8, queue_count: 4}")
    return CliRunner().invoke(app, ["group", "restripe", "--queues", str(queues), "--config", str(config), *options])


def has_ended(monkeypatch: pytest.MonkeyPatch, error: BaseException, *, has_begun: bool) -> None:
    """Have the re-striping end by this error, after it has told of its first step or before."""

    async def run(settings: object, queues: int, tell: Callable[[Progress], None]) -> None:
        if has_begun:
            tell(Progress(StripePlan(1, 4, queues, "s"), 1, 3, ""))
        raise error

    monkeypatch.setattr("lbg_runtime.cli.group.restripe._restripe", run)


@pytest.mark.parametrize(
    ("queue", "kind", "more"),
    [
        ("orders/3", "setting", "; `lbg group plan` shows what differs from the settings, `lbg group apply` mends it"),
        ("orders/4", "setting", ""),
        ("orders/3", "limit", ""),
    ],
)
def test_a_refused_queue_is_sought_in_the_plan_only_if_that_looks_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: str, kind: str, more: str
) -> None:
    async def refuse(*_: object) -> None:
        raise QueueUnfit(queue, "less", "more", is_limit=kind == "limit")

    monkeypatch.setattr("lbg_runtime.cli.group.restripe._restripe", refuse)
    result = restripe(tmp_path, 6)
    said = f"lbg: queue {queue} has less; expected more{more}\n"
    assert (result.exit_code, result.stderr) == (1, said)


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (None, "there is nothing to do"),
        (Progress(StripePlan(1, 4, 4, "s"), 0, 0, ""), "members that went by another number know it now"),
    ],
    ids=["nothing", "reminded"],
)
def test_a_run_that_moves_nothing_says_what_it_has_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: Progress | None, said: str
) -> None:
    async def run(*_: object) -> Progress | None:
        return done

    monkeypatch.setattr("lbg_runtime.cli.group.restripe._restripe", run)
    result = restripe(tmp_path, 4)
    assert (result.exit_code, result.stdout) == (0, f"orders has 4 queues: {said}\n")


@pytest.fixture
def moves_three_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(settings: object, queues: int, tell: Callable[[Progress], None]) -> Progress:
        plan = StripePlan(1, 4, queues, "s")
        for moved, waiting_for in ((1, "the plan"), (1, "the plan"), (1, ""), (3, "")):
            tell(Progress(plan, moved, 3, waiting_for))
        return Progress(plan, 3, 3, "")

    monkeypatch.setattr("lbg_runtime.cli.group.restripe._restripe", run)


@pytest.mark.usefixtures("moves_three_shards")
def test_what_has_moved_is_told_once_and_at_the_end_what_is_to_be_set(tmp_path: Path) -> None:
    result = restripe(tmp_path, 6)
    assert [line.partition(" s  ")[2] for line in result.stderr.splitlines()] == [
        "1 of 3 shards moved, waiting for the plan",
        "1 of 3 shards moved",
        "3 of 3 shards moved",
    ]
    done, to_set = result.stdout.splitlines()
    assert done.startswith("orders has 6 queues: 3 shards moved in ")
    assert to_set == "now set group.queue_count to 6 in the settings, for members that start from now on"
    assert result.exit_code == 0


@pytest.mark.usefixtures("moves_three_shards")
def test_as_json_it_is_one_object(tmp_path: Path) -> None:
    told = json.loads(restripe(tmp_path, 6, "--json").stdout)
    assert told.pop("seconds") >= 0
    assert told == {"group": "orders", "from": 4, "to": 6, "moved": 3}


@pytest.mark.parametrize("queues", [0, 9])
def test_a_group_has_a_queue_and_no_more_than_it_has_shards(tmp_path: Path, queues: int) -> None:
    result = restripe(tmp_path, queues)
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == f"--queues: {queues}; expected 1 to 8, which is the number of shards"


@pytest.mark.parametrize("has_begun", [False, True])
def test_only_what_has_begun_is_to_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    """Whoever had a wrong password was told to run it again."""

    has_ended(monkeypatch, SempUnreachable("http://b", "Connection refused"), has_begun=has_begun)
    result = restripe(tmp_path, 6)
    assert result.exit_code == 1
    assert result.stderr.endswith("; run the same command again to continue\n") is has_begun


@pytest.mark.parametrize("has_begun", [False, True])
def test_who_interrupts_a_re_striping_that_has_begun_is_told_that_it_is_to_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    """It said nothing, and left a shard that waits."""

    has_ended(monkeypatch, KeyboardInterrupt(), has_begun=has_begun)
    result = restripe(tmp_path, 6)
    said = "lbg: interrupted, and a shard may wait until the same command has ended: run it again to continue"
    assert result.stderr.splitlines()[1:] == ([said] if has_begun else [])
    assert result.exit_code == 130
