"""Examines one part of a laid out run; each engine of `lbg validate` runs this."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from lbg_runtime.journal.layout import count_records, queues_of, read_part, read_whole
from lbg_runtime.journal.slices import read_handlings, read_slices
from lbg_runtime.validator.findings import Examination, Verdict
from lbg_runtime.validator.judge import judge
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS, examine
from lbg_runtime.validator.layouts import part_count
from lbg_runtime.validator.recall import forgotten_messages, handlings_of, recalled, without_faults
from lbg_runtime.validator.schema import RunTables
from lbg_runtime.validator.slices import SlicedExamination

SLICE_RECORDS = 500_000
"""Handlings judged at a time in a part with more than twice as many. Takes half a gigabyte for a few queues and
journals, and more the more there are, as a row group of each is held."""


def parts_of_run(run: Path) -> Mapping[int, Sequence[int]]:
    """The parts of a laid out run, each with its queues; at least one part. Raises `UserError`."""
    whole = read_whole(run)
    count = part_count(whole.journals, whole.stripes)
    parts: defaultdict[int, list[int]] = defaultdict(list)
    for queue in queues_of(run):
        parts[queue % count].append(queue)
    return dict(sorted(parts.items())) or {0: []}


def examine_part(run: Path, whole: RunTables, queues: Sequence[int], ack_window_ms: int) -> Examination:
    """Run the kernel on the queues of one or several parts, in slices if there are many records. Raises `UserError`.

    `whole` is `read_whole` of the run.
    """
    if count_records(run, queues) <= 2 * SLICE_RECORDS:
        return examine(read_part(run, whole, queues), ack_window_ms)
    sliced = SlicedExamination(ack_window_ms)
    for tables, until_ns in read_slices(run, whole, queues, SLICE_RECORDS):
        sliced.feed(tables, until_ns)
    examination = sliced.finish(whole)
    forgotten = forgotten_messages(examination)
    if not forgotten.num_rows:
        return examination
    handlings = read_handlings(run, queues, forgotten)
    of_each = (handlings_of(handlings, forgotten.slice(row, 1)) for row in range(forgotten.num_rows))
    return recalled(examination, [examine(without_faults(whole, few), ack_window_ms) for few in of_each])


def judge_run(run: Path, examinations: Sequence[Examination]) -> Verdict:
    """The verdict from the examinations of all parts. Raises `UserError`."""
    whole = read_whole(run)
    return judge(examinations, whole.journals, whole.ledgers)


def validate_locally(run: Path, ack_window_ms: int = DEFAULT_ACK_WINDOW_MS) -> Verdict:
    """The verdict on a laid out run, one part in memory at a time. Raises `UserError`."""
    whole = read_whole(run)
    return judge_run(run, [examine_part(run, whole, queues, ack_window_ms) for queues in parts_of_run(run).values()])
