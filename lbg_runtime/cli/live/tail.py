"""Reads journals while they grow, and hands out complete records in the order of their monotonic times."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from lbg_runtime.model.record import FILE_SUFFIXES

_TIME_FIELDS = {"dispatch": "done_mono_ns", "flow": "mono_ns"}


@dataclass(slots=True)
class _File:
    offset: int = 0
    rest: bytes = b""
    member: str = ""
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class TailedRecord:
    """A record with the life of the member that wrote it."""

    member: str
    incarnation: int
    fields: dict[str, object]


@dataclass(slots=True)
class JournalTail:
    """Every call of `read` returns what was written to any member journal of the folder since the last one."""

    folder: Path
    _files: dict[Path, _File] = field(default_factory=dict)

    def read(self) -> list[TailedRecord]:
        """New complete records. Records without a monotonic time of their own keep to their file's order."""
        found: list[tuple[int, TailedRecord]] = []
        for path in sorted(self.folder.glob(f"*{FILE_SUFFIXES['journal']}")):
            last_ns = 0
            for fields in self._new_lines(path):
                state = self._files[path]
                if fields["kind"] == "journal":
                    state.member = str(fields["member"])
                    state.incarnation = int(str(fields["incarnation"]))
                    continue
                moment = fields.get(_TIME_FIELDS.get(str(fields["kind"]), ""))
                # Handlings of a process may be slightly out of order with its flow records; never go back.
                last_ns = max(last_ns, moment) if isinstance(moment, int) else last_ns
                found.append((last_ns, TailedRecord(state.member, state.incarnation, fields)))
        found.sort(key=lambda pair: pair[0])
        return [record for _, record in found]

    def _new_lines(self, path: Path) -> list[dict[str, object]]:
        state = self._files.setdefault(path, _File())
        with path.open("rb") as file:
            file.seek(state.offset)
            data = state.rest + file.read()
            state.offset = file.tell()
        *lines, state.rest = data.split(b"\n")
        return [orjson.loads(line) for line in lines if line]


def accepted_dispatches(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of all accepted handlings of a run."""
    for record in JournalTail(folder).read():
        if record.fields["kind"] == "dispatch" and record.fields["outcome"] == "accepted":
            yield record.fields
