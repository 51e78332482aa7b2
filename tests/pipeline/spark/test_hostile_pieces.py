"""Damaged files without a JVM: at every look Spark's classes say of them what one process says, however they are cut.

Both look at the same bytes, and take as much of a file at a time. What the offset and the state hold goes the way that
Spark has it go: as JSON and as bytes.
"""

import json
import pickle
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lbg_runtime.journal import follow, pieces
from lbg_runtime.journal.follow import RunFollower
from lbg_runtime.journal.reader import is_record, parse_line, read_run
from lbg_runtime.pipeline.spark.journal_source import JournalReader
from lbg_runtime.pipeline.spark.running_verdict import _feed, _Part
from lbg_runtime.validator.findings import WITNESSED_FINDINGS, Standing, total
from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS
from lbg_runtime.validator.slices import SlicedExamination
from tests.pipeline.spark.validator_kills import Said, made_run, said, said_at_once
from tests.validator.run_files import WALL_OFFSET_NS

Files = dict[str, bytes]
Damage = Callable[[list[bytes], int], list[bytes]]
"""Of the lines of a file, at one of them."""

SHARE = st.floats(0, 1)
WHOLE = 1 << 20
BLOCKS = [4_000, 9_000, WHOLE]
"""More than a file has."""
AS_THEY_COME = [
    ".jsonl: ",
    "the files disagree",
    " journals claim incarnation ",
    " ledgers claim publisher ",
    "there is no journal of member",
]
"""Parts of the reasons that need not wait for the end of the run."""


