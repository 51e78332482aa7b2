"""The record file: whole lines, one write per batch, and a count of what a full disk took.

More than 400 lines, because each way in which a file can be lost or damaged is tried on a file.
"""

import errno
import json
import os
import shutil
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lbg_runtime.journal.reader import read_file, read_run
from lbg_runtime.journal.writer import LOOK_NS, RecordWriter
from lbg_runtime.model.record import (
    LONGEST_LINE_BYTES,
    ConfirmedRecord,
    DispatchRecord,
    FlowRecord,
    JournalHeader,
    LedgerHeader,
    StatusRecord,
)
from lbg_runtime.validator.schema import JOURNALS, LEDGERS
from tests.failing_disk import FAULTS, each_operation
from tests.open_files import open_below


def _record(number):
    return ConfirmedRecord(key="k", shard=1, first_seq=number, last_seq=number, t_first=0, t_last=0)


def _lines(path):
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def path(tmp_path):
    """A name that is free."""
    return tmp_path / "member-0-1.member.jsonl"


def test_records_are_lines_of_json_with_their_kind(path):
    writer = RecordWriter(path)
    writer.write(_record(7))
    writer.write(FlowRecord(queue=1, bind_epoch=2, event="bound", role="primary", cause="", t=3, mono_ns=4))
    writer.close(clean=True)
    first, second, last = (json.loads(line) for line in _lines(path))
    assert first == {
        "key": "k", "shard": 1, "first_seq": 7, "last_seq": 7, "t_first": 0, "t_last": 0, "kind": "confirmed",
        "is_whole": True,
    }  # fmt: skip
    assert second["kind"] == "flow"
    assert (last["kind"], last["written"], last["dropped"], last["clean"]) == ("close", 2, 0, True)


def test_a_file_that_appears_has_its_first_line(path, monkeypatch):
    """Where the system can do that."""
    there = []

    def linked(source, target, **options):
        there.append(target.exists())
        link(source, target, **options)

    link = os.link
    monkeypatch.setattr(os, "link", linked)
    writer = RecordWriter(path, first=_record(7))
    (line,) = _lines(path)
    assert there == [False]
    assert json.loads(line)["first_seq"] == 7
    writer.write(_record(8))
    writer.close(clean=True)
    assert [json.loads(line).get("first_seq") for line in _lines(path)] == [7, 8, None]
    assert read_file(path, "ledger", 0).row(LEDGERS)["dropped"] == 0
    with pytest.raises(FileExistsError):
        RecordWriter(path, first=_record(9))
    assert len(_lines(path)) == 3


@pytest.mark.parametrize("name", ["open", "link"])
def test_where_no_file_can_be_begun_without_a_name_its_first_line_follows(path, monkeypatch, name):
    def refuse(source, target_or_flags, *rest, **options):
        if name == "link" or target_or_flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not on this disk")
        return real(source, target_or_flags, *rest, **options)

    real = getattr(os, name)
    monkeypatch.setattr(os, name, refuse)
    writer = RecordWriter(path, first=_record(7))
    assert [json.loads(line)["first_seq"] for line in _lines(path)] == [7]
    with pytest.raises(FileExistsError):
        RecordWriter(path, first=_record(9))
    writer.close(clean=True)
    assert json.loads(_lines(path)[-1])["written"] == 1
    assert open_below(path.parent) == []


def test_a_batch_is_one_call_and_nothing_is_written_before_flush(path, monkeypatch):
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: writes.append(len(data)) or real(file, data))
    writer = RecordWriter(path)
    for number in range(100):
        writer.write(_record(number))
    assert path.read_bytes() == b""
    writer.flush()
    writer.flush()
    assert len(writes) == 1
    assert len(_lines(path)) == writer.written == 100


def test_a_name_that_is_taken_is_not_overwritten(path):
    path.write_text("old\n")
    with pytest.raises(FileExistsError):
        RecordWriter(path)
    assert path.read_text() == "old\n"


def test_closing_twice_writes_one_last_line(path):
    writer = RecordWriter(path)
    writer.close(clean=False)
    writer.close(clean=True)
    assert [json.loads(line)["clean"] for line in _lines(path)] == [False]


def test_what_comes_after_the_close_is_dropped_and_does_not_raise(path):
    writer = RecordWriter(path)
    writer.close(clean=True)
    writer.write(_record(1))
    writer.flush()
    assert writer.dropped == 1
    assert len(_lines(path)) == 1


