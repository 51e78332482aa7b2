"""A run laid out as Parquet by queue: the same records, cut where the kernel may be cut.

More than 400 lines, as each test lays out the same run.
"""

import errno
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lbg_runtime.journal.layout import (
    count_records,
    find_run,
    lay_out,
    open_table,
    queues_of,
    read_group,
    read_part,
    read_records,
    read_whole,
    undisturbed,
)
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.errors import UserError
from lbg_runtime.validator.schema import DISPATCHES
from tests.validator.history import story
from tests.validator.run_files import Run
from tests.validator.script import Life


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    (tmp_path / "journals").mkdir()
    story().write(tmp_path / "journals")
    return tmp_path / "journals"


def test_a_laid_out_run_has_the_same_records(journals: Path, tmp_path: Path) -> None:
    tables = read_run(journals)
    run = lay_out(journals, tmp_path)
    whole = read_whole(run)
    found = read_part(run, whole, queues_of(run))
    for name in ("dispatches", "flows", "confirmed", "unconfirmed", "owners", "stripes", "journals", "ledgers"):
        assert rows(getattr(found, name)) == rows(getattr(tables, name)), name
    assert count_records(run) == tables.dispatches.num_rows
    assert run.name.startswith("run=")
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(("at_a_time", "tables"), [(1_000_000, 1), (1, 2)], ids=["together", "in parts"])
def test_many_blocks_of_a_file_are_divided_among_the_queues_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int, tables: int
) -> None:
    """A table of a few rows takes much more memory than these, and one waits for each block and queue."""
    run = Run()
    life = Life(run, "a").flow("active", 0)
    for seq in range(1, 9):
        life.handle(seq, 10 * seq, 10 * seq + 5, 10 * seq + 6)
    run.write(tmp_path)
    [journal] = tmp_path.glob("*.member.jsonl")
    monkeypatch.setattr("lbg_runtime.journal.reader._BLOCK_BYTES", journal.stat().st_size // 2)
    monkeypatch.setattr("lbg_runtime.journal.layout._DIVIDED_RECORDS", at_a_time)
    written: list[int] = []

    class Watched(pq.ParquetWriter):
        def write_table(self, table: pa.Table, *_: object) -> None:
            written.append(table.num_rows)
            super().write_table(table)

    monkeypatch.setattr("lbg_runtime.journal.layout.pq.ParquetWriter", Watched)
    monkeypatch.setattr("lbg_runtime.journal.layout.ROW_GROUP_RECORDS", 1)

    assert count_records(lay_out(tmp_path, tmp_path / "laid")) == 8

    assert len([rows for rows in written if rows > 1]) == tables


def test_a_run_is_named_by_its_id_as_far_as_a_folder_can_be(journals: Path, tmp_path: Path) -> None:
    for path in journals.glob("*.member.jsonl"):
        path.write_bytes(path.read_bytes().replace(b'"run_id":"run"', b'"run_id":"trial/7"'))
    assert lay_out(journals, tmp_path) == tmp_path / "run=trial_7"


def test_a_run_of_several_ids_or_none_has_a_name_too(journals: Path, tmp_path: Path) -> None:
    of_another, *others = journals.glob("*.member.jsonl")
    of_another.write_bytes(of_another.read_bytes().replace(b'"run_id":"run"', b'"run_id":"a run"'))
    assert others
    assert lay_out(journals, tmp_path / "new" / "folder").name == "run=a_run"
    for path in journals.glob("*.member.jsonl"):
        path.write_bytes(b"")
    assert lay_out(journals, tmp_path).name == "run=unnamed"


def test_a_run_beside_journals_is_not_taken_for_them(journals: Path) -> None:
    """They may have gone on since, or be those of another run."""
    run = lay_out(journals, journals)
    assert find_run(run) == run
    refused = f"journals or ledgers, and run=run that was laid out before; expected {run}, or"
    with pytest.raises(UserError, match=re.escape(refused)):
        find_run(journals)
    for path in journals.glob("*.member.jsonl"):
        path.unlink()
    with pytest.raises(UserError, match="was laid out before"):
        find_run(journals)
    for path in journals.glob("*.ledger.jsonl"):
        path.unlink()
    assert find_run(journals) == run


def test_what_others_put_beside_the_files_of_a_run_is_left_alone(journals: Path, tmp_path: Path) -> None:
    run = lay_out(journals, tmp_path)
    queues, count = queues_of(run), count_records(run)
    path = next(run.glob("queue=*/dispatches-*.parquet"))
    shutil.copy(path, path.with_name(f"{path.stem} (copy).parquet"))
    shutil.copytree(path.parent, run / f"{path.parent.name} (copy)")
    assert (queues_of(run), count_records(run)) == (queues, count)
    assert count_records(run, []) == 0


def test_a_run_is_found_in_its_folder_and_above_it(journals: Path, tmp_path: Path) -> None:
    assert find_run(journals) is None
    run = lay_out(journals, tmp_path)
    (tmp_path / "run=.part").mkdir()
    assert find_run(run) == find_run(tmp_path) == run, "and one whose laying out was killed is none"
    run.rename(tmp_path / "run=other")
    lay_out(journals, tmp_path)
    with pytest.raises(UserError, match="2 runs"):
        find_run(tmp_path)


def test_a_path_that_is_no_text_is_the_users_mistake(journals: Path, tmp_path: Path) -> None:
    """Parquet files have none such: it was a traceback."""
    target = tmp_path / os.fsdecode(b"l\xfc")
    expected = "bytes that are no UTF-8; expected a path in UTF-8, for Parquet files"
    with pytest.raises(UserError, match=expected):
        lay_out(journals, target)
    lay_out(journals, tmp_path / "laid").parent.rename(target)
    for path in (target, *target.iterdir()):
        with pytest.raises(UserError, match=expected):
            find_run(path)


def test_a_run_that_is_laid_out_again_replaces_the_old_one(journals: Path, tmp_path: Path) -> None:
    first = lay_out(journals, tmp_path)
    (first / "queue=0" / "dispatches-99.parquet").write_bytes(b"of an older one")
    assert lay_out(journals, tmp_path) == first
    assert not (first / "queue=0" / "dispatches-99.parquet").exists()


def test_nothing_is_left_of_a_laying_out_that_was_killed(journals: Path, tmp_path: Path) -> None:
    (tmp_path / "run=.part" / "queue=0").mkdir(parents=True)
    (tmp_path / "run=.part" / "queue=0" / "dispatches-99.parquet").write_bytes(b"half of one")
    run = lay_out(journals, tmp_path)
    assert not (run / "queue=0" / "dispatches-99.parquet").exists()


def test_a_draft_that_was_killed_as_it_was_to_get_its_name_is_no_run(journals: Path, tmp_path: Path) -> None:
    run = lay_out(journals, tmp_path)
    (tmp_path / "run=.part").mkdir()
    (tmp_path / "run=.part" / "_journals.parquet").write_bytes((run / "_journals.parquet").read_bytes())
    assert find_run(tmp_path) == run
    assert find_run(tmp_path / "run=.part") is None


def test_a_process_that_is_killed_as_it_replaces_a_run_leaves_a_whole_one(
    journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the old one was judged, as valid too: what is confirmed lies in the same folders as what is handled."""
    run = lay_out(journals, tmp_path)
    count = count_records(run)
    remove = shutil.rmtree

    class Killed(BaseException):
        pass

    def die(path: Path, **_: object) -> None:
        if (path / "_journals.parquet").exists():
            for queue in path.glob("queue=*"):
                remove(queue)
            raise Killed

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(Killed):
        lay_out(journals, tmp_path)
    monkeypatch.undo()
    assert find_run(tmp_path) == run
    assert count_records(run) == count > 0
    lay_out(journals, tmp_path)
    assert list(tmp_path.glob("run=*")) == [run]


def test_nobody_lays_out_runs_where_another_does_or_judges_one(journals: Path, tmp_path: Path) -> None:
    """One removed the other's files, and what was judged in the end could be parts of both."""
    target = tmp_path / "runs"
    with undisturbed(target, is_written=True):
        for is_written in (True, False):
            with (
                pytest.raises(UserError, match="another process lays out a run there"),
                undisturbed(target, is_written=is_written),
            ):
                pass
        lay_out(journals, target)
    with (
        undisturbed(target, is_written=False),
        undisturbed(target, is_written=False),
        pytest.raises(UserError, match="or judges one"),
        undisturbed(target, is_written=True),
    ):
        pass
    with undisturbed(tmp_path / "cannot be listed", is_written=False):
        pass


def test_a_file_that_is_damaged_or_of_another_version_is_named(journals: Path, tmp_path: Path) -> None:
    run = lay_out(journals, tmp_path)
    whole = read_whole(run)
    (path,) = list(run.glob("queue=*/dispatches-*.parquet"))[:1]
    queue = int(path.parent.name.removeprefix("queue="))
    pq.write_table(pq.ParquetFile(path).read().drop(["seq"]), path)
    with pytest.raises(UserError, match="other columns") as raised:
        read_part(run, whole, [queue])
    assert raised.value.where == str(path)
    with pytest.raises(UserError, match="other columns"):
        count_records(run)
    path.write_bytes(b"torn")
    for look in (
        lambda: read_part(run, whole, [queue]),
        lambda: count_records(run),
        lambda: open_table(path, DISPATCHES),
    ):
        with pytest.raises(UserError, match="cannot be read"):
            look()
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        open_table(path, DISPATCHES)


def test_a_row_group_that_is_damaged_is_named(journals: Path, tmp_path: Path) -> None:
    run = lay_out(journals, tmp_path)
    (path,) = list(run.glob("queue=*/dispatches-*.parquet"))[:1]
    whole = path.read_bytes()
    assert read_group(path, open_table(path, DISPATCHES), 0, DISPATCHES).num_rows > 0
    path.write_bytes(whole[:4] + bytes(64) + whole[68:])
    with pytest.raises(UserError, match="cannot be read") as raised:
        read_group(path, open_table(path, DISPATCHES), 0, DISPATCHES)
    assert raised.value.where == str(path)


def test_whichever_bit_of_a_file_is_flipped_it_is_read_as_it_was_or_named(journals: Path, tmp_path: Path) -> None:
    """Most flips are refused; a traceback was what came of some of them, and other records of one in sixteen."""
    run = lay_out(journals, tmp_path)
    (path,) = list(run.glob("queue=*/dispatches-*.parquet"))[:1]
    queue = int(path.parent.name.removeprefix("queue="))
    whole = path.read_bytes()
    records = read_records(run, [queue], "dispatches")
    group = read_group(path, open_table(path, DISPATCHES), 0, DISPATCHES)
    # The footer has no checksum within the file.
    pages_end = _pages_end(path)
    refused = 0
    for offset in range(0, len(whole), 17):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << offset % 8
        path.write_bytes(damaged)
        with suppress(UserError):
            found = read_records(run, [queue], "dispatches")
            found_group = read_group(path, open_table(path, DISPATCHES), 0, DISPATCHES)
            assert offset >= pages_end or (found.equals(records) and found_group.equals(group))
            continue
        refused += 1
    assert refused > len(whole) / 17 / 3


def test_a_run_of_which_a_file_is_missing_or_another_is_none_to_be_judged(journals: Path, tmp_path: Path) -> None:
    """As in a copy that was cut short. Without a queue's folder, the rest was judged as if it was all."""
    run = lay_out(journals, tmp_path)
    assert find_run(run) == run
    path = next(run.glob("queue=*/dispatches-*.parquet"))
    whole, pages_end = path.read_bytes(), _pages_end(path)
    for offset in range(pages_end, len(whole), 7):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << offset % 8
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"{path.name}: not as it was written"):
            find_run(run)
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=f"{path.name}: not as it was written"):
        find_run(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=f"{path.name}: it is missing"):
        find_run(run)
    for content in (b"[]", b"half of on", b"\xff"):
        (run / "_files.json").write_bytes(content)
        with pytest.raises(UserError, match=r"_files\.json"):
            find_run(run)
    # As of an older version.
    (run / "_files.json").unlink()
    assert find_run(run) == run


