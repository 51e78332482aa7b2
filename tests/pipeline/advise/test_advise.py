"""Advice from the journals of a run, as object, text and page.

More than 400 lines, as all journals are made by one function.
"""

import fcntl
import json
import os
import re
import resource
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from lbg_runtime.cli.advise import _counts
from lbg_runtime.cli.main import command_line
from lbg_runtime.journal.reader import read_run
from lbg_runtime.journal.writer import RecordWriter
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.record import DispatchRecord, FlowRecord, JournalHeader, StripesRecord
from lbg_runtime.pipeline.advise.analysis import Advice, analyse
from lbg_runtime.pipeline.advise.charts import LEFT, latency, queue_bars
from lbg_runtime.pipeline.advise.report import as_page, as_text

app = command_line()

HASH_COUNT, QUEUE_COUNT = 16, 4
MS = 1_000_000


def write_journal(
    folder: Path,
    member: str,
    keys: list[str | None],
    *,
    function: HashFunction = HashFunction.CRC32,
    at_ms: int = 0,
    named: str | None = None,
    life: int = 1,
    clock_set_ms: int = 0,
    slow: str | None = None,
    records: Sequence[FlowRecord | StripesRecord] = (),
) -> None:
    """A member that handled these one after another, 10 ms each, of which 4 ms waiting; the key `slow` took a second.

    `clock_set_ms`: by how much its wall clock was set behind the first.
    """
    writer = RecordWriter(folder / f"{member}{life}.member.jsonl")
    writer.write(JournalHeader("run", "orders", "hp", HASH_COUNT, QUEUE_COUNT, named or member, life, "host", 1, 0))
    for record in records:
        writer.write(record)
    done_ms = at_ms
    for number, key in enumerate(keys, 1):
        shard = None if key is None else shard_of(function, key, HASH_COUNT)
        done_ms += 1_004 if key is not None and key == slow else 10
        wall_us = (done_ms + (clock_set_ms if number > 1 else 0)) * 1_000
        writer.write(
            DispatchRecord(
                queue=0 if shard is None else shard % QUEUE_COUNT,
                bind_epoch=1,
                shard=shard,
                key=key,
                topic="hp/0/orders",
                publisher="p",
                seq=number,
                message_id=None,
                delivery_id=number,
                redelivered=False,
                attempts=1,
                local_seq=number,
                receive_mono_ns=(done_ms - (1_004 if key is not None and key == slow else 10)) * MS,
                start_mono_ns=(done_ms - (1_000 if key is not None and key == slow else 6)) * MS,
                done_mono_ns=done_ms * MS,
                t_done=wall_us,
                t_settle=wall_us,
                outcome="accepted",
                size_bytes=1,
            )
        )
    writer.close(clean=True)


def advice_of(folder: Path, queue_counts: list[int] | None = None) -> Advice:
    return analyse(read_run(folder), str(folder), queue_counts or [2, 4, 8], [16])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """600 messages of 60 keys and a hot one with 200 more, handled by a and then by b; c handled next to nothing."""
    write_journal(tmp_path, "a", [f"key-{number % 60}" for number in range(600)])
    write_journal(tmp_path, "b", [*["hot"] * 200, None], at_ms=6_000)
    write_journal(tmp_path, "c", ["key-1"], at_ms=6_000)
    return tmp_path


def test_the_load_is_counted_by_key_shard_and_queue(run: Path) -> None:
    advice = advice_of(run)
    assert (advice.messages, advice.keys, advice.without_key) == (802, 61, 1)
    assert advice.function is HashFunction.CRC32
    assert sum(advice.queue_messages) == sum(advice.shard_messages) == 801
    first = advice.hot_keys[0]
    shard = shard_of(HashFunction.CRC32, "hot", HASH_COUNT)
    assert (first.key, first.shard, first.queue, first.messages) == ("hot", shard, shard % QUEUE_COUNT, 200)
    assert first.share == pytest.approx(200 / 801)
    assert first.busy_share == pytest.approx(200 / 801)


def test_the_queues_of_a_group_are_those_after_its_last_restriping(tmp_path: Path) -> None:
    changes = [(7, 4, 8), (9, 8, 6)]
    told = [StripesRecord(0, 1, "planned", number, old, new, None, 1, MS) for number, old, new in changes]
    write_journal(tmp_path, "a", ["x", "y"], records=told)
    assert advice_of(tmp_path).now.queue_count == advice_of(tmp_path).queue_count == 6


