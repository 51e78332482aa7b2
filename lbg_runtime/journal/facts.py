"""What is known about one record file besides its records: when it has been read, its row in the table of files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
import pyarrow as pa

from lbg_runtime.model.record import LARGEST_NUMBER

Row = Mapping[str, object]

_OF_THE_GROUP = ("group", "hash_prefix", "hash_count", "queue_count", "backend")
"""The fields of a header that describe the group, as the member's settings do."""


@dataclass(slots=True)
class FileFacts:
    """Facts about a file, or about a piece of it whose reader knows the header and whether the file is closed.

    Written by the reader. If pieces were read separately, the first takes in the others, in their order.
    """

    name: str
    header: Row | None = None
    close: Row | None = None
    line_count: int = 0
    """Lines up to the end of what was read, including earlier ones that were read elsewhere."""
    defect: tuple[int, str] | None = None
    """The first line that is wrong, and what is wrong with it; 0 stands for the header."""
    last_mono_ns: int | None = None
    """The latest moment of the monotonic clock. The wall clock can be set, and so does not show when a life ended: a
    status of an older version, which has no other, changes nothing here."""
    wall_offset_ns: int | None = None
    pauses: list[tuple[int, int]] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    given: dict[str, int] = field(default_factory=dict)
    """For each move, by its id: the earliest time at which the member may have given the queue up; monotonic clock."""
    taken: dict[str, int] = field(default_factory=dict)
    """For each move, by its id: when the member noticed that it had got the queue; monotonic clock."""

    def note_defect(self, number: int, text: str) -> None:
        """Note what is wrong with a line. Only the lowest line counts, so it does not matter how many are read at
        once."""
        if self.defect is None or number < self.defect[0]:
            self.defect = (number, text)

    def note_mono(self, moment_ns: int) -> None:
        """Note a moment of the monotonic clock."""
        self.last_mono_ns = moment_ns if self.last_mono_ns is None else max(self.last_mono_ns, moment_ns)

    def note_header(self, header: Row) -> None:
        """Note the first record; also again, as it changes when records begin to be missing while the file grows."""
        if self.header is None or self.header.get("is_whole") is not False:
            self.header = header

    def note_owner(self, owner: Row) -> None:
        """Note a record of an owner change that fits its schema. Fields that are in no table may have any type."""
        self.named.update(str(owner[name]) for name in ("from_member", "to_member") if owner[name] is not None)
        move_id, asked_ns, mono_ns = owner["move_id"], owner.get("asked_mono_ns"), owner["mono_ns"]
        if owner["event"] == "taken" and isinstance(move_id, str) and isinstance(mono_ns, int):
            self.taken[move_id] = mono_ns
        elif isinstance(move_id, str) and type(asked_ns) is int and abs(asked_ns) <= LARGEST_NUMBER:
            self.given[move_id] = asked_ns

    def take_in(self, later: "FileFacts") -> None:
        """Add the facts of the next piece of the file."""
        if later.header is not None:
            self.note_header(later.header)
        self.close = self.close if self.close is not None else later.close
        self.line_count = later.line_count
        if later.defect is not None:
            self.note_defect(*later.defect)
        if later.last_mono_ns is not None:
            self.note_mono(later.last_mono_ns)
        if self.wall_offset_ns is None:
            self.wall_offset_ns = later.wall_offset_ns
        self.pauses += later.pauses
        self.named |= later.named
        self.given |= later.given
        self.taken |= later.taken

    def row(self, schema: pa.Schema) -> dict[str, object]:
        """The row in the table of files."""
        header, close = self.header or {}, self.close or {}
        # If the file grows, the next look may find more.
        absence = "the header was cut off" if self.line_count else "the file is empty"
        facts: dict[str, object] = {
            # A name whose bytes are not text is escaped, as no table can hold it.
            "file": os.fsencode(self.name).decode(errors="backslashreplace"),
            "torn": self.close is None,
            "clean": bool(close.get("clean")),
            # Without a last line, only the header says that records are missing, and not how many.
            "dropped": close.get("dropped", int(header.get("is_whole") is False)),
            "defect": self.defect[1] if self.defect else (absence if self.header is None else None),
            "last_mono_ns": self.last_mono_ns,
            "wall_offset_ns": self.wall_offset_ns,
            "pauses": " ".join(f"{begin}:{end}" for begin, end in self.pauses) or None,
            "named": orjson.dumps(sorted(self.named)).decode() if self.named else None,
            "given": orjson.dumps(self.given).decode() if self.given else None,
            "taken": orjson.dumps(self.taken).decode() if self.taken else None,
        }
        if self._is_of_nobody(schema):
            facts |= dict.fromkeys(_OF_THE_GROUP)
        return {name: facts.get(name, header.get(name)) for name in schema.names}

    def _is_of_nobody(self, schema: pa.Schema) -> bool:
        """Whether this is the whole journal of a member that never had a flow.

        The group may have refused such a member because of its settings, so what it says of the group does not count.
        """
        is_whole = self.close is not None and not self.close.get("dropped") and self.defect is None
        # Every record but those of statuses and pauses shows both clocks.
        return is_whole and self.wall_offset_ns is None and "wall_offset_ns" in schema.names