def _pages_end(path: Path) -> int:
    """Where the footer begins, whose length is in the last bytes but four."""
    whole = path.read_bytes()
    return len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")


def test_the_files_of_few_queues_at_a_time_are_open(
    journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_open: set[object] = set()
    most = 0

    class Counted(pq.ParquetWriter):
        def __init__(self, *given: Any, **more: Any) -> None:
            nonlocal most
            super().__init__(*given, **more)
            now_open.add(id(self))
            most = max(most, len(now_open))

        def close(self) -> None:
            super().close()
            now_open.discard(id(self))

    monkeypatch.setattr("lbg_runtime.journal.layout.pq.ParquetWriter", Counted)
    run = lay_out(journals, tmp_path)
    assert len(list(run.glob("queue=*/*.parquet"))) > 6
    assert most == 1


@pytest.mark.parametrize("rows", [1, 100_000])
@pytest.mark.parametrize("refused", ["write_table", "close"])
def test_a_full_disk_is_told_of_the_folder_that_is_written(
    journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, refused: str
) -> None:
    class Full(pq.ParquetWriter):
        is_full = False

    def refuse(writer: Full, *given: object) -> None:
        if not writer.is_full:
            writer.is_full = True
            raise OSError(errno.ENOSPC, "No space left on device")

    setattr(Full, refused, refuse)
    monkeypatch.setattr("lbg_runtime.journal.layout.ROW_GROUP_RECORDS", rows)
    monkeypatch.setattr("lbg_runtime.journal.layout.pq.ParquetWriter", Full)
    with pytest.raises(UserError, match=r"run=\.part: cannot be written: No space left on device; expected a folder"):
        lay_out(journals, tmp_path)
    # What is of no use does not keep the disk full.
    assert list(tmp_path.glob("run=*")) == []


def test_a_full_disk_is_told_of_at_the_very_end_too(
    journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lbg_runtime.journal.layout.pq.write_table", refuse)
    with pytest.raises(UserError, match=r"run=\.part: cannot be written: No space left on device"):
        lay_out(journals, tmp_path)
    assert list(tmp_path.glob("run=*")) == []


@pytest.mark.parametrize("refused", ["run", "queue"])
def test_a_folder_of_a_run_that_the_disk_does_not_list_is_told(
    journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Otherwise its records would be missing from what is judged."""
    run = lay_out(journals, tmp_path)
    ill = run if refused == "run" else run / "queue=0"

    def refuse(path: Path, take: Callable[[Path], object]) -> object:
        if Path(path) == ill:
            raise OSError(errno.EACCES, "Permission denied", str(path))
        return take(path)

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, partial(refuse, take=getattr(os, name)))
    with pytest.raises(UserError, match=rf"{ill.name}: Permission denied; expected a directory that can be listed"):
        count_records(run)


def test_a_run_of_which_a_folder_cannot_be_listed_when_its_files_are_noted_is_not_laid_out(
    journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of that folder could be lost later, and nobody would miss it."""
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("queue=0"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match="cannot be written: Permission denied"):
        lay_out(journals, tmp_path)


def test_the_run_that_was_there_stays_if_the_new_one_cannot_take_its_place(
    journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would remove what was set aside, and the journals may be gone by then."""
    run = lay_out(journals, tmp_path)
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name == "run=.part":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(UserError, match=r"run=\.part: cannot be written: Input/output error"):
        lay_out(journals, tmp_path)
    assert (find_run(tmp_path), list(tmp_path.glob("run=*"))) == (run, [run])


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file or directory"):
        lay_out(tmp_path / "nothing", tmp_path)