class Spark:
    """What Spark does with our classes, batch by batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offset = JournalReader(folder).initialOffset()
        self._parts: dict[int, bytes] = {}
        self._standings: dict[int, Standing] = {}
        self._told: Counter[str] = Counter()

    def look(self) -> bool:
        """Run a batch if there is something for one."""
        reader = JournalReader(self._folder)
        end = json.loads(json.dumps(reader.latestOffset(self._offset, ReadAllAvailable())))
        if end == self._offset:
            return False
        tasks = [pickle.loads(pickle.dumps(task)) for task in reader.partitions(self._offset, end)]  # noqa: S301
        rows = pd.concat([batch.to_pandas() for task in tasks for batch in reader.read(task)])
        for number, frame in rows.groupby("part"):
            kept = self._parts.get(number)
            part: _Part = _Part(SlicedExamination(DEFAULT_ACK_WINDOW_MS)) if kept is None else pickle.loads(kept)  # noqa: S301
            self._standings[number], found = _feed(part, iter([frame]))
            self._parts[number] = pickle.dumps(part)
            self._told += said(self._standings[number], found)[1]
        self._offset = end
        return True

    @property
    def standing(self) -> Standing:
        return total(list(self._standings.values()))

    @property
    def said(self) -> Said:
        return said(self.standing, ())[0], self._told


class Plain:
    """`lbg validate --live` without Spark."""

    def __init__(self, folder: Path) -> None:
        self._follower = RunFollower(folder)
        self._sliced = SlicedExamination(DEFAULT_ACK_WINDOW_MS)
        self._told: Counter[str] = Counter()

    def look(self) -> bool:
        """Judge what has come; whether there is more to be read at once."""
        news = self._follower.look()
        found = self._sliced.feed(news.tables, news.until_ns)
        self._told += said(self._sliced.standing, found)[1]
        return news.has_more

    @property
    def said(self) -> Said:
        return said(self._sliced.standing, ())[0], self._told


def inserted(line: bytes) -> Damage:
    return lambda lines, place: [*lines[:place], line, *lines[place:]]


def cut_in_two(lines: list[bytes], place: int) -> list[bytes]:
    return [*lines[:place], lines[place][: len(lines[place]) // 2] + b"\n", *lines[place + 1 :]]


def removed(lines: list[bytes], place: int) -> list[bytes]:
    return [*lines[:place], *lines[place + 1 :]]


def again_at_the_end(lines: list[bytes], place: int) -> list[bytes]:
    return [*lines, lines[place]]


def closed_twice(lines: list[bytes], place: int) -> list[bytes]:
    return [*lines[:place], lines[-1], *lines[place:]]


def torn(lines: list[bytes], place: int) -> list[bytes]:
    return [*lines[:place], lines[place][: len(lines[place]) // 2]]


def with_facts(which: int, **facts: object) -> Damage:
    def change(lines: list[bytes], _: int) -> list[bytes]:
        row = as_row(lines[which]) | facts
        rest = lines[which + 1 :] if which >= 0 else []
        return [*lines[:which], orjson.dumps(row) + b"\n", *rest]

    return change


def as_row(line: bytes) -> dict[str, Any]:
    try:
        return dict(orjson.loads(line))
    except (orjson.JSONDecodeError, TypeError, ValueError):
        return {}


DAMAGES: Sequence[Damage] = [
    inserted(b"not a record\n"),
    inserted(b"\n"),
    inserted(b"\0" * 700 + b"\n"),
    inserted(b'{"kind":"noise"}\n'),
    inserted(b'{"kind":"status","t":"late"}\n'),
    inserted(b'{"kind":"pause","from_mono_ns":7,"to_mono_ns":5}\n'),
    inserted(b'{"kind":"close","written":1}\n'),
    cut_in_two,
    removed,
    again_at_the_end,
    closed_twice,
    torn,
    with_facts(0, schema=9),
    with_facts(0, run_id="another"),
    with_facts(0, hash_count=0),
    with_facts(0, is_whole=False),
    with_facts(-1, dropped=3),
    with_facts(-1, written=2),
]
ADDED = [b"", b'{"kind":"jour', b"noise", b"\n", b"noise\nmore\n" * 9]

RUNS: dict[bool, Files] = {}


def files_of(*, has_faults: bool) -> Files:
    if has_faults not in RUNS:
        with TemporaryDirectory() as folder:
            made_run(5, 60, has_faults=has_faults).write(Path(folder))
            RUNS[has_faults] = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    return dict(RUNS[has_faults])


def sound_journal(files: Files) -> str:
    return max(name for name in files if name[:2].isdigit() and name.endswith(".member.jsonl") and ".a." not in name)


@st.composite
def damaged(draw: st.DrawFn) -> Files:
    files = files_of(has_faults=draw(st.booleans()))
    # One journal's header is there from the first look on: nothing is read before.
    sound = sound_journal(files)
    for damage in draw(st.lists(st.sampled_from(DAMAGES), max_size=3)):
        name = draw(st.sampled_from(sorted(files)))
        lines = files[name].splitlines(keepends=True)
        place = draw(st.integers(1 if name == sound else 0, len(lines) - 1))
        if name != sound or damage(lines, place)[0] == lines[0]:
            files[name] = b"".join(damage(lines, place))
    for content in draw(st.lists(st.sampled_from(ADDED), max_size=1)):
        files[draw(st.sampled_from(["00.a.member.jsonl", "zz.a.member.jsonl", "zz.a.ledger.jsonl"]))] = content
    if draw(st.booleans()):
        files["copy.member.jsonl"] = files[sound]
    return files


def differences(one: Said, other: Said) -> dict[str, object]:
    found: dict[str, object] = {
        name: (one[0][name], other[0][name]) for name in one[0] if one[0][name] != other[0][name]
    }
    counts = one[0]["violations"]
    assert isinstance(counts, dict)
    # Of more than that, each part tells the first, and one process those of all parts.
    if max(counts.values()) <= WITNESSED_FINDINGS and one[1] != other[1]:
        found["told"] = (one[1] - other[1], other[1] - one[1])
    return found


def without_lengths(told: Said) -> Said:
    """Two flows that are fed at once are told once, as soon as that is certain, and may be fed for longer."""
    return told[0], Counter(re.sub(r" fed (.*), for \d+ ms$", r" fed \1", each) for each in told[1].elements())


def looked_at(
    folder: Path, files: Files, write: Callable[[Path, float], None], steps: Sequence[float], block: int
) -> Spark:
    """Both at every step; raises where they differ."""
    # Nothing is read on Spark before the first header of a journal.
    sound = sound_journal(files)
    header = files[sound][: files[sound].index(b"\n") + 1]
    spark, plain = Spark(folder), Plain(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "_BLOCK_BYTES", block)
        patch.setattr(pieces, "_PIECE_BYTES", block)
        for step in steps:
            write(folder, step)
            if len((folder / sound).read_bytes()) < len(header):
                (folder / sound).write_bytes(header)
            has_more = True
            while has_more:
                changed, has_more = spark.look(), plain.look()
                assert differences(spark.said, plain.said) == {}
                has_more |= changed
    return spark


def in_time(files: Files) -> Callable[[Path, float], None]:
    """Write the files as they were at some share of the run's time, half a line included; ledgers are there at once."""
    lines = {name: content.splitlines(keepends=True) for name, content in files.items()}
    moments = {name: list(accumulate(map(moment_of, own), max)) for name, own in lines.items()}
    last = max(moment for name, own in moments.items() if "member" in name for moment in own)
    first = min(filter(None, (moment for name, own in moments.items() if "member" in name for moment in own)))

    def write(folder: Path, share: float) -> None:
        for name, own in lines.items():
            until = first + round((last - first) * share)
            count = bisect_right(moments[name], until) if "member" in name else len(own)
            half = own[count][: len(own[count]) // 2] if count < len(own) else b""
            (folder / name).write_bytes(b"".join(own[:count]) + half)

    return write


def moment_of(line: bytes) -> int:
    """On the run's clock; 0 where the line does not say."""
    row = as_row(line)
    wall_us = row.get("t", row.get("t_start", 0))
    return int(
        row.get("done_mono_ns", row.get("mono_ns", isinstance(wall_us, int) and wall_us * 1000 - WALL_OFFSET_NS))
    )


def assert_reasons_of_the_whole(standing: Standing, folder: Path) -> None:
    """What the files say of themselves at the end of the run is said by then, but that a ledger is not closed.

    A line without an end is not looked at while the run goes on. So a file with no other line is empty, and a last
    line before it that is not a record was cut off, as far as anybody can see.
    """
    headless, unseen = [], set()
    for path in folder.iterdir():
        *lines, rest = path.read_bytes().split(b"\n")
        if not lines:
            headless.append(path.name)
        elif rest and not is_record(parse_line(lines[-1])):
            unseen.add(f"{path.name}: line {len(lines)}: not a record")
    expected = {
        f"{reason.partition(': ')[0]}: the file is empty" if reason.startswith(tuple(headless)) else reason
        for reason in validate(read_run(folder)).reasons
        if any(part in reason for part in AS_THEY_COME) and "did not close" not in reason and reason not in unseen
    }
    assert {reason for reason in standing.reasons if any(part in reason for part in AS_THEY_COME)} == expected


FILES, LOOKS = 8, 5
CUTS = st.lists(st.lists(SHARE, min_size=LOOKS - 1, max_size=LOOKS - 1).map(sorted), min_size=FILES, max_size=FILES)


@pytest.mark.parametrize(
    ("damage", "last"),
    [
        (inserted(b"not a record\n"), 9),
        (cut_in_two, 9),
        (removed, 8),
        (closed_twice, 9),
        (again_at_the_end, -2),
    ],
)
def test_what_is_wrong_where_a_piece_ends_is_said_with_the_next(tmp_path: Path, damage: Damage, last: int) -> None:
    """`last` is the last line of the first piece: the damaged one, or the one before what follows a close."""
    files = files_of(has_faults=True)
    name = max(files, key=lambda name: (b'"close"' in files[name] and "member" in name, len(files[name])))
    lines = damage(files[name].splitlines(keepends=True), 9)
    files[name] = b"".join(lines)

    def write(folder: Path, step: float) -> None:
        for other, content in files.items():
            (folder / other).write_bytes(content if step or other != name else b"".join(lines[: last + 1 or None]))

    spark = looked_at(tmp_path, files, write, [0, 1], WHOLE)

    assert_reasons_of_the_whole(spark.standing, tmp_path)
    assert any(reason.startswith(name) for reason in spark.standing.reasons)


@settings(max_examples=8, deadline=None)
@given(files=damaged(), block=st.sampled_from(BLOCKS), cuts=CUTS)
def test_at_every_look_spark_says_what_one_process_says(files: Files, block: int, cuts: list[list[float]]) -> None:
    lengths = {
        name: [round(len(content) * share) for share in [*own, 1]]
        for (name, content), own in zip(sorted(files.items()), cuts, strict=False)
    }

    def write(folder: Path, look: float) -> None:
        for name, content in files.items():
            (folder / name).write_bytes(content[: lengths[name][int(look)]])

    with TemporaryDirectory() as folder:
        spark = looked_at(Path(folder), files, write, range(LOOKS), block)
        assert_reasons_of_the_whole(spark.standing, Path(folder))


def cut_off_behind_a_line_that_is_no_record() -> Files:
    files = files_of(has_faults=True)
    name = max(name for name in files if "ledger" in name)
    return {**files, name: files[name] + b'not a record\n{"key":'}


def torn_and_copied() -> Files:
    files = files_of(has_faults=False)
    sound = sound_journal(files)
    files[sound] = files["copy.member.jsonl"] = b"".join(torn(files[sound].splitlines(keepends=True), 24))
    return files


def in_small_steps(files: Files, count: int = 200) -> list[float]:
    """The shares, of so many, by which another line has come."""
    lines = [line for name, content in files.items() if "member" in name for line in content.splitlines(keepends=True)]
    moments = sorted(filter(None, map(moment_of, lines)))
    return sorted({ceil(count * (each - moments[0]) / (moments[-1] - moments[0])) / count for each in moments})


@settings(max_examples=8, deadline=None)
@given(files=damaged(), block=st.sampled_from(BLOCKS), shares=st.lists(SHARE, max_size=12))
@example(files=cut_off_behind_a_line_that_is_no_record(), block=WHOLE, shares=[])
@example(files=torn_and_copied(), block=WHOLE, shares=[0.55])
@example(files=files_of(has_faults=True), block=WHOLE, shares=in_small_steps(files_of(has_faults=True)))
def test_in_order_of_time_the_end_is_what_one_look_says(files: Files, block: int, shares: list[float]) -> None:
    with TemporaryDirectory() as folder:
        spark = looked_at(Path(folder), files, in_time(files), [*sorted(shares), 1], block)
        assert_reasons_of_the_whole(spark.standing, Path(folder))
        if not spark.standing.late:
            assert differences(without_lengths(spark.said), without_lengths(said_at_once(Path(folder)))) == {}
