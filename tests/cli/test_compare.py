"""`lbg compare`: what each pattern is known for shows, and the counts are right."""

import asyncio
from dataclasses import replace

import orjson
import pytest
import structlog
from typer.testing import CliRunner

from lbg_runtime.cli.comparison.patterns import PATTERNS
from lbg_runtime.cli.comparison.play import PatternStuck, Stream, play
from lbg_runtime.cli.comparison.stages import MemoryStage, open_stage
from lbg_runtime.cli.main import command_line

app = command_line()

ORDERED = ("exclusive queues", "partitioned queue", "message groups", "sticky shares")
STREAM = Stream(member_count=3, keys=20, rate=400, seconds=2, work_ms=2)


@pytest.fixture(scope="module")
def answer():
    """Of the command, in memory and virtual time."""
    result = CliRunner().invoke(
        app, ["compare", "--memory", "--duration", "1s", "--keys", "20", "--rate", "200", "--json"]
    )
    assert result.exit_code == 0, result.output
    return orjson.loads(result.stdout)


def test_every_pattern_handles_the_same_stream_and_loses_nothing(answer):
    patterns = answer["patterns"]
    assert set(patterns) == {"round robin", *ORDERED}
    assert {figures["published"] for figures in patterns.values()} == {3 * 200}
    assert all(figures["lost"] == 0 for name, figures in patterns.items() if name != "sticky shares")


def test_round_robin_keeps_no_order_and_no_key(answer):
    figures = answer["patterns"]["round robin"]
    assert figures["order_errors"] > 100
    assert figures["keys_per_member"] == 20


@pytest.mark.parametrize("name", ORDERED)
def test_the_others_keep_the_order_and_the_keys(answer, name):
    figures = answer["patterns"][name]
    assert (figures["order_errors"], figures["overlaps"], figures["steady_owner_changes"]) == (0, 0, 0)
    assert figures["keys_per_member"] < 10


def test_a_partitioned_queue_waits_for_its_rebalance_delay_after_a_crash(answer):
    assert answer["patterns"]["partitioned queue"]["crash_pause_ms"] > 500
    assert answer["patterns"]["exclusive queues"]["crash_pause_ms"] < 500


def test_the_table_has_a_line_for_each_pattern():
    result = CliRunner().invoke(app, ["compare", "--memory", "--duration", "1s", "--keys", "4", "--rate", "20"])
    heading, *lines = result.stdout.splitlines()
    assert heading.startswith("pattern")
    assert [line.split("  ")[0] for line in lines] == [pattern.name for pattern in PATTERNS]


async def test_a_pattern_that_does_not_get_going_is_named(monkeypatch):
    monkeypatch.setattr("lbg_runtime.cli.comparison.play.BEGIN_TIMEOUT_S", 1.0)
    (pattern,) = (pattern for pattern in PATTERNS if pattern.name == "round robin")
    stage = MemoryStage()
    create = stage.create_queue
    stage.create_queue = lambda queue, subscriptions, settings: create(queue, [], settings)
    with pytest.raises(PatternStuck, match="round robin: the start of the members took too long"):
        await play(pattern, stage, STREAM)


async def test_a_run_that_is_cut_short_leaves_nobody_who_publishes():
    """Whoever interrupted it read a traceback: that its publisher was closed."""
    (known,) = (pattern for pattern in PATTERNS if pattern.name == "round robin")
    made = []

    def make(name, stage, watch):
        if len(made) == STREAM.member_count:
            raise PatternStuck(known.name, "who joins")
        made.append(name)
        return known.make_member(name, stage, watch)

    before = asyncio.all_tasks()
    with pytest.raises(PatternStuck, match="who joins"):
        await play(replace(known, make_member=make), MemoryStage(), replace(STREAM, seconds=0.2))
    assert asyncio.all_tasks() == before


def test_a_pattern_that_is_stuck_is_told_in_one_line(monkeypatch):
    """The line was lost among one for each message that was never confirmed."""

    async def stuck(pattern, stage, stream):
        structlog.get_logger().error("publish_unknown")
        raise PatternStuck(pattern.name, "the end of the stream")

    monkeypatch.setattr("lbg_runtime.cli.comparison.play.play", stuck)
    result = CliRunner().invoke(app, ["compare", "--memory"])
    assert isinstance(result.exception, PatternStuck)
    assert result.stderr == "compare: round robin\n"


async def test_a_stream_may_have_more_work_than_its_members_can_do_in_time():
    for pattern in PATTERNS:
        figures = await play(pattern, MemoryStage(), Stream(member_count=2, keys=8, rate=40, seconds=1, work_ms=1_000))
        assert figures.published == 120, pattern.name
        assert not (figures.lost and pattern.keeps_messages), pattern.name


@pytest.mark.real_time
async def test_a_pattern_is_played_with_the_official_client():
    (pattern,) = (pattern for pattern in PATTERNS if pattern.name == "message groups")
    async with open_stage(in_memory=False) as stage:
        figures = await play(pattern, stage, Stream(member_count=2, keys=8, rate=200, seconds=1, work_ms=1))
    assert (figures.published, figures.lost, figures.order_errors) == (600, 0, 0)
