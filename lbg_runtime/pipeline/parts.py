"""One part of a laid out run, examined; what each engine of `lbg validate` runs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from lbg_runtime.journal.layout import queues_of, read_part, read_whole
from lbg_runtime.validator.findings import Examination, Verdict
from lbg_runtime.validator.judge import judge
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS, examine
from lbg_runtime.validator.layouts import part_count


def parts_of_run(run: Path) -> Mapping[int, Sequence[int]]:
    """The parts of a laid out run, each with its queues; at least one part. Raises `UserError`."""
    whole = read_whole(run)
    count = part_count(whole.journals, whole.stripes)
    parts: defaultdict[int, list[int]] = defaultdict(list)
    for queue in queues_of(run):
        parts[queue % count].append(queue)
    return dict(sorted(parts.items())) or {0: []}


def examine_part(run: Path, queues: Sequence[int], ack_window_ms: int = DEFAULT_ACK_WINDOW_MS) -> Examination:
    """The kernel on the queues of one part, or of several. Raises `UserError`."""
    return examine(read_part(run, read_whole(run), queues), ack_window_ms)


def judge_run(run: Path, examinations: Sequence[Examination]) -> Verdict:
    """The verdict from the examinations of all parts. Raises `UserError`."""
    whole = read_whole(run)
    return judge(examinations, whole.journals, whole.ledgers)


def validate_locally(run: Path, ack_window_ms: int = DEFAULT_ACK_WINDOW_MS) -> Verdict:
    """The verdict on a laid out run, one part in memory at a time. Raises `UserError`."""
    return judge_run(run, [examine_part(run, queues, ack_window_ms) for queues in parts_of_run(run).values()])
