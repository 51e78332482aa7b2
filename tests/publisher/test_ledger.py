"""Ranges are merged per key, and never say more than was confirmed."""

import os
import time
from pathlib import Path

import orjson
import pytest

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.record import UnconfirmedRecord
from lbg_runtime.publisher.ledger import open_ledger
from tests.publisher.conftest import LedgerFile


def test_the_header_is_on_disk_before_the_first_message(ledger_file: LedgerFile) -> None:
    assert [line["publisher"] for line in ledger_file.lines("ledger")] == ["p"]


def test_who_is_killed_before_the_header_is_written_leaves_no_file(
    shape: GroupShape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_file: int, _data: bytes) -> int:
        raise SystemExit

    with monkeypatch.context() as dying:
        dying.setattr(os, "write", killed)
        with pytest.raises(SystemExit):
            open_ledger(tmp_path, shape, HashFunction.CRC32, publisher_id="p")
    assert list(tmp_path.iterdir()) == []


def test_messages_in_a_row_become_one_range(ledger_file: LedgerFile) -> None:
    for sequence in (1, 2, 3):
        ledger_file.ledger.confirmed("k", 7, sequence, 100 + sequence)
    ledger_file.ledger.flush()
    (line,) = ledger_file.lines("confirmed")
    assert (line["key"], line["shard"], line["first_seq"], line["last_seq"]) == ("k", 7, 1, 3)
    assert (line["t_first"], line["t_last"]) == (101, 103)


def test_keys_do_not_mix(ledger_file: LedgerFile) -> None:
    for key, sequence in (("a", 1), ("b", 1), ("a", 2)):
        ledger_file.ledger.confirmed(key, 0, sequence, 0)
    ledger_file.ledger.flush()
    assert sorted(ledger_file.ranges()) == [("a", 1, 2), ("b", 1, 1)]


def test_a_gap_starts_another_range(ledger_file: LedgerFile) -> None:
    for sequence in (1, 2, 4):
        ledger_file.ledger.confirmed("k", 0, sequence, 0)
    ledger_file.ledger.flush()
    assert ledger_file.ranges() == [("k", 1, 2), ("k", 4, 4)]


def test_a_range_goes_on_in_a_new_line_after_a_flush(ledger_file: LedgerFile) -> None:
    ledger_file.ledger.confirmed("k", 0, 1, 0)
    ledger_file.ledger.flush()
    ledger_file.ledger.confirmed("k", 0, 2, 0)
    ledger_file.ledger.flush()
    assert ledger_file.ranges() == [("k", 1, 1), ("k", 2, 2)]


def test_what_is_held_is_bounded(ledger_file: LedgerFile) -> None:
    for sequence in range(1, 10_003):
        ledger_file.ledger.confirmed("k", 0, sequence, 0)
    assert ledger_file.ranges() == [("k", 1, 10_000)]


def test_an_unconfirmed_message_is_on_disk_at_once(ledger_file: LedgerFile) -> None:
    ledger_file.ledger.unconfirmed(UnconfirmedRecord("k", 3, 1, "refused", "Spool Over Quota", 5))
    (line,) = ledger_file.lines("unconfirmed")
    assert (line["key"], line["seq"], line["fate"], line["reason"]) == ("k", 1, "refused", "Spool Over Quota")


def test_closing_writes_what_is_held_and_the_last_line(ledger_file: LedgerFile) -> None:
    ledger_file.ledger.confirmed("k", 0, 1, 0)
    ledger_file.ledger.close(clean=True)
    (line,) = ledger_file.lines("close")
    assert (line["written"], line["dropped"], line["clean"]) == (2, 0, True)


def test_a_ledger_is_for_one_life(shape: GroupShape, tmp_path: Path) -> None:
    open_ledger(tmp_path, shape, HashFunction.CRC32, publisher_id="p").close(clean=True)
    with pytest.raises(UserError, match=r"p\.ledger\.jsonl"):
        open_ledger(tmp_path, shape, HashFunction.CRC32, publisher_id="p")


def test_a_folder_that_cannot_be_made_is_told_in_one_line(shape: GroupShape, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, what in ((tmp_path / "file" / "folder", "Not a directory"), (tmp_path / "file", "File exists")):
        with pytest.raises(UserError) as told:
            open_ledger(folder, shape, HashFunction.CRC32, publisher_id="p")
        assert str(told.value).startswith(f"ledger: {folder}: {what}; expected "), "and no file in it"


def test_the_header_tells_the_group_the_hash_and_the_run(
    shape: GroupShape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBG_RUN_ID", "r")
    before_us = time.time_ns() // 1_000
    ledger = open_ledger(tmp_path / "new" / "run", shape, HashFunction.JAVA_STRING, publisher_id="p")
    header = orjson.loads(ledger.path.read_bytes())
    ledger.close(clean=True)
    assert header["kind"] == "ledger"
    assert (header["run_id"], header["publisher"]) == ("r", "p")
    assert (header["group"], header["hash_prefix"], header["hash_count"]) == ("orders", "o", 100)
    assert header["hash_function"] == "java_string"
    assert before_us <= header["t_start"] <= time.time_ns() // 1_000
