"""The running verdict on pieces of files without a JVM: however they are cut, what one process says of the whole."""

from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lbg_runtime.journal.reader import read_run
from lbg_runtime.pipeline.spark.journal_source import JournalReader
from lbg_runtime.pipeline.spark.running_verdict import _feed, _Part
from lbg_runtime.validator.doubts import NEEDS_EVERY_JOURNAL
from lbg_runtime.validator.findings import NOTHING_YET, Finding, Law, Standing, VerdictKind, total
from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS
from lbg_runtime.validator.slices import SlicedExamination
from tests.pipeline.spark.validator_kills import Growth, made_run, said, said_at_once
from tests.validator.history import Step, World


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    whole.mkdir()
    growing.mkdir()
    return whole, growing


def in_pieces(whole: Path, growing: Path, pieces: int) -> tuple[Standing, list[Finding]]:
    growth, reader = Growth(whole, growing), JournalReader(growing)
    offset = reader.initialOffset()
    parts: dict[int, _Part] = {}
    standings: dict[int, Standing] = {}
    findings: list[Finding] = []
    for piece in range(1, pieces + 1):
        growth.until(piece / pieces)
        end = reader.latestOffset(offset, ReadAllAvailable())
        if end == offset:
            # Spark runs no batch.
            continue
        batches = [batch for task in reader.partitions(offset, end) for batch in reader.read(task)]
        rows = pd.concat([batch.to_pandas() for batch in batches])
        for number, frame in rows.groupby("part"):
            part = parts.setdefault(number, _Part(SlicedExamination(DEFAULT_ACK_WINDOW_MS)))
            standings[number], found = _feed(part, iter([frame]))
            findings += found
        offset = end
    return total(list(standings.values())), findings


@pytest.mark.parametrize("pieces", [1, 5, 40, 200])
def test_pieces_of_files_come_to_what_the_whole_is(folders: tuple[Path, Path], pieces: int) -> None:
    """With many, some hold a close alone, whose clock tells how far the run went."""
    whole, growing = folders
    made_run(5, 60, has_faults=True).write(whole)

    assert said(*in_pieces(whole, growing, pieces)) == said_at_once(whole)


def test_what_is_judged_is_in_the_order_of_the_files_whichever_was_read_first(folders: tuple[Path, Path]) -> None:
    whole, _ = folders
    made_run(5, 60, has_faults=True).write(whole)
    reader = JournalReader(whole)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())
    frames = [batch.to_pandas() for task in reader.partitions(begin, end) for batch in reader.read(task)]
    sliced = Mock(SlicedExamination, standing=NOTHING_YET)

    for each in (frames, frames[::-1]):
        _feed(_Part(sliced), iter(each))

    one, other = (call.args for call in sliced.feed.call_args_list)
    assert one == other
    journals = one[0].dispatches["journal"].unique().to_pylist()
    assert journals == sorted(journals)
    assert len(journals) > 1


@pytest.mark.parametrize("pieces", [1, 5, 40])
def test_that_a_member_stood_still_excuses_in_pieces_as_in_the_whole(folders: tuple[Path, Path], pieces: int) -> None:
    whole, growing = folders
    steps = (Step.PUBLISH, Step.PUBLISH, Step.HANDLE, Step.STAND_STILL, Step.PUBLISH, Step.HANDLE)
    World(7).play(steps * 8).write(whole)

    standing, findings = in_pieces(whole, growing, pieces)

    assert (standing.kind, findings) == (VerdictKind.VALID, [])
    assert standing.duplicates > 0


@pytest.mark.parametrize("pieces", [1, 5, 40])
def test_what_one_piece_says_of_its_file_counts_to_the_end(folders: tuple[Path, Path], pieces: int) -> None:
    whole, growing = folders
    made_run(5, 60, has_faults=True).write(whole)
    spoilt = min(whole.glob("*.member.jsonl"))
    lines = spoilt.read_bytes().splitlines(keepends=True)
    spoilt.write_bytes(b"".join([*lines[:3], b'{"kind":"noise"}\n', *lines[3:]]))
    expected = validate(read_run(whole))
    assert expected.unproven

    standing, _ = in_pieces(whole, growing, pieces)

    assert f"{spoilt.name}: line 4: an unexpected record of kind 'noise'" in standing.reasons
    assert standing.weak == NEEDS_EVERY_JOURNAL
    assert Law.ORDER in standing.unproven
