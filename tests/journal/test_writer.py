"""The record file: whole lines, one write per batch, and a count of what a full disk took."""

import errno
import json
import os
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.journal.reader import read_journal
from lbg_runtime.journal.writer import RecordWriter
from lbg_runtime.model.record import ConfirmedRecord, FlowRecord, JournalHeader
from lbg_runtime.validator.schema import JOURNALS


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
    assert read_journal(path, 0).row(JOURNALS)["dropped"] == 0
    disk = FullDisk(monkeypatch, room=40)
    writer.write(_record(1))
    writer.flush()
    assert disk.room == 0
    told = read_journal(path, 0).row(JOURNALS)
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