def test_no_more_queues_are_of_use_than_the_hottest_key_allows(run: Path) -> None:
    advice = advice_of(run)
    assert advice.useful_queues == 5
    assert all(cut.busy_queues <= 801 / 200 for cut in advice.cuts)
    assert advice.best.queue_count <= 5
    assert advice.now == next(cut for cut in advice.cuts if cut.queue_count == QUEUE_COUNT)


def test_the_hot_key_is_told_where_it_is_in_the_way(run: Path) -> None:
    text = as_text(advice_of(run))
    assert "Key 'hot' is 25.0% of the messages" in text
    assert "useful queues: 5 at most" in text


def test_a_key_with_few_messages_that_take_long_is_told_too(tmp_path: Path) -> None:
    """It was in no list: with 10 keys of which each had more messages, nothing but the skew of latencies showed it."""
    write_journal(tmp_path, "a", [*[f"key-{number % 60}" for number in range(600)], *["slow"] * 5], slow="slow")
    advice = advice_of(tmp_path)
    first, second = advice.hot_keys[:2]
    assert (first.key, first.messages) == ("slow", 5)
    assert first.busy_share == pytest.approx(5_000 / (5_000 + 3_600))
    assert second.messages == 10
    assert second.busy_share == pytest.approx(60 / 8_600)
    assert "Key 'slow' is 0.8% of the messages, and takes 58.1% of the time of all handlers" in as_text(advice)
    assert "of the time of all handlers" not in as_text(advice_of_even(tmp_path / "even"))


def advice_of_even(folder: Path) -> Advice:
    folder.mkdir()
    write_journal(folder, "a", [f"key-{number % 60}" for number in range(600)])
    return advice_of(folder)


def test_no_cut_is_recommended_that_keeps_fewer_queues_busy_than_there_are(tmp_path: Path) -> None:
    """Two queues were, as three keys of about a third each left no use for more: all three were in one of them."""
    odd = [f"key-{number}" for number in range(60) if shard_of(HashFunction.CRC32, f"key-{number}", HASH_COUNT) % 2]
    queues = {shard_of(HashFunction.CRC32, key, HASH_COUNT) % QUEUE_COUNT: key for key in odd}
    assert len(queues) == 2
    write_journal(tmp_path, "a", [*[odd[0]] * 11, *(key for key in queues.values() for _ in range(10))])
    advice = advice_of(tmp_path, [2])
    assert advice.best == advice.now
    assert advice.recommendations[0].startswith(f"Keep {QUEUE_COUNT} queues")
    [hot] = [line for line in advice.recommendations if "Split" in line]
    assert hot.startswith("No cut keeps more than 2.8 queues busy")


def test_a_page_shows_the_group_as_it_is_among_other_queue_counts(tmp_path: Path) -> None:
    write_journal(tmp_path, "a", [f"k{number}" for number in range(400)])
    advice = advice_of(tmp_path, [8, 2])
    assert [cut.queue_count for cut in advice.cuts] == [2, 4, 8]
    narrow = advice_of(tmp_path, [2])
    assert narrow.best == narrow.now
    assert len(re.findall(r"<tr class=best><td>16 shards</td><td>4</td>", as_page(narrow))) == 1


def test_idle_members_are_told(run: Path) -> None:
    advice = advice_of(run)
    assert [(each.member, each.messages, each.is_idle) for each in advice.members] == [
        ("a", 600, False),
        ("b", 201, False),
        ("c", 1, True),
    ]
    assert advice.members[0].busy == pytest.approx(0.6, rel=0.01)
    assert "Idle: c. 2 members did the work" in as_text(advice)


def test_one_that_did_all_the_work_is_one_member(tmp_path: Path) -> None:
    write_journal(tmp_path, "a", [f"k{number}" for number in range(400)])
    write_journal(tmp_path, "b", [], records=[FlowRecord(1, 1, "bound", "secondary", "", 0, 0)])
    assert "Idle: b. 1 member did the work" in as_text(advice_of(tmp_path))


def test_a_start_that_failed_is_not_taken_for_an_idle_member(run: Path) -> None:
    write_journal(run, "failed", [])
    write_journal(run, "bound", [], records=[FlowRecord(1, 1, "bound", "secondary", "", 0, 0)])
    write_journal(run, "again", [])
    write_journal(run, "again", ["key-1"], life=2, at_ms=6_000)
    advice = advice_of(run)
    told = as_text(advice)
    assert "Idle: again, bound, c. 2 members did the work" in told
    assert "Never bound to a queue: failed. Their starts failed, or they had no place." in told
    assert [each.member for each in advice.members if not each.was_bound] == ["failed"]
    assert "<td>never bound</td>" in as_page(advice)