class FullDisk:
    """Lets `room` bytes through, then refuses until `free` is called."""

    def __init__(self, monkeypatch, room):
        self.room = room
        self._real = os.write
        monkeypatch.setattr(os, "write", self._write)

    def _write(self, file, data):
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = self._real(file, data[: self.room])
        self.room -= done
        return done


def test_who_dies_on_a_full_disk_has_said_that_something_is_missing(path, monkeypatch):
    writer = RecordWriter(path)
    writer.write(JournalHeader("run", "orders", "h", 4, 2, "a", 1, "host", 1, 0))
    writer.flush()
    assert read_file(path, "journal", 0).row(JOURNALS)["dropped"] == 0
    disk = FullDisk(monkeypatch, room=40)
    writer.write(_record(1))
    writer.flush()
    assert disk.room == 0
    told = read_file(path, "journal", 0).row(JOURNALS)
    assert (told["torn"], told["dropped"], told["member"]) == (True, 1, "a")


def test_a_full_disk_drops_the_batch_counts_it_and_says_so_once(path, monkeypatch):
    writer = RecordWriter(path)
    disk = FullDisk(monkeypatch, room=0)
    with capture_logs() as logs:
        for number in range(5):
            writer.write(_record(number))
            writer.flush()
        disk.room = 1_000_000
        writer.write(_record(5))
        writer.close(clean=True)
    assert [log["event"] for log in logs] == ["journal_write_failed"]
    assert logs[0]["reason"] == "No space left on device"
    first, last = (json.loads(line) for line in _lines(path))
    assert first["first_seq"] == 5
    assert (last["written"], last["dropped"]) == (1, 5)


@pytest.mark.parametrize("room", range(0, 400, 7))
def test_a_write_that_stops_anywhere_spoils_at_most_one_line(path, monkeypatch, room):
    writer = RecordWriter(path)
    disk = FullDisk(monkeypatch, room)
    for number in range(4):
        writer.write(_record(number))
    writer.flush()
    disk.room = 1_000_000
    writer.write(_record(4))
    writer.flush()
    writer.close(clean=True)
    whole, spoiled = [], 0
    for line in _lines(path):
        try:
            whole.append(json.loads(line))
        except ValueError:
            spoiled += 1
    assert spoiled <= 1
    last = whole.pop()
    assert last["written"] == len(whole) == writer.written - 1
    assert last["dropped"] == 5 - len(whole)
    assert [record["first_seq"] for record in whole] == [*range(len(whole) - 1), 4]


@pytest.mark.parametrize("room", range(5, 400, 31))
def test_a_disk_that_is_full_twice_leaves_counts_that_are_right(path, monkeypatch, room):
    writer = RecordWriter(path)
    disk = FullDisk(monkeypatch, 40)
    for first in (0, 4):
        for number in range(first, first + 4):
            writer.write(_record(number))
        writer.flush()
        disk.room = room
    disk.room = 1_000_000
    writer.write(_record(8))
    writer.close(clean=True)
    *whole, last = (json.loads(line) for line in _lines(path) if line.endswith(b"}\n"))
    assert (last["written"], last["dropped"]) == (len(whole), 9 - len(whole))


def test_a_short_write_that_goes_on_is_no_loss(path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:10]))
    writer = RecordWriter(path)
    writer.write(_record(1))
    writer.close(clean=True)
    assert writer.dropped == 0
    assert [json.loads(line)["kind"] for line in _lines(path)] == ["confirmed", "close"]


def test_a_file_system_that_refuses_at_the_close_is_told_of_once_and_raises_nothing(path, monkeypatch):
    real, closed = os.close, []

    def close(file):
        real(file)
        # Once: the number is another file's right after.
        if file == number and not closed:
            closed.append(file)
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    number = os.dup(0)
    real(number)
    writer = RecordWriter(path)
    assert path.samefile(f"/proc/self/fd/{number}")
    writer.write(JournalHeader("run", "orders", "h", 4, 2, "a", 1, "host", 1, 0))
    monkeypatch.setattr(os, "close", close)
    with capture_logs() as logs:
        writer.close(clean=True)
        writer.close(clean=True)
    assert closed == [number]
    assert [(log["event"], log["reason"]) for log in logs] == [("journal_write_failed", "Disk quota exceeded")]
    # The last line is there, and the first one says that something may be missing.
    assert len(_lines(path)) == 2
    assert json.loads(_lines(path)[0])["is_whole"] is False


