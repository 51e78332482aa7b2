"""The running verdict on pieces of files without a JVM: however they are cut, what one process says of the whole."""

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lbg_runtime.pipeline.spark.journal_source import JournalReader
from lbg_runtime.pipeline.spark.running_verdict import _feed, _Part
from lbg_runtime.validator.findings import Finding, Standing, total
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS
from lbg_runtime.validator.slices import SlicedExamination
from tests.pipeline.spark.validator_kills import Growth, made_run, said, said_at_once


@pytest.mark.parametrize("pieces", [1, 5, 40, 200])
def test_pieces_of_files_come_to_what_the_whole_is(tmp_path: Path, pieces: int) -> None:
    """With many, some hold a close alone, whose wall clock tells how far the run went."""
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    whole.mkdir()
    growing.mkdir()
    made_run(5, 60, has_faults=True).write(whole)
    growth, reader = Growth(whole, growing), JournalReader(growing)
    offset = reader.initialOffset()
    parts: dict[int, _Part] = {}
    standings: dict[int, Standing] = {}
    findings: list[Finding] = []
    for piece in range(1, pieces + 1):
        growth.until(piece / pieces)
        end = reader.latestOffset(offset, ReadAllAvailable())
        batches = [batch for task in reader.partitions(offset, end) for batch in reader.read(task)]
        rows = pd.concat([batch.to_pandas() for batch in batches]) if batches else pd.DataFrame({"part": []})
        for number, frame in rows.groupby("part"):
            part = parts.setdefault(number, _Part(SlicedExamination(DEFAULT_ACK_WINDOW_MS)))
            standings[number], found = _feed(part, iter([frame]))
            findings += found
        offset = end
    assert said(total(list(standings.values())), findings) == said_at_once(whole)