def test_starts_that_failed_make_nobody_look_busier(run: Path) -> None:
    write_journal(run, "d", ["key-1"] * 20, at_ms=6_000)
    for number in range(20):
        write_journal(run, f"failed{number}", [])
    assert [each.member for each in advice_of(run).members if each.is_idle and each.was_bound] == ["c", "d"]


def test_the_time_line_says_who_handled_what_and_how_long_it_took(run: Path) -> None:
    timeline = advice_of(run).timeline
    assert list(timeline.members) == ["a", "b", "c"]
    assert int(timeline.messages.sum()) == 801
    hot = shard_of(HashFunction.CRC32, "hot", HASH_COUNT)
    assert set(timeline.owner[hot, -10:].tolist()) <= {1, -1}
    assert timeline.overall_ms == pytest.approx((10.0, 10.0, 10.0))


@pytest.mark.parametrize("set_ms", [3_600_000, -3_600_000])
def test_a_wall_clock_that_was_set_makes_a_run_no_longer(tmp_path: Path, set_ms: int) -> None:
    """All of it was in one slice, or in the first and the last."""
    keys: list[str | None] = [f"key-{number % 60}" for number in range(600)]
    write_journal(tmp_path, "a", keys, at_ms=7_200_000, clock_set_ms=set_ms)
    timeline = advice_of(tmp_path).timeline
    assert timeline.begin_us == 7_200_010_000
    assert timeline.slice_us * len(timeline.p50_ms) == pytest.approx(5_990_000, abs=100_000)
    assert None not in timeline.p50_ms


