"""Record files to tables: what the writer leaves is read whole, what a crash leaves is torn, all else is a defect.

More than 400 lines, as all of it is about one reader.
"""

import errno
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.journal import reader
from lbg_runtime.journal.follow import RunFollower
from lbg_runtime.journal.layout import find_run, lay_out, record_files
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.record import CloseRecord, OwnerRecord, PauseRecord, StatusRecord
from lbg_runtime.pipeline.parts import validate_locally
from lbg_runtime.validator.findings import VerdictKind
from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.schema import RunTables
from tests.validator.history import runs, story
from tests.validator.run_files import Journal, Run
from tests.validator.script import Life
from tests.validator.striping import striped_runs, striped_story


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of a correct run; the first journal is whole, the first ledger too."""
    run = story()
    run.journals.sort(key=lambda journal: journal.close is None)
    run.write(tmp_path)
    return tmp_path


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def rows(table: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = table.to_pylist()  # type: ignore[attr-defined]
    return sorted(found, key=repr)


def assert_equal(one: RunTables, other: RunTables) -> None:
    for name in ("dispatches", "flows", "stripes", "confirmed", "unconfirmed", "ledgers"):
        found, expected = getattr(one, name), getattr(other, name)
        place = found.schema.get_field_index("file")
        if place >= 0:
            found, expected = found.remove_column(place), expected.remove_column(place)
        assert rows(found) == rows(expected)
    for found, expected in zip(one.journals.to_pylist(), other.journals.to_pylist(), strict=True):
        assert found.pop("file") != expected.pop("file")
        # Derived from wall stamps, which are cut to microseconds.
        moments = [(found.pop(name), expected.pop(name)) for name in ("last_mono_ns", "wall_offset_ns")]
        if moments[1][0] is None:
            # Nothing but the close: no record of a law, so no moment of it on two clocks, and no word on the group.
            moments.pop()
            if found["torn"] is False:
                expected |= dict.fromkeys(("group", "hash_prefix", "hash_count", "queue_count", "backend"))
        assert all(abs(moment - expected_moment) <= 2000 for moment, expected_moment in moments)
        assert found == expected


@pytest.mark.parametrize("block_bytes", [1, 100, 4096, 1 << 20])
def test_the_files_of_a_run_become_its_tables_whatever_the_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(reader, "_BLOCK_BYTES", block_bytes)
    run = story()
    run.write(tmp_path)

    tables = read_run(tmp_path)

    assert_equal(tables, run.tables())
    assert validate(tables).kind is VerdictKind.VALID


def test_when_a_member_stood_still_is_known_of_its_file(tmp_path: Path) -> None:
    run = story()
    run.journals[0].records += [PauseRecord(3, 5, 0), PauseRecord(7, 11, 0)]
    run.journals[1].records.append(PauseRecord(5, 3, 0))
    run.write(tmp_path)

    journals = read_run(tmp_path).journals

    assert journals.column("pauses").to_pylist()[:2] == ["3:5 7:11", None]
    assert "a pause record with a missing or impossible value" in journals.column("defect").to_pylist()[1]


@pytest.mark.parametrize("moments", ['"from_mono_ns":"3","to_mono_ns":5', '"from_mono_ns":3', '"to_mono_ns":5'])
def test_a_standstill_without_its_moments_is_a_defect(tmp_path: Path, moments: str) -> None:
    run = story()
    run.journals[0].records.append(PauseRecord(3, 5, 0))
    run.write(tmp_path)
    path = min(tmp_path.glob("*.member.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"from_mono_ns":3,"to_mono_ns":5', moments.encode()))

    defect = read_run(tmp_path).journals.column("defect").to_pylist()[0]

    assert "a pause record with a missing or impossible value" in defect


def test_owner_changes_become_a_table_and_leave_the_verdict_as_it_is(tmp_path: Path) -> None:
    run = story()
    taken = OwnerRecord(1, 2, "taken", None, None, "a", "elected", "broker", False, None, None, 0, 5_000, 5_000_000)
    given = replace(taken, event="given", move_id="m/1", cause="handback", decided_by="offer", drain_ms=3, held_ms=9)
    # Of records that no law reads, an impossible value is left out.
    odd = replace(given, move_id="m/2", asked_mono_ns="soon")  # type: ignore[arg-type]
    told = replace(given, move_id="m/3", asked_mono_ns=4_000_000)
    run.journals[0].records = [taken, *run.journals[0].records, given, odd, told]
    run.write(tmp_path)

    tables = read_run(tmp_path)

    assert [(row["event"], row["move_id"], row["drain_ms"]) for row in tables.owners.to_pylist()] == [
        ("taken", None, None),
        ("given", "m/1", 3),
        ("given", "m/2", 3),
        ("given", "m/3", 3),
    ]
    assert validate(tables).kind is VerdictKind.VALID
    journal = tables.journals.to_pylist()[0]
    assert (journal["named"], journal["given"], journal["taken"]) == ('["a"]', '{"m/3":4000000}', None)


def test_records_of_restripings_become_a_table(tmp_path: Path) -> None:
    run = striped_story(8, 12, 6)
    run.write(tmp_path)

    tables = read_run(tmp_path)

    assert_equal(tables, run.tables())
    assert {row["shard"] for row in tables.stripes.to_pylist() if row["event"] == "planned"} == {None}
    assert validate(tables).kind is VerdictKind.VALID


def test_a_journal_whose_last_record_is_of_a_restriping_goes_up_to_its_moment(tmp_path: Path) -> None:
    life = Life(Run(), "a").flow("active", 1).stripes("left", 5000, shard=1)
    run = Run(journals=[life.journal])
    run.write(tmp_path)

    (journal,) = read_run(tmp_path).journals.to_pylist()

    assert journal["last_mono_ns"] == run.tables().journals.to_pylist()[0]["last_mono_ns"]


@pytest.mark.parametrize("facts", [{"queue": -1}, {"generation": "1"}, {"to_count": None}, {"shard": 1.5}])
def test_an_impossible_record_of_a_restriping_is_a_defect_and_the_others_still_count(
    tmp_path: Path, facts: dict[str, object]
) -> None:
    run = striped_story(8, 12, 6)
    run.write(tmp_path)
    path = tmp_path / "00.member.jsonl"
    lines = lines_of(path)
    place = next(place for place, line in enumerate(lines) if b'"stripes"' in line)
    path.write_bytes(b"".join(changed(place, **facts)(lines)))

    tables = read_run(tmp_path)

    expected = f"line {place + 1}: a stripes record with a missing or impossible value"
    assert tables.journals.to_pylist()[0]["defect"] == expected
    assert tables.stripes.num_rows == run.tables().stripes.num_rows - 1
    assert validate(tables).kind is not VerdictKind.VALID


@given(run=st.one_of(runs(), striped_runs()))
@settings(deadline=None, max_examples=15)
def test_a_correct_run_is_valid_through_its_files(tmp_path_factory: pytest.TempPathFactory, run: Run) -> None:
    folder = tmp_path_factory.mktemp("run")
    run.write(folder)

    found, expected = validate(read_run(folder)), validate(run.tables())
    # The first record of a file tells the clocks' distance, to a microsecond.
    assert abs(found.wall_ns - expected.wall_ns) < 1_000
    assert replace(found, wall_ns=expected.wall_ns) == expected


@given(run=st.one_of(runs(), striped_runs()), data=st.data())
@settings(deadline=None, max_examples=25)
def test_a_journal_cut_anywhere_never_raises_and_is_never_whole(
    tmp_path_factory: pytest.TempPathFactory, run: Run, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    run.write(folder)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    whole = path.read_bytes()
    # Without its line feed alone, the last record is still all there.
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])

    tables = read_run(folder)

    files = tables.journals if path.name.endswith(".member.jsonl") else tables.ledgers
    (row,) = [row for row in files.to_pylist() if row["file"] == path.name]
    assert row["torn"]
    assert row["defect"] in (None, "the file is empty", "the header was cut off")
    if path.name.endswith(".ledger.jsonl"):
        assert validate(tables).kind is not VerdictKind.VALID


def test_a_cut_last_line_makes_a_journal_torn_and_nothing_else(folder: Path) -> None:
    path = folder / "00.member.jsonl"
    whole = read_run(folder)
    *kept, last, _ = lines_of(path)
    path.write_bytes(b"".join(kept) + last[:-20])

    tables = read_run(folder)

    first = tables.journals.to_pylist()[0]
    assert first["torn"]
    assert first["defect"] is None
    assert tables.dispatches.num_rows + tables.flows.num_rows == whole.dispatches.num_rows + whole.flows.num_rows - 1


def test_a_last_record_counts_that_lacks_only_its_line_feed(folder: Path) -> None:
    whole = read_run(folder)
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert read_run(folder) == whole


@pytest.mark.parametrize("block_bytes", [300, 1 << 20])
def test_a_journal_is_dated_by_what_its_clocks_showed_first_however_much_is_read_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(reader, "_BLOCK_BYTES", block_bytes)
    path = folder / "00.member.jsonl"
    before = read_run(folder).journals.to_pylist()[0]["wall_offset_ns"]
    rows_of_law = 0
    lines = []
    for row in map(orjson.loads, lines_of(path)):
        clock = {"dispatch": "t_done", "flow": "t"}.get(row["kind"])
        if clock is not None:
            row[clock] += 3_600_000_000 * (rows_of_law > 0)
            rows_of_law += 1
        lines.append(orjson.dumps(row) + b"\n")
    path.write_bytes(b"".join(lines))
    assert rows_of_law > 1
    assert read_run(folder).journals.to_pylist()[0]["wall_offset_ns"] == before


def test_a_last_line_of_rubbish_is_a_torn_end_too(folder: Path) -> None:
    path = folder / "00.member.jsonl"
    path.write_bytes(b"".join(lines_of(path)[:-1]) + b"\0\0\0\0\n")

    first = read_run(folder).journals.to_pylist()[0]

    assert (first["torn"], first["defect"]) == (True, None)


def corrupt_the_middle(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], b'{"kind":"dispa\n', *lines[5:]]


def insert_a_blank_line(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], b"\n", *lines[4:]]


def join_two_records(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], lines[4].rstrip() + b"," + lines[5], b"\xff\n", *lines[6:]]


def remove_a_line(lines: list[bytes]) -> list[bytes]:
    return lines[:4] + lines[5:]


def add_after_the_close(lines: list[bytes]) -> list[bytes]:
    return [*lines, lines[4]]


def remove_the_header(lines: list[bytes]) -> list[bytes]:
    return lines[1:]


def empty(lines: list[bytes]) -> list[bytes]:
    return []


def changed(place: int, **facts: object) -> Callable[[list[bytes]], list[bytes]]:
    def change(lines: list[bytes]) -> list[bytes]:
        row = orjson.loads(lines[place]) | facts
        return [*lines[:place], orjson.dumps(row) + b"\n", *(lines[place + 1 :] if place != -1 else [])]

    return change


def without(place: int, name: str) -> Callable[[list[bytes]], list[bytes]]:
    def change(lines: list[bytes]) -> list[bytes]:
        row = orjson.loads(lines[place])
        del row[name]
        return [*lines[:place], orjson.dumps(row) + b"\n", *lines[place + 1 :]]

    return change


@pytest.mark.parametrize(
    ("damage", "defect"),
    [
        (corrupt_the_middle, "line 5: not a record"),
        (insert_a_blank_line, "line 5: not a record"),
        (join_two_records, "line 5: not a record"),
        (remove_a_line, "but the close counts"),
        (add_after_the_close, "a record after the close"),
        (remove_the_header, "the first line is no"),
        (empty, "the file is empty"),
        (changed(0, schema=2), "schema 2, but this version reads schema 1"),
        (changed(0, run_id=7), "the header has no usable run_id"),
        (without(0, "hash_count"), "the header has no usable hash_count"),
        (changed(0, backend="shared"), "the header has no usable backend"),
        (changed(0, boot_id=7), "the header has no usable boot_id"),
        (changed(0, hash_count=0), "the header has no usable hash_count"),
        (changed(0, hash_count=1 << 31), "the header has no usable hash_count"),
        (changed(4, kind="dream"), "line 5: an unexpected record of kind 'dream'"),
        (changed(4, kind=None), "line 5: not a record"),
        (without(-1, "dropped"), "a close without counts"),
        (changed(-1, dropped=1 << 63), "a close without counts"),
    ],
)
@pytest.mark.parametrize("name", ["00.member.jsonl", "00.ledger.jsonl"])
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_what_no_crash_leaves_is_a_defect_and_the_verdict_is_not_valid(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[list[bytes]], list[bytes]],
    defect: str,
    name: str,
    block_bytes: int,
) -> None:
    monkeypatch.setattr(reader, "_BLOCK_BYTES", block_bytes)
    path = folder / name
    path.write_bytes(b"".join(damage(lines_of(path))))

    tables = read_run(folder)

    files = tables.journals if name.endswith(".member.jsonl") else tables.ledgers
    assert defect in str(files.to_pylist()[0]["defect"])
    assert validate(tables).kind is not VerdictKind.VALID


@pytest.mark.parametrize("kind", ["status", "pause"])
def test_what_members_record_of_themselves_is_a_defect_of_a_ledger(folder: Path, kind: str) -> None:
    path = folder / "00.ledger.jsonl"
    path.write_bytes(b"".join(changed(4, kind=kind, from_mono_ns=3, to_mono_ns=5)(lines_of(path))))

    found = read_run(folder).ledgers.to_pylist()[0]["defect"]

    assert found == f"line 5: an unexpected record of kind {kind!r}"


@pytest.mark.parametrize("header", [{"schema": 2}, {"run_id": 7}])
def test_of_a_file_whose_header_cannot_be_used_no_record_counts(folder: Path, header: dict[str, object]) -> None:
    """They may mean something else."""
    before = read_run(folder)
    path = folder / "00.member.jsonl"
    path.write_bytes(b"".join(changed(0, **header)(lines_of(path))))

    tables = read_run(folder)

    for name in ("dispatches", "flows"):
        found, left = (set(getattr(each, name).column("journal").to_pylist()) for each in (before, tables))
        assert (found - left, left - found) == ({0}, set())


def test_of_a_missing_line_both_counts_are_told(folder: Path) -> None:
    path = folder / "00.member.jsonl"
    lines = lines_of(path)
    path.write_bytes(b"".join(remove_a_line(lines)))

    count = len(lines) - 2
    assert f"00.member.jsonl: {count} records, but the close counts {count + 1}" in validate(read_run(folder)).reasons


def test_of_a_torn_file_that_is_not_whole_at_least_one_record_is_said_to_be_missing(folder: Path) -> None:
    path = folder / "00.member.jsonl"
    path.write_bytes(b"".join(changed(0, is_whole=False)(lines_of(path))[:-1]))

    verdict = validate(read_run(folder))

    assert "00.member.jsonl: at least 1 records were dropped" in verdict.reasons
    assert verdict.kind is VerdictKind.UNKNOWN


@pytest.mark.parametrize(
    "facts", [{"queue_count": 0}, {"queue_count": -1}, {"queue_count": 1 << 31}, {"incarnation": 1 << 63}]
)
def test_a_journal_of_no_possible_group_is_a_defect(folder: Path, facts: dict[str, object]) -> None:
    path = folder / "00.member.jsonl"
    path.write_bytes(b"".join(changed(0, **facts)(lines_of(path))))

    [journal, *_] = read_run(folder).journals.to_pylist()

    assert journal["defect"] == f"the header has no usable {next(iter(facts))}"
    assert journal["queue_count"] is None


@pytest.mark.parametrize(
    "facts",
    [
        {"queue": -1},
        {"queue": "1"},
        {"queue": None},
        {"queue": 1 << 40},
        {"start_mono_ns": 1e30},
        {"seq": (1 << 63) - 1},
        {"seq": 1 << 63},
        {"key": 5},
        {"redelivered": "yes"},
        {"t_done": 1.5},
        {"t_done": 1 << 60},
        {"t_done": -1},
        {"done_mono_ns": 1},
        {},
    ],
)
def test_a_record_that_lacks_a_value_or_has_an_impossible_one_is_a_defect_and_the_others_still_count(
    folder: Path, facts: dict[str, object]
) -> None:
    path = folder / "00.member.jsonl"
    before = read_run(folder).dispatches.num_rows
    lines = lines_of(path)
    place = next(place for place, line in enumerate(lines) if b'"dispatch"' in line)
    damage = changed(place, **facts) if facts else without(place, "seq")
    path.write_bytes(b"".join(damage(lines)))

    tables = read_run(folder)

    expected = f"line {place + 1}: a dispatch record with a missing or impossible value"
    assert tables.journals.to_pylist()[0]["defect"] == expected
    assert tables.dispatches.num_rows == before - 1


def test_a_host_may_have_been_up_for_years(folder: Path) -> None:
    years_ns = 10 * 365 * 86_400 * 10**9
    for path in folder.glob("*.member.jsonl"):
        rows = [orjson.loads(line) for line in lines_of(path)]
        later = [
            {name: fact + years_ns if name.endswith("mono_ns") else fact for name, fact in row.items()} for row in rows
        ]
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in later))

    after = read_run(folder)

    assert after.journals.column("defect").null_count == len(after.journals)
    assert validate(after).kind is VerdictKind.VALID


def test_a_confirmation_of_numbers_in_reverse_is_a_defect(folder: Path) -> None:
    path = folder / "00.ledger.jsonl"
    lines = lines_of(path)
    place = next(place for place, line in enumerate(lines) if b'"confirmed"' in line)
    path.write_bytes(b"".join(changed(place, last_seq=orjson.loads(lines[place])["first_seq"] - 1)(lines)))

    [ledger, *_] = read_run(folder).ledgers.to_pylist()

    assert ledger["defect"] == f"line {place + 1}: a confirmed record with a missing or impossible value"


def refused(run: Run) -> Journal:
    """The journal of a member that came with other settings and left at once, as the group has others."""
    header = replace(run.journals[0].header, member="refused", incarnation=99, hash_count=7, queue_count=5)
    status = StatusRecord(queue=0, bind_epoch=0, role="secondary", state="unbound", in_flight=0, handled=0, t=5)
    return Journal(header, [status], CloseRecord(written=2, dropped=0, clean=True, t=6))


def test_a_member_that_was_refused_at_its_start_leaves_the_verdict_of_the_others_as_it_is(tmp_path: Path) -> None:
    run = story()
    others = validate(run.tables())
    run.journals.append(refused(run))
    run.write(tmp_path)

    tables = read_run(tmp_path)

    assert (validate(tables).kind, validate(tables).reasons) == (others.kind, ()) == (VerdictKind.VALID, ())
    assert tables.journals["queue_count"].null_count == 1
    assert validate_locally(lay_out(tmp_path, tmp_path / "laid"), 1_500).kind is VerdictKind.VALID


@pytest.mark.parametrize("what", ["had a flow", "was killed", "dropped a record"])
def test_other_settings_of_a_member_that_may_have_been_at_work_make_the_verdict_unknown(
    tmp_path: Path, what: str
) -> None:
    run = story()
    stranger = refused(run)
    if what == "had a flow":
        stranger.records.append(run.journals[0].flows[0])
        stranger.close = replace(stranger.close or CloseRecord(0, 0, True, 0), written=3)
    else:
        stranger.close = None if what == "was killed" else CloseRecord(written=2, dropped=1, clean=True, t=6)
    run.journals.append(stranger)
    run.write(tmp_path)

    verdict = validate(read_run(tmp_path))

    assert verdict.kind is VerdictKind.UNKNOWN
    assert any("disagree on hash_count" in reason for reason in verdict.reasons)


def test_status_records_move_only_the_last_moment(tmp_path: Path) -> None:
    run = story()
    journal = next(journal for journal in run.journals if journal.close is None and journal.records)
    number = run.journals.index(journal)
    run.write(tmp_path)
    before = read_run(tmp_path).journals.to_pylist()[number]
    later = before["last_mono_ns"] + 5_000_000_000
    status = {"kind": "status", "queue": 0, "bind_epoch": 1, "role": "primary", "state": "active", "mono_ns": later}
    with (tmp_path / f"{number:02}.member.jsonl").open("ab") as stream:
        stream.write(orjson.dumps(status) + b"\n")

    after = read_run(tmp_path).journals.to_pylist()[number]

    assert after["defect"] is None
    assert after == before | {"last_mono_ns": later}


@pytest.mark.parametrize("ahead_s", [-3600, 60, 3600])
@pytest.mark.parametrize("is_old", [False, True])
def test_a_wall_clock_that_is_set_moves_no_end_of_a_life(folder: Path, ahead_s: int, is_old: bool) -> None:
    """Statuses and closes of older versions have the wall clock alone."""
    paths = sorted(folder.glob("*.member.jsonl"))
    for path in paths:
        rows = [orjson.loads(line) for line in lines_of(path)]
        for row in rows:
            if row["kind"] in ("status", "close") and is_old:
                del row["mono_ns"]
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    before = read_run(folder)
    for path in paths:
        rows = [orjson.loads(line) for line in lines_of(path)]
        for row in rows:
            if row["kind"] in ("status", "close"):
                row["t"] += ahead_s * 1_000_000
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))

    after = read_run(folder)

    assert after == before
    assert validate(after).kind is VerdictKind.VALID


@pytest.mark.parametrize("moment", [1 << 63, -(1 << 61), 1.5, True, "late", None])
def test_a_clock_that_no_machine_shows_moves_nothing(folder: Path, moment: object) -> None:
    path = folder / "00.member.jsonl"
    before = read_run(folder).journals.to_pylist()[0]
    lines = lines_of(path)
    status = orjson.dumps({"kind": "status", "t": moment, "mono_ns": moment}) + b"\n"
    close = orjson.loads(lines[-1])
    close = orjson.dumps(close | {"written": close["written"] + 1}) + b"\n"
    path.write_bytes(b"".join([*lines[:4], status, *lines[4:-1], close]))

    assert read_run(folder).journals.to_pylist()[0] == before


def test_what_is_wrong_first_is_told_however_much_is_read_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "00.member.jsonl"
    lines = lines_of(path)
    path.write_bytes(b"".join([*lines[:4], b'{"kind":"dream"}\n', *lines[4:7], b"no record\n", *lines[7:]]))
    for block_bytes in (1 << 20, 300):
        monkeypatch.setattr("lbg_runtime.journal.reader._BLOCK_BYTES", block_bytes)
        assert read_run(folder).journals.to_pylist()[0]["defect"] == "line 5: an unexpected record of kind 'dream'"


def test_other_files_are_left_alone(folder: Path) -> None:
    (folder / "notes.txt").write_text("not a record")
    (folder / "broker.jsonl").write_text("not a record either")

    assert validate(read_run(folder)).kind is VerdictKind.VALID


def test_a_file_that_is_no_text_at_all_is_not_taken_into_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(reader, "LONGEST_LINE_BYTES", 5000)
    (folder / "00.member.jsonl").write_bytes(b"\x00" * 100_000)

    assert read_run(folder).journals.to_pylist()[0]["defect"] == "line 1: not a record"


def test_the_bytes_of_a_file_name_that_are_no_text_are_escaped(folder: Path) -> None:
    """No table could have them: the name of a member, written by a host with another encoding, was a traceback."""
    name = os.fsdecode(b"m\xfc.member.jsonl")
    (folder / "00.member.jsonl").rename(folder / name)

    tables = read_run(folder)

    assert tables.journals.column("file").to_pylist()[-1] == r"m\xfc.member.jsonl"
    assert validate(tables).kind is VerdictKind.VALID


def test_a_missing_directory_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file or directory"):
        read_run(tmp_path / "nowhere")


def test_so_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.member.jsonl").touch()
    with pytest.raises(UserError, match=r"a\.member\.jsonl: Not a directory; expected a directory with \*\.member"):
        read_run(tmp_path / "a.member.jsonl")


@pytest.mark.parametrize(("call", "path"), [("listdir", ""), ("stat", "/.")])
@pytest.mark.parametrize("read", [read_run, find_run, record_files, RunFollower])
def test_so_is_one_that_may_not_be_listed_or_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, path: str, read: Callable[[Path], object]
) -> None:
    # Not by its mode: the superuser reads every directory. Where listing is refused, `glob` finds nothing.
    known = getattr(os, call)

    def refuse(asked: object, **options: object) -> object:
        if asked in (f"{tmp_path}{path}", tmp_path / path):
            raise PermissionError(errno.EACCES, "Permission denied", str(asked))
        return known(asked, **options)

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(UserError, match=f"^{re.escape(str(tmp_path))}: Permission denied; expected "):
        read(tmp_path)


def test_an_empty_directory_is_an_unknown_run(tmp_path: Path) -> None:
    assert validate(read_run(tmp_path)).kind is VerdictKind.UNKNOWN


def test_an_unreadable_file_is_the_users_mistake(folder: Path) -> None:
    # Not by its mode: the superuser reads every file.
    (folder / "00.member.jsonl").unlink()
    (folder / "00.member.jsonl").symlink_to("00.member.jsonl")

    with pytest.raises(UserError, match=r"00\.member\.jsonl"):
        read_run(folder)


def test_a_directory_in_place_of_a_file_is_the_users_mistake(folder: Path) -> None:
    (folder / "zz.member.jsonl").mkdir()

    with pytest.raises(UserError, match="a readable record file"):
        read_run(folder)


def test_a_pipe_in_place_of_a_file_is_the_users_mistake_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "zz.member.jsonl")

    for look in (lambda: read_run(folder), RunFollower(folder).look, lambda: lay_out(folder, folder / "run")):
        with pytest.raises(UserError, match=r"zz\.member\.jsonl: no regular file; expected a readable record file"):
            look()
