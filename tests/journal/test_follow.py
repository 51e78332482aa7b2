"""Record files that grow are read line by line, each once, and judged on the way as they would be in the end."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from lbg_runtime.journal.follow import ALLOWED_DELAY_MS, RunFollower, complete_until
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.errors import UserError
from lbg_runtime.validator.findings import Finding, Law, VerdictKind, total
from lbg_runtime.validator.judge import judge, validate
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS
from lbg_runtime.validator.schema import JOURNALS
from lbg_runtime.validator.segments import FAR_PAST
from lbg_runtime.validator.slices import SlicedExamination
from tests.validator.changes import swap_two
from tests.validator.history import story
from tests.validator.run_files import MS, Run
from tests.validator.script import Life

RECORDS = ("dispatches", "flows", "confirmed", "unconfirmed")


def grow(whole: Path, growing: Path, share: float) -> None:
    """Every journal up to a moment of the run, and half a line more; and the ledgers.

    The tests' ledgers are not in order of time: a real one says that a fate is unknown before it lists another sending.
    """
    lines = {path.name: path.read_bytes().splitlines(keepends=True) for path in sorted(whole.iterdir())}
    moments = {name: [moment_of(line) for line in own] for name, own in lines.items() if "member" in name}
    ends = [moment for own in moments.values() for moment in own if moment]
    until = min(ends) + round((max(ends) - min(ends)) * share)
    for name, own in lines.items():
        count = next((n for n, moment in enumerate(moments.get(name, [])) if moment > until), len(own))
        rest = own[count][: len(own[count]) // 2] if count < len(own) else b""
        (growing / name).write_bytes(b"".join(own[:count]) + rest)


def moment_of(line: bytes) -> int:
    record = orjson.loads(line)
    return int(record.get("done_mono_ns", record.get("mono_ns", 0)))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    whole.mkdir()
    growing.mkdir()
    return whole, growing


def test_what_has_come_is_read_once_however_the_files_grow(folders: tuple[Path, Path]) -> None:
    whole, growing = folders
    run = story()
    run.write(whole)
    follower = RunFollower(growing)
    assert follower.look().tables.dispatches.num_rows == 0

    news = []
    for share in (0.1, 0.35, 0.35, 0.9, 1):
        grow(whole, growing, share)
        news.append(follower.look())

    expected = run.tables()
    for name in RECORDS:
        found = pa.concat_tables([getattr(each.tables, name) for each in news])
        assert rows(found) == rows(getattr(expected, name)), name
    # The first record of a block tells the clocks' distance, to a microsecond.
    clocks = ["wall_offset_ns", "last_mono_ns"]
    assert news[-1].tables.journals.drop(clocks) == read_run(whole).journals.drop(clocks)
    assert news[2].tables.dispatches.num_rows == 0
    newest = max(filter(None, news[-1].tables.journals.column("last_mono_ns").to_pylist()))
    assert news[-1].until_ns == newest - ALLOWED_DELAY_MS * MS


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_a_change_of_the_number_of_queues_is_known_at_every_later_look(tmp_path: Path) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 0)
    follower = RunFollower(tmp_path)
    counts = []
    for moment_ms, event in ((10, "planned"), (20, "left"), (30, None)):
        if event is not None:
            life.stripes(event, moment_ms, shard=0 if event == "left" else None)
        run.write(tmp_path)
        counts.append(follower.look().tables.stripes.num_rows)
    assert counts == [1, 2, 2]


def test_a_file_of_which_more_is_there_than_was_read_holds_the_others_up(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = folders
    story().write(whole)
    monkeypatch.setattr("lbg_runtime.journal.follow._BLOCK_BYTES", 3000)
    follower, sliced = RunFollower(whole), SlicedExamination(DEFAULT_ACK_WINDOW_MS)

    has_more, moments = True, []
    while has_more:
        news = follower.look()
        assert sliced.feed(news.tables, news.until_ns) == ()
        moments.append(news.until_ns)
        has_more = news.has_more

    assert len(moments) > 3
    assert sliced.standing.kind is VerdictKind.VALID
    assert sliced.standing.late == 0


def test_a_fault_is_told_on_the_way_and_the_end_is_as_in_one_go(folders: tuple[Path, Path]) -> None:
    whole, growing = folders
    run = story()
    assert swap_two(run)
    run.write(whole)
    follower, sliced = RunFollower(growing), SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    told: list[Finding] = []
    for share in (0.3, 0.6, 1):
        grow(whole, growing, share)
        news = follower.look()
        told += sliced.feed(news.tables, news.until_ns)

    assert [finding.law for finding in told] == [Law.ORDER]
    tables = news.tables
    nothing = {name: getattr(tables, name).schema.empty_table() for name in RECORDS}
    found = judge([sliced.finish(replace(tables, **nothing))], tables.journals, tables.ledgers)
    expected = validate(run.tables())
    assert (found.counts, found.accounts, found.moves) == (expected.counts, expected.accounts, expected.moves)


def test_a_file_that_cannot_be_read_takes_nothing_of_the_others(folders: tuple[Path, Path]) -> None:
    _, growing = folders
    story().write(growing)
    expected = read_run(growing).dispatches.num_rows
    follower = RunFollower(growing)
    ledger = growing / "00.ledger.jsonl"
    content = ledger.read_bytes()
    ledger.unlink()
    ledger.mkdir()
    with pytest.raises(UserError, match="a readable record file"):
        follower.look()
    ledger.rmdir()
    ledger.write_bytes(content)
    assert follower.look().tables.dispatches.num_rows == expected > 0


def lose_a_record(folder: Path) -> None:
    """The last line is missing as well, so only the first one tells."""
    path = min(folder.glob("*.member.jsonl"))
    header, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([header[:-2] + b',"is_whole":false}\n', *rest[:-1]]))


def count_a_lost_record(folder: Path) -> None:
    path = min(path for path in folder.glob("*.member.jsonl") if b'"dropped":0' in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b'"dropped":0', b'"dropped":3'))


def spoil_a_line(folder: Path) -> None:
    path = min(folder.glob("*.member.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(5, b"not a record\n")
    path.write_bytes(b"".join(lines))


def copy_a_journal(folder: Path) -> None:
    (folder / "copy.member.jsonl").write_bytes(min(folder.glob("*.member.jsonl")).read_bytes())


def mix_in_another_run(folder: Path) -> None:
    path = min(folder.glob("*.ledger.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"run_id":"run"', b'"run_id":"another"'))


@pytest.mark.parametrize(
    "damage", [lose_a_record, count_a_lost_record, spoil_a_line, copy_a_journal, mix_in_another_run]
)
def test_what_files_say_of_themselves_weakens_a_standing_as_it_does_a_verdict(
    folders: tuple[Path, Path], damage: Callable[[Path], None]
) -> None:
    whole, _ = folders
    run = story()
    assert swap_two(run)
    run.write(whole)
    damage(whole)
    sliced, news = SlicedExamination(DEFAULT_ACK_WINDOW_MS), RunFollower(whole).look()
    sliced.feed(news.tables, news.until_ns)

    expected, standing = validate(read_run(whole)), sliced.standing
    assert (expected.kind, standing.kind) == (VerdictKind.UNKNOWN, VerdictKind.UNKNOWN)
    assert Law.ORDER in standing.unproven
    assert set(standing.reasons) <= set(expected.reasons)
    assert total([standing, standing]).kind is VerdictKind.UNKNOWN


def test_a_file_that_was_empty_or_whole_at_first_is_looked_at_again(folders: tuple[Path, Path]) -> None:
    whole, growing = folders
    run = story()
    run.write(whole)
    path = min(whole.glob("*.member.jsonl"))
    (growing / path.name).touch()
    follower = RunFollower(growing)

    def facts() -> dict[str, object]:
        return dict(follower.look().tables.journals.to_pylist()[0])

    assert facts()["defect"] == "the file is empty"
    lines = path.read_bytes().splitlines(keepends=True)
    (growing / path.name).write_bytes(lines[0][:-2] + b',"is_whole":true }\n' + lines[1])
    assert (facts()["defect"], facts()["dropped"]) == (None, 0)
    with (growing / path.name).open("r+b") as stream:
        stream.write(lines[0][:-2] + b',"is_whole":false}\n')
    assert facts()["dropped"] == 1


@pytest.mark.parametrize("begin", [b'{"kind":"journal","schema":9}\n', b""])
def test_a_file_that_is_not_read_on_has_nothing_more(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    """Else who looks until all is judged that is there looks for good."""
    whole, _ = folders
    run = story()
    run.write(whole)
    (whole / "zz.member.jsonl").write_bytes(begin + b"\0" * 20_000)
    monkeypatch.setattr("lbg_runtime.journal.follow._BLOCK_BYTES", 9_000)
    monkeypatch.setattr("lbg_runtime.journal.reader.LONGEST_LINE_BYTES", 9_000)
    monkeypatch.setattr("lbg_runtime.journal.reader._BLOCK_BYTES", 9_000)
    follower, looks = RunFollower(whole), 1
    while (news := follower.look()).has_more:
        looks += 1
        assert looks < 10

    assert news.tables.journals.to_pylist()[-1]["defect"] == read_run(whole).journals.to_pylist()[-1]["defect"]
    assert news.until_ns > 0


def test_when_every_member_has_left_nothing_is_waited_for(folders: tuple[Path, Path]) -> None:
    whole, _ = folders
    run = story()
    run.journals = [journal for journal in run.journals if journal.close is not None]
    run.write(whole)

    news = RunFollower(whole).look()

    assert news.until_ns > max(news.tables.dispatches.column("start_mono_ns").to_pylist())


def test_journals_are_complete_until_the_newest_record_less_the_delay_or_until_what_was_read(tmp_path: Path) -> None:
    run = story()
    run.write(tmp_path)
    rows = read_run(tmp_path).journals.to_pylist()[:3]
    for row, end_ms in zip(rows, (50_000, 70_000, 60_000), strict=True):
        row |= {"torn": False, "last_mono_ns": end_ms * MS}

    def until(*torn: int, behind: int | None = None) -> int:
        told = [row | {"torn": number in torn} for number, row in enumerate(rows)]
        return complete_until(pa.Table.from_pylist(told, JOURNALS), [number == behind for number in range(len(rows))])

    assert until() == 70_000 * MS + 1, "every member has left"
    assert until(0) == until(1) == until(0, 1, 2) == (70_000 - ALLOWED_DELAY_MS) * MS
    assert until(1, behind=0) == until(behind=0) == (50_000 - ALLOWED_DELAY_MS) * MS
    assert complete_until(JOURNALS.empty_table(), []) == FAR_PAST


def test_a_directory_that_is_not_there_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file or directory"):
        RunFollower(tmp_path / "nowhere")


def test_a_directory_that_the_disk_does_not_list_for_a_while_is_named_and_read_on_with_the_next_look(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = folders
    story().write(whole)
    follower = RunFollower(whole)

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as ill:
        for name in ("listdir", "scandir"):
            ill.setattr(os, name, refuse)
        with pytest.raises(UserError, match="Too many open files; expected a directory that can be listed"):
            follower.look()
    assert follower.look().tables.dispatches.num_rows


def test_a_file_that_has_become_shorter_is_named(folders: tuple[Path, Path]) -> None:
    """As by a rotation of logs that copies and empties: the records behind that were not read, and not missed."""
    whole, _ = folders
    story().write(whole)
    follower = RunFollower(whole)
    follower.look()
    path = min(whole.glob("*.member.jsonl"))
    path.write_bytes(b"")
    with pytest.raises(UserError, match=f"{path.name}: it has become shorter"):
        follower.look()