class Links(HTMLParser):
    """What a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag == "script":
            self.found.append(tag)


def test_the_page_needs_nothing_else_and_shows_names_as_text(tmp_path: Path) -> None:
    write_journal(tmp_path, "a", ["<b>bold</b>"] * 50)
    page = as_page(advice_of(tmp_path))
    links = Links()
    links.feed(page)
    assert links.found == []
    assert "url(" not in page
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "$" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize("trick", ["\x1b[31m", "\r\n", "\u202e", "\x9b2J"])
def test_no_terminal_obeys_a_key_or_a_member_and_no_page_does(tmp_path: Path, trick: str) -> None:
    write_journal(tmp_path, "a", [f"key{trick}{number}" for number in range(50)], named=f"m{trick}")
    told = ascii(trick)[1:-1]
    for text in (as_text(advice_of(tmp_path)), as_page(advice_of(tmp_path))):
        assert f"key{trick}" not in text
        assert f"key{told}" in text
    page = as_page(advice_of(tmp_path))
    assert f"m{trick}" not in page
    assert page.count(f"m{told}") >= 3


def test_the_page_has_its_plots(run: Path) -> None:
    page = as_page(advice_of(run))
    assert page.count("<svg") == 4
    for title in ("Who handled which shard", "Time from receipt", "Messages of each queue", "Queues that can be busy"):
        assert f'aria-label="{title}' in page
    assert "by a</title>" in page


def drawn_of(page: str) -> list[list[tuple[float, float, float, float]]]:
    """For each plot the boxes of its labels, digits being 7 wide; all of it must be within the plot."""
    found = []
    for plot in map(ElementTree.fromstring, re.findall(r"<svg .*?</svg>", page)):
        width, height = map(float, plot.attrib["viewBox"].split()[2:])
        boxes = []
        for label in plot.iter("text"):
            x, y, size = float(label.attrib["x"]), float(label.attrib["y"]), 7.0 * len(label.text or "")
            left = x - size * {"middle": 0.5, "end": 1.0}[label.attrib["text-anchor"]]
            boxes.append((left, y - 10, left + size, y))
        lines = [[float(line.attrib[name]) for name in ("x1", "y1", "x2", "y2")] for line in plot.iter("line")]
        for x1, y1, x2, y2 in [*boxes, *lines]:
            assert 0 <= x1 <= x2 <= width
            assert 0 <= min(y1, y2) <= max(y1, y2) <= height
        found.append(boxes)
    return found


@pytest.mark.parametrize(
    ("handled", "counts"),
    [(600, [1, 2, 3, 4, 15, 16]), (600, range(1, 17)), (9, [16]), (13, [4, 5])],
    ids=["uneven", "even", "nine", "thirteen"],
)
def test_no_label_of_a_plot_lies_on_another_or_on_a_bar_and_nothing_is_outside(
    tmp_path: Path, handled: int, counts: Sequence[int]
) -> None:
    write_journal(tmp_path, "a", [f"key-{number % 60}" for number in range(handled)])
    write_journal(tmp_path, "b", ["hot"] * handled)
    advice = advice_of(tmp_path, list(counts))
    drawn = drawn_of(as_page(advice))
    for number, boxes in enumerate(drawn):
        for place, (left, top, right, bottom) in enumerate(boxes):
            for other in boxes[:place]:
                is_beside = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
                assert is_beside, (number, (left, top, right, bottom), other)
    # The plots of queues and cuts have labels at their sides alone.
    assert all(right <= LEFT or top >= 214 for boxes in drawn[2:] for _, top, right, _ in boxes)


def test_labels_of_large_numbers_are_within_the_plot(run: Path) -> None:
    drawn_of(queue_bars([80_000_000, 1]))
    timeline = advice_of(run).timeline
    drawn_of(latency(replace(timeline, p99_ms=[90_000.0] * len(timeline.p99_ms))))


def test_many_members_and_one_message_make_a_page_too(tmp_path: Path) -> None:
    for number in range(12):
        write_journal(tmp_path, f"m{number:02}", [f"key-{number}"])
    assert "4 others" in as_page(advice_of(tmp_path))


@pytest.mark.parametrize(("text", "counts"), [("4..7", [4, 5, 6, 7]), ("8", [8]), ("8,4,8", [4, 8]), ("1..1", [1])])
def test_counts_are_a_range_or_a_list(text: str, counts: list[int]) -> None:
    assert _counts("--queues", text) == counts


@pytest.mark.parametrize("text", ["", "4..", "7..4", "0..3", "four", "4;5", "1..99999", "-1"])
def test_other_counts_are_the_users_mistake(text: str) -> None:
    with pytest.raises(UserError, match="--queues"):
        _counts("--queues", text)


def invoke(*command: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["advise", *command])
    if isinstance(ended.exception, UserError):
        raise ended.exception
    return ended.exit_code, ended.stdout


def test_the_command_prints_one_object_and_writes_the_page(run: Path) -> None:
    page = run / "report.html"
    code, text = invoke(str(run), "--queues", "2..8", "--hash-counts", "16,32", "--html", str(page), "--json")
    told = json.loads(text)
    assert code == 0
    assert (told["useful_queues"], told["members"][2]["is_idle"], len(told["cuts"])) == (5, True, 14)
    assert page.read_text().startswith("<!doctype html>")


def test_a_page_for_which_the_disk_has_no_room_leaves_the_one_that_was_there(run: Path) -> None:
    page = run / "report.html"
    page.write_text("an earlier one")
    names, limits = set(run.iterdir()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"--html: .*report\.html: File too large"):
            invoke(str(run), "--html", str(page))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (page.read_text(), set(run.iterdir())) == ("an earlier one", names)


def test_a_page_goes_through_a_link_and_into_a_pipe(run: Path) -> None:
    """A file in their place would be found by nobody."""
    page, link = run / "page.html", run / "link.html"
    link.symlink_to(page)
    read, write = os.pipe()
    with open(read) as reader:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
        invoke(str(run), "--html", str(link))
        invoke(str(run), "--html", f"/dev/fd/{write}")
        os.close(write)
        assert reader.read() == page.read_text()
    assert link.is_symlink()


def test_a_link_that_leads_to_itself_gives_way_to_the_page(run: Path) -> None:
    page = run / "page.html"
    page.symlink_to(page)
    assert invoke(str(run), "--html", str(page))[0] == 0
    assert not page.is_symlink()


def test_what_cannot_be_advised_on_is_the_users_mistake(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(UserError, match="No such file or directory"):
        invoke(str(run / "nowhere"))
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(UserError, match="no handled message"):
        invoke(str(empty))
    with pytest.raises(UserError, match="fewer shards than queues"):
        invoke(str(run), "--queues", "20..30", "--hash-counts", "16")
    with pytest.raises(UserError, match=r"--html: .* Is a directory"):
        invoke(str(run), "--html", str(run))
    write_journal(empty, "a", [f"k{number}" for number in range(20)], function=HashFunction.JAVA_STRING)
    assert analyse(read_run(empty), "", [4], []).function is HashFunction.JAVA_STRING


def test_keys_without_any_are_the_users_mistake(tmp_path: Path) -> None:
    write_journal(tmp_path, "a", [None, None])
    with pytest.raises(UserError, match="no message with a key"):
        advice_of(tmp_path)
