"""The options of `spark.read.format("lbg")` and `readStream`; a wrong one gives a one-line error that names it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.whole import whole_number
from lbg_runtime.pipeline.landing.layout import read_group_note
from lbg_runtime.pipeline.spark.option_names import check_option_names
from lbg_runtime.runtime.clock import wall_us

_NAMES = (
    *("path", "group", "queues", "startingOffsets", "maxRowsPerBatch", "maxBytesPerBatch"),
    *("queuesPerPartition", "failOnDataLoss", "decode"),
)
_NAMES_ELSEWHERE = {
    **dict.fromkeys(("startingTimestamp", "startingOffsetsByTimestamp", "startingVersion"), "startingOffsets"),
    **dict.fromkeys(("maxOffsetsPerTrigger", "maxRowsPerTrigger", "maxFilesPerTrigger"), "maxRowsPerBatch"),
    "maxBytesPerTrigger": "maxBytesPerBatch",
    **dict.fromkeys(("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"), "a condition on t_land"),
}
"""What other sources of Spark call what we have, and what we have; without a word, all of a log would be read."""
DEFAULT_ROWS = 100_000
DEFAULT_BYTES = 64_000_000


class Start(Enum):
    """Where a stream without a checkpoint begins; the values are those of the option."""

    EARLIEST = "earliest"
    """With the first existing row."""
    LATEST = "latest"
    """With what lands from now on."""
    TIME = "time"
    """With the first flush that landed at the given time or later."""


class Decode(Enum):
    """How payloads are decoded; the values are those of the option."""

    NONE = "none"
    """They stay bytes."""
    UTF8 = "utf8"
    """They become text; a payload that is not text stops the stream."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    path: Path
    group: str
    queues: tuple[int, ...] | None
    """The queues to read; None for all."""
    max_rows: int
    max_bytes: int
    start: Start
    start_us: int
    """With `TIME`: microseconds since the epoch."""
    queues_per_task: int | None
    """None for as many tasks as this machine has cores."""
    fail_on_loss: bool
    decode: Decode

    def task_count(self, queue_count: int) -> int:
        """To how many tasks `queue_count` queues of a new batch are dealt out."""
        if self.queues_per_task is None:
            return os.cpu_count() or 1
        return -(-queue_count // self.queues_per_task)


def read_source_options(options: Mapping[str, str], *, clock_us: Callable[[], int] = wall_us) -> SourceOptions:
    """The options of a source; reads its landing log's note. Raises `UserError`, and as `read_group_note` does.

    Option names are case-insensitive, as all of Spark's are. Options of Spark itself are ignored.
    """
    check_option_names(options, _NAMES, _NAMES_ELSEWHERE)
    given = {name.lower(): value for name, value in options.items()}
    path = Path(given.get("path", ""))
    if "path" not in given:
        raise UserError("option path", "missing", "the folder of a landing log, as `lbg land --dir` made it")
    note = read_group_note(path)
    group = given.get("group", note.group)
    if group != note.group:
        raise UserError("option group", repr(group), f"{note.group}, which is what {path} holds")
    start, start_us = _start(given.get("startingoffsets", Start.EARLIEST.value), clock_us())
    queues_per_task = given.get("queuesperpartition", "auto")
    return SourceOptions(
        path=path.absolute(),
        group=group,
        queues=_queues(given.get("queues")),
        max_rows=_count("maxRowsPerBatch", given.get("maxrowsperbatch", str(DEFAULT_ROWS))),
        max_bytes=_count("maxBytesPerBatch", given.get("maxbytesperbatch", str(DEFAULT_BYTES))),
        start=start,
        start_us=start_us,
        queues_per_task=None if queues_per_task == "auto" else _count("queuesPerPartition", queues_per_task),
        fail_on_loss=_one_of("failOnDataLoss", given.get("failondataloss", "true"), ("true", "false")) == "true",
        decode=Decode(_one_of("decode", given.get("decode", "none"), [each.value for each in Decode])),
    )


def _count(option: str, text: str) -> int:
    number = whole_number(text, 15)
    if not number:
        raise UserError(f"option {option}", repr(text), "a whole number, at least 1")
    return number


def _queues(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 7 for part in numbers):
        raise UserError("option queues", repr(text), "numbers of queues, such as 0,3,7")
    return tuple(sorted({int(part) for part in numbers}))


def _start(text: str, now_us: int) -> tuple[Start, int]:
    if text in (Start.EARLIEST.value, Start.LATEST.value):
        return Start(text), 0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        expected = "earliest, latest, or a time such as 2026-01-31T12:00:00"
        raise UserError("option startingOffsets", repr(text), expected) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    start_us = int(moment.timestamp() * 1_000_000)
    if start_us > now_us:
        # Where it is, nobody knows yet: what lands from now on would be read.
        found = f"{text!r}, which is still to come"
        raise UserError("option startingOffsets", found, "latest, or a time that has passed")
    return Start.TIME, start_us


def _one_of(option: str, text: str, choices: Sequence[str]) -> str:
    if text.lower() not in choices:
        raise UserError(f"option {option}", repr(text), " or ".join(choices))
    return text.lower()