def test_a_text_that_no_file_can_hold_costs_the_text_and_not_the_record(path):
    writer = RecordWriter(path)
    writer.write(replace(_record(1), key="a\ud800\U0001f600"))
    writer.write(_record(2))
    writer.close(clean=True)
    first, second, last = (json.loads(line) for line in _lines(path))
    assert first == {
        "key": "a\ufffd\U0001f600", "shard": 1, "first_seq": 1, "last_seq": 1, "t_first": 0, "t_last": 0,
        "kind": "confirmed", "is_whole": True,
    }  # fmt: skip
    assert (second["first_seq"], last["written"], last["dropped"]) == (2, 2, 0)


def _status(number):
    return StatusRecord(queue=0, bind_epoch=1, role="primary", state="active", in_flight=0, handled=number, t=1)


_HEADER = JournalHeader("run", "orders", "h", 4, 2, "a", 1, "host", 1, 0)


def test_a_record_that_is_longer_than_a_reader_takes_is_left_out_told_of_once_and_counted(path):
    """A key may be as long as a payload. Of the file with such a record in it nothing that followed was read."""
    writer = RecordWriter(path)
    writer.write(_HEADER)
    dispatch = DispatchRecord(
        queue=0, bind_epoch=1, shard=1, key="k", topic="t", publisher=None, seq=None, message_id=None, delivery_id=1,
        redelivered=False, attempts=1, local_seq=1, receive_mono_ns=1, start_mono_ns=1, done_mono_ns=2, t_done=3,
        t_settle=3, outcome="accepted", size_bytes=1,
    )  # fmt: skip
    with capture_logs() as logs:
        for key in ("k" * 2 * LONGEST_LINE_BYTES, "k", "\x00" * (LONGEST_LINE_BYTES // 6), "l"):
            writer.write(replace(dispatch, key=key))
            writer.flush()
    writer.close(clean=True)
    tables = read_run(path.parent)
    assert tables.dispatches["key"].to_pylist() == ["k", "l"]
    [file] = tables.journals.to_pylist()
    assert (file["defect"], file["dropped"]) == (None, 2)
    assert [(each["event"], each["reason"]) for each in logs] == [
        ("journal_write_failed", f"a record of more than {LONGEST_LINE_BYTES} bytes, as of a very long key")
    ]


def test_a_status_and_the_last_line_have_a_moment_that_no_setting_of_the_wall_clock_moves(path):
    moments = iter(range(1000, 2000))
    writer = RecordWriter(path, now_ns=lambda: next(moments))
    writer.write(_HEADER)
    writer.write(_status(1))
    writer.flush()
    writer.close(clean=True)
    header, status, last = (json.loads(line) for line in _lines(path))
    assert "mono_ns" not in header
    assert 1000 < status["mono_ns"] < last["mono_ns"]
    assert read_file(path, "journal", 0).row(JOURNALS)["last_mono_ns"] == last["mono_ns"]


class Clock:
    """A monotonic clock that stands until it is moved on."""

    now_ns = 0

    def __call__(self):
        return self.now_ns


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_file_that_is_gone_from_its_path_is_told_of_once_and_what_follows_counts_as_dropped(tmp_path, how):
    folder, clock = tmp_path / "journals", Clock()
    folder.mkdir()
    path = folder / "a-1.member.jsonl"
    writer = RecordWriter(path, clock)
    writer.write(_HEADER)
    writer.flush()
    if how == "moved":
        folder.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(folder)
    if how == "replaced":
        folder.mkdir()
        path.write_bytes(b"of somebody else\n")
    with capture_logs() as logs:
        for number in range(3):
            clock.now_ns += LOOK_NS
            writer.write(_status(number))
            writer.flush()
        assert (writer.written, writer.dropped) == (1, 3)
        writer.close(clean=True)
    assert [(log["event"], log["reason"]) for log in logs] == [
        ("journal_write_failed", "the file was removed or moved away")
    ]
    assert how != "replaced" or path.read_bytes() == b"of somebody else\n"
    assert open_below(tmp_path) == []


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_one_that_is_gone(path, monkeypatch):
    clock = Clock()
    writer = RecordWriter(path, clock)
    writer.write(_HEADER)
    clock.now_ns += LOOK_NS

    def refuse(_path):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    writer.flush()
    monkeypatch.undo()
    assert (writer.written, writer.dropped) == (1, 0)
    assert len(path.read_bytes().splitlines()) == 1


def test_a_file_that_is_gone_is_told_of_at_the_close_at_the_latest(path):
    writer = RecordWriter(path, Clock())
    writer.write(_HEADER)
    writer.flush()
    path.unlink()
    with capture_logs() as logs:
        writer.close(clean=True)
    assert [log["event"] for log in logs] == ["journal_write_failed"]


def test_a_file_that_comes_back_is_written_on_and_says_what_is_missing(path, monkeypatch):
    clock = Clock()
    monkeypatch.chdir(path.parent)
    writer = RecordWriter(Path(path.name), clock)
    # A handler may do this, and takes no file away by it.
    monkeypatch.chdir("/")
    writer.write(_HEADER)
    clock.now_ns += LOOK_NS
    writer.flush()
    path.rename(path.with_suffix(".moved"))
    clock.now_ns += LOOK_NS
    writer.write(_status(1))
    writer.flush()
    path.with_suffix(".moved").rename(path)
    clock.now_ns += LOOK_NS
    writer.write(_status(2))
    writer.flush()
    assert (writer.written, writer.dropped) == (2, 1)
    assert [json.loads(line).get("is_whole") for line in _lines(path)] == [False, None]


def test_the_note_is_never_written_into_another_record_than_the_first(path, monkeypatch):
    writer = RecordWriter(path)
    disk = FullDisk(monkeypatch, room=0)
    writer.write(_HEADER)
    writer.flush()
    disk.room = 1_000_000
    records = [_status(number) for number in range(6)]
    for record in records:
        writer.write(record)
        writer.flush()
    disk.room = 0
    writer.write(_status(6))
    writer.flush()
    found = [json.loads(line) for line in _lines(path)]
    assert [{**line, "mono_ns": 0} for line in found] == [{**asdict(record), "mono_ns": 0} for record in records]


def test_a_first_batch_that_fits_in_part_says_at_once_that_something_is_missing(path, monkeypatch):
    writer = RecordWriter(path)
    FullDisk(monkeypatch, room=300)
    writer.write(_HEADER)
    writer.write(_status(1))
    writer.flush()
    assert (writer.written, writer.dropped) == (1, 1)
    assert read_file(path, "journal", 0).row(JOURNALS)["dropped"] == 1


def test_a_note_that_cannot_be_written_is_tried_again_with_the_next_batch(path, monkeypatch):
    writer = RecordWriter(path)
    writer.write(_HEADER)
    writer.flush()
    disk = FullDisk(monkeypatch, room=0)
    real, refusals = os.open, [OSError(errno.EMFILE, "Too many open files")]

    def open_(*arguments):
        if refusals:
            raise refusals.pop()
        return real(*arguments)

    monkeypatch.setattr(os, "open", open_)
    writer.write(_status(1))
    writer.flush()
    assert not refusals
    disk.room = 1_000_000
    writer.write(_status(2))
    writer.flush()
    assert json.loads(_lines(path)[0])["is_whole"] is False


@pytest.mark.parametrize("fault", FAULTS, ids=attrgetter("name"))
def test_whatever_the_disk_refuses_each_record_is_there_once_or_the_file_says_that_some_are_missing(tmp_path, fault):
    for top, disk in each_operation(tmp_path, fault):
        path = top / "p.ledger.jsonl"
        with disk.ill(), capture_logs() as logs:
            try:
                writer = RecordWriter(path, first=LedgerHeader("run", "orders", "h", 4, "crc32", "p", "host", 1, 0))
            except OSError:
                # Whoever asked for the file is told. The next life has a file of another name.
                assert open_below(top) == []
                continue
            for number in (1, 2, 3):
                writer.write(_record(number))
                writer.flush()
        writer.write(_record(4))
        writer.close(clean=True)
        assert open_below(top) == []
        file = read_file(path, "ledger", 0)
        (batch,) = file.batches["confirmed"]
        found, told = batch.column("first_seq").to_pylist(), file.row(LEDGERS)
        assert found == sorted(set(found))
        assert found[-1] == 4
        assert not told["torn"]
        assert (found == [1, 2, 3, 4] and not told["dropped"]) or told["dropped"] or told["defect"]
        assert [log["event"] for log in logs] in ([], ["journal_write_failed"])
        assert len(logs) == (writer.dropped > 0)
