"""Ranges are merged per key, and never say more than was confirmed."""

from lbg_runtime.model.record import UnconfirmedRecord
from tests.publisher.conftest import LedgerFile


def test_the_header_is_on_disk_before_the_first_message(ledger_file: LedgerFile) -> None:
    assert [line["publisher"] for line in ledger_file.lines("ledger")] == ["p"]


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
    for sequence in range(1, 10_001):
        ledger_file.ledger.confirmed("k", 0, sequence, 0)
    assert ledger_file.ledger.held == 0
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
