"""Owner changes from both sides' records: the giver knows why, the kernel knows the pause, a crash says nothing."""

from dataclasses import replace

import pyarrow as pa
import pytest

from lbg_runtime.model.record import OwnerRecord
from lbg_runtime.validator.findings import Move
from lbg_runtime.validator.moves import OwnerChange, find_owner_changes
from lbg_runtime.validator.schema import OWNERS, STRIPES, RunTables
from tests.validator.history import story
from tests.validator.run_files import MS, Run, wall_us

A, B = 0, 1
"""Rows of two journals of the story, whose members are told by `names`."""


Row = dict[str, object]


def record(journal: int, event: str, at_ms: int, *, epoch: int = 1, queue: int = 0, **facts: object) -> Row:
    common: Row = {"move_id": None, "from_member": None, "to_member": None, "is_leaving": False}
    if event == "taken":
        common |= {"cause": "elected", "decided_by": "broker", "drain_ms": None}
    moment = {"t": wall_us(at_ms * MS), "mono_ns": at_ms * MS}
    place = {"journal": journal, "queue": queue, "bind_epoch": epoch, "event": event}
    return {**common, **moment, **place, **facts}


def tables(*records: Row, unclean: bool = False) -> RunTables:
    """The files of a story that had exactly these owner changes, and handled nothing."""
    run: Run = story()
    whole = run.tables()
    journals = whole.journals.to_pylist()
    for journal in journals:
        journal |= {"torn": unclean, "clean": not unclean}
    return replace(
        whole,
        dispatches=whole.dispatches.slice(0, 0),
        flows=whole.flows.slice(0, 0),
        journals=pa.Table.from_pylist(journals, whole.journals.schema),
        owners=pa.Table.from_pylist(list(records), OWNERS),
    )


def names() -> tuple[str, str]:
    found = tables().journals.column("member").to_pylist()
    return found[A], found[B]


def only(found: list[OwnerChange]) -> OwnerChange:
    (change,) = [one for one in found if one.cause != "first"]
    return change


def test_every_column_is_a_field_of_the_record() -> None:
    fields = set(OwnerRecord.__dataclass_fields__)
    assert {name for name in OWNERS.names if name != "journal"} <= fields


def test_what_the_giver_recorded_explains_the_change() -> None:
    facts = {"move_id": "a/1", "cause": "handback", "decided_by": "offer"}
    found = find_owner_changes(
        tables(
            record(A, "taken", 0),
            record(A, "given", 100, drain_ms=60, is_leaving=True, **facts),
            record(B, "taken", 101, **facts),
        ),
        [],
    )
    first, second = names()
    assert [(one.from_member, one.to_member, one.cause) for one in found] == [
        (None, first, "first"),
        (first, second, "handback"),
    ]
    change = only(found)
    assert (change.move_id, change.decided_by, change.is_leaving, change.drain_ms) == ("a/1", "offer", True, 60)
    assert (change.pause_ms, change.duplicates) == (None, 0)


def test_an_owner_that_died_left_no_record_and_is_told_as_a_crash() -> None:
    # An offer that was accepted came to nothing when its giver died.
    taken = record(B, "taken", 50, cause="handback", decided_by="offer", move_id="a/1", from_member="x")
    found = find_owner_changes(tables(record(A, "taken", 0), taken, unclean=True), [])
    change = only(found)
    assert (change.cause, change.decided_by, change.from_member, change.drain_ms) == (
        "crash",
        "broker",
        names()[0],
        None,
    )


def test_an_owner_whose_journal_says_nothing_of_the_end_is_unknown() -> None:
    assert only(find_owner_changes(tables(record(A, "taken", 0), record(B, "taken", 50)), [])).cause == "unknown"


def test_an_owner_without_a_journal_is_named_as_the_taker_heard_of_it() -> None:
    (change,) = find_owner_changes(tables(record(B, "taken", 50, from_member="stranger")), [])
    assert (change.from_member, change.cause, change.decided_by) == ("stranger", "unknown", "broker")


def test_who_names_another_giver_is_not_joined_with_the_last_one_that_is_recorded() -> None:
    given = {"cause": "handback", "decided_by": "offer", "move_id": "a/1", "to_member": "full", "drain_ms": 50}
    taken = {"cause": "handback", "decided_by": "offer", "move_id": "full/1", "from_member": "full"}
    records = [record(A, "taken", 0), record(A, "given", 10, **given), record(B, "taken", 34_000, **taken)]
    change = only(find_owner_changes(tables(*records), []))
    assert (change.from_member, change.cause, change.decided_by, change.move_id) == (
        "full",
        "unknown",
        "offer",
        "full/1",
    )
    assert (change.drain_ms, change.pause_ms) == (None, None)


@pytest.mark.parametrize("agrees", ["giver names taker", "taker names giver", "giver has no move", "taker has no move"])
def test_who_agrees_in_anything_is_joined_with_the_last_giver_that_is_recorded(agrees: str) -> None:
    giver, taker = names()
    given = {"cause": "handback", "decided_by": "offer", "move_id": "a/1", "to_member": "full", "drain_ms": 50}
    taken = {"cause": "handback", "decided_by": "offer", "move_id": "full/1", "from_member": "full"}
    match agrees:
        case "giver names taker":
            given["to_member"] = taker
        case "taker names giver":
            taken["from_member"] = giver
        case "giver has no move":
            given["move_id"] = None
        case _:
            taken["move_id"] = None
    records = [record(A, "taken", 0), record(A, "given", 10, **given), record(B, "taken", 20, **taken)]
    change = only(find_owner_changes(tables(*records), []))
    assert (change.from_member, change.cause, change.drain_ms) == (giver, "handback", 50)


def test_the_changes_of_several_hosts_are_in_the_order_of_their_wall_clocks() -> None:
    run = tables(record(A, "taken", 100), record(B, "taken", 7_000))
    journals = run.journals.to_pylist()
    for number, (host, offset_ms) in {A: ("one", 9_000), B: ("two", 0)}.items():
        journals[number] |= {"host": host, "boot_id": host, "wall_offset_ns": offset_ms * MS}
    apart = replace(run, journals=pa.Table.from_pylist(journals, run.journals.schema))
    first, second = names()
    assert [one.to_member for one in find_owner_changes(run, [])] == [first, second]
    assert [one.to_member for one in find_owner_changes(apart, [])] == [second, first]


def test_what_was_given_alone_is_no_change() -> None:
    given = record(A, "given", 10, cause="rebind", decided_by="cycle", drain_ms=0)
    assert find_owner_changes(tables(given), []) == []


def test_a_queue_that_comes_back_to_the_same_life_is_no_change() -> None:
    given = record(A, "given", 10, cause="rebind", decided_by="cycle", drain_ms=0)
    found = find_owner_changes(tables(record(A, "taken", 0), given, record(A, "taken", 20, epoch=2)), [])
    assert [one.cause for one in found] == ["first"]


def test_a_queue_that_was_removed_and_made_anew_has_a_first_owner_again() -> None:
    run = tables(record(A, "taken", 0, queue=5), record(B, "taken", 900, queue=5))
    place = {"journal": A, "queue": 0, "bind_epoch": 1, "shard": None, "t": 0}
    facts = [
        {"event": event, "generation": generation, "from_count": before, "to_count": after, "mono_ns": at_ms * MS}
        for event, generation, before, after, at_ms in (
            ("planned", 1, 6, 3, 100),
            ("finished", 1, 6, 3, 200),
            ("planned", 2, 3, 6, 800),
        )
    ]
    striped = replace(run, stripes=pa.Table.from_pylist([place | fact for fact in facts], STRIPES))

    assert [one.cause for one in find_owner_changes(run, [])] == ["first", "unknown"]
    assert [(one.from_member, one.cause) for one in find_owner_changes(striped, [])] == [(None, "first")] * 2


def test_the_pause_is_that_of_the_kernel_where_both_handled() -> None:
    run = tables(record(A, "taken", 0), record(B, "taken", 50, epoch=7))
    incarnation = run.journals.column("incarnation").to_pylist()[B]
    first, second = names()
    move = Move(0, first, second, "crash", 42, 60 * MS, to_incarnation=incarnation, to_epoch=7)
    assert only(find_owner_changes(run, [move])).pause_ms == 42
    for other in (
        replace(move, to_epoch=8),
        replace(move, queue=1),
        replace(move, to_incarnation=incarnation + 1),
        # Somebody between the two handled nothing: the pause is not this change's.
        replace(move, from_member="another"),
    ):
        assert only(find_owner_changes(run, [other])).pause_ms is None


def test_duplicates_are_counted_where_they_were_handled() -> None:
    run = story()
    whole = run.tables()
    dispatches = whole.dispatches.to_pylist()
    sample = next(row for row in dispatches if row["journal"] == A and row["seq"] is not None)
    again = {**sample, "journal": B, "bind_epoch": 1, "redelivered": True}
    for name in ("receive_mono_ns", "start_mono_ns", "done_mono_ns"):
        again[name] = sample[name] + 10_000_000 * MS
    owners = [
        record(A, "taken", 0, queue=sample["queue"], epoch=sample["bind_epoch"]),
        record(B, "taken", 10_000_000, queue=sample["queue"], epoch=1),
    ]
    changed = replace(
        whole,
        dispatches=pa.Table.from_pylist([sample, again], whole.dispatches.schema),
        owners=pa.Table.from_pylist(owners, OWNERS),
    )
    assert only(find_owner_changes(changed, [])).duplicates == 1


def test_runs_without_such_records_have_no_changes() -> None:
    assert find_owner_changes(story().tables(), []) == []
