"""`lbg landing` and what it finds.

More than 400 lines, as all of it is about what one command finds.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from lbg_runtime.cli.main import command_line
from lbg_runtime.model.errors import UserError
from lbg_runtime.pipeline.landing.lane_view import Flush, LaneView
from lbg_runtime.pipeline.landing.layout import parts_among, parts_of
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.prune import prune
from lbg_runtime.pipeline.landing.verify import Finding, Grade, Walked, folder_bytes, verify
from tests.pipeline.landing.landed import LogOnDisk, id_of, rows

app = command_line()


@pytest.fixture
def lane(log_on_disk: LogOnDisk) -> Path:
    """Of three segments with two rows each."""
    lane = log_on_disk.lane(segment_bytes=1)
    for number in range(1, 7, 2):
        lane.append(rows([id_of("k", number), id_of("k", number + 1)], t_land=number * 1_000_000))
    return log_on_disk.root / lane.name


def found(log: LogOnDisk) -> list[Finding]:
    return list(verify(LandingLog(log.root), Walked()))


def damage(log: LogOnDisk) -> list[str]:
    return [each.what for each in found(log) if each.grade is Grade.DAMAGE]


def test_a_whole_log_has_no_findings(log_on_disk: LogOnDisk, lane: Path) -> None:
    steps = list[int]()
    walked = Walked(on_bytes=steps.append)
    assert list(verify(LandingLog(log_on_disk.root), walked)) == []
    assert (walked.lanes, walked.segments, walked.rows) == (1, 3, 6)
    assert walked.bytes == sum(path.stat().st_size for path in lane.glob("*.arrow")) == sum(steps)
    assert folder_bytes(log_on_disk.root) == walked.bytes


def test_so_has_one_that_is_pruned(log_on_disk: LogOnDisk, lane: Path) -> None:
    assert len(list(prune(log_on_disk.root, 4_000_000))) == 2
    assert found(log_on_disk) == []


def test_and_one_of_which_only_ids_are_left(log_on_disk: LogOnDisk, lane: Path) -> None:
    log_on_disk.close()
    assert len(list(prune(log_on_disk.root, 7_000_000))) == 3
    assert {path.suffix for path in lane.iterdir()} == {".ids", ".json"}
    assert found(log_on_disk) == []


def test_a_flipped_bit_is_found(log_on_disk: LogOnDisk, lane: Path) -> None:
    data = lane / "000000000002.arrow"
    content = bytearray(data.read_bytes())
    content[-9] ^= 1
    data.write_bytes(content)
    [what] = damage(log_on_disk)
    assert what.startswith("rows 2 to 3 at byte")


def test_damage_does_not_hide_what_lies_behind_it(log_on_disk: LogOnDisk, lane: Path) -> None:
    (lane / "000000000000.arrow").unlink()
    content = bytearray((lane / "000000000004.arrow").read_bytes())
    content[-9] ^= 1
    (lane / "000000000004.arrow").write_bytes(content)
    [first, second] = damage(log_on_disk)
    assert first == "it is missing"
    assert second.startswith("rows 4 to 5 at byte")


def test_a_missing_segment_is_found(log_on_disk: LogOnDisk, lane: Path) -> None:
    (lane / "000000000002.index").unlink()
    assert damage(log_on_disk) == ["begins with row 4, not 2", "it is missing, and its data file has rows"]


def test_a_lane_that_has_lost_its_begin_is_noted_as_it_may_have_been_pruned(log_on_disk: LogOnDisk, lane: Path) -> None:
    for part in lane.glob("000000000000.*"):
        part.unlink()
    [finding] = found(log_on_disk)
    assert (finding.grade, finding.path) == (Grade.NOTE, str(lane / "000000000002.index"))
    assert finding.what == "begins with row 2, and no ids are left of those before: pruned long ago, or lost"


def test_a_segment_that_is_missing_behind_pruned_ones_is_found(log_on_disk: LogOnDisk, lane: Path) -> None:
    assert len(list(prune(log_on_disk.root, 2_000_000))) == 1
    for suffix in ("index", "arrow"):
        (lane / f"000000000002.{suffix}").unlink()
    assert damage(log_on_disk) == ["begins with row 4, not 2"]


def test_a_segment_that_is_pruned_while_its_lane_is_listed_is_not_missing(
    log_on_disk: LogOnDisk, lane: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(list(prune(log_on_disk.root, 2_000_000))) == 1
    # The index was looked for too late, and the ids that replace it too early.
    torn = [parts_among([name for name in os.listdir(lane) if not name.startswith("000000000002")])]
    assert len(list(prune(log_on_disk.root, 4_000_000))) == 1
    monkeypatch.setattr(
        "lbg_runtime.pipeline.landing.verify.parts_of", lambda folder: torn.pop() if torn else parts_of(folder)
    )
    assert found(log_on_disk) == []


def test_an_id_that_is_in_a_lane_twice_is_noted_as_the_broker_can_have_a_message_twice(
    log_on_disk: LogOnDisk, lane: Path
) -> None:
    log_on_disk.lanes[0].append(rows([id_of("k", 2)]))
    [finding] = found(log_on_disk)
    assert (finding.grade, finding.path) == (Grade.NOTE, str(lane))
    assert finding.what.startswith(f"id {id_of('k', 2)} is in it twice")


def test_the_ids_of_a_lane_are_not_all_in_memory_when_one_of_them_is_in_it_twice(
    log_on_disk: LogOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = log_on_disk.lane(segment_bytes=1)
    for number in (1, 1, 2, 3):
        lane.append(rows([id_of("k", number)], t_land=1_000_000))
    read, taken = LaneView.read, list[int]()

    def counted(view: LaneView, start_row: int, end_row: int) -> Iterator[pa.RecordBatch]:
        for batch in read(view, start_row, end_row):
            taken.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(LaneView, "read", counted)
    [finding] = found(log_on_disk)
    assert finding.what.startswith(f"id {id_of('k', 1)} is in it twice")
    assert sum(taken) == 2


def test_also_where_one_of_the_two_was_pruned(log_on_disk: LogOnDisk, lane: Path) -> None:
    log_on_disk.lanes[0].append(rows([id_of("k", 2)]))
    assert len(list(prune(log_on_disk.root, 2_000_000))) == 1
    [finding] = found(log_on_disk)
    assert finding.what.startswith(f"id {id_of('k', 2)} is in it twice")


def test_but_not_in_a_lane_that_is_damaged(log_on_disk: LogOnDisk, lane: Path) -> None:
    log_on_disk.lanes[0].append(rows([id_of("k", 2)]))
    data = lane / "000000000002.arrow"
    data.write_bytes(data.read_bytes()[:-9] + b"\xff" * 9)
    [finding] = found(log_on_disk)
    assert (finding.grade, finding.path) == (Grade.DAMAGE, str(data))


def test_what_is_pruned_and_not_yet_removed_counts_once(log_on_disk: LogOnDisk, lane: Path) -> None:
    kept = {path: path.read_bytes() for path in lane.glob("000000000000.*")}
    assert len(list(prune(log_on_disk.root, 2_000_000))) == 1
    for path, content in kept.items():
        path.write_bytes(content)
    assert len(list(lane.glob("000000000000.*"))) == 3
    assert found(log_on_disk) == []


def test_but_its_ids_are_checked_as_readers_look_at_them(log_on_disk: LogOnDisk, lane: Path) -> None:
    assert len(list(prune(log_on_disk.root, 2_000_000))) == 1
    copy = lane / "000000000002.ids"
    copy.write_bytes((lane / "000000000000.ids").read_bytes())
    assert [(each.path, each.what) for each in found(log_on_disk)] == [
        (str(copy), "its name is not that of its first row")
    ]


def test_a_lane_that_lies_with_another_queue_is_found(log_on_disk: LogOnDisk, lane: Path) -> None:
    lane.parent.rename(log_on_disk.root / "queue=004")
    whose = log_on_disk.root / "queue=004" / lane.name
    assert [(each.path, each.what) for each in found(log_on_disk)] == [
        *((str(whose / f"00000000000{first}.arrow"), "holds rows of another queue than 4") for first in (0, 2, 4)),
        (str(whose), f"its note is of queue=003/{lane.name}"),
    ]


def test_a_segment_by_the_name_of_another_is_found(log_on_disk: LogOnDisk) -> None:
    lane = log_on_disk.lane()
    lane.append(rows([id_of("k", 1), id_of("k", 2)]))
    folder = log_on_disk.root / lane.name
    for suffix in ("index", "arrow"):
        (folder / f"000000000000.{suffix}").rename(folder / f"000000000001.{suffix}")
    assert damage(log_on_disk)[0] == "its name is not that of its first row"


def test_rows_of_another_queue_are_found(log_on_disk: LogOnDisk, lane: Path) -> None:
    log_on_disk.lanes[0].append(rows([id_of("k", 9)], queue=1))
    assert damage(log_on_disk) == ["holds rows of another queue than 3"]


def test_what_the_dead_leave_behind_is_noted(log_on_disk: LogOnDisk, lane: Path) -> None:
    with (lane / "000000000004.arrow").open("ab") as file:
        file.write(b"torn")
    with (lane / "000000000004.index").open("ab") as file:
        file.write(b"torn")
    (lane / "000000000006.arrow").write_bytes(b"")
    (lane / "000000000007.arrow").write_bytes(b"")
    (lane / "000000000007.index").write_bytes(bytes(64))
    (log_on_disk.root / "mine.txt").write_text("mine")
    (log_on_disk.root / "queue=003/removed.lanes").write_text("torn")
    assert [(each.grade, each.what) for each in found(log_on_disk)] == [
        (Grade.NOTE, "no part of a landing log"),
        (Grade.NOTE, "a torn line of 4 bytes at its end"),
        (Grade.NOTE, "a torn entry of 4 bytes at its end"),
        (Grade.NOTE, "4 bytes of a flush that was not completed"),
        (Grade.NOTE, "an index without a header: its writer died early"),
        (Grade.NOTE, "a segment without an index: its writer died when it began it"),
    ]


def test_so_are_the_bytes_behind_an_index_that_has_lost_its_only_entry(log_on_disk: LogOnDisk, lane: Path) -> None:
    index, data = lane / "000000000004.index", lane / "000000000004.arrow"
    index.write_bytes(index.read_bytes()[:64])
    [finding] = found(log_on_disk)
    assert (finding.grade, finding.path) == (Grade.NOTE, str(data))
    assert re.fullmatch(r"\d+ bytes of a flush that was not completed", finding.what)


def test_an_index_that_has_entries_and_no_header_was_not_left_by_the_dead(log_on_disk: LogOnDisk, lane: Path) -> None:
    index = lane / "000000000004.index"
    index.write_bytes(bytes(64) + index.read_bytes()[64:])
    assert damage(log_on_disk) == ["no index of a segment"]


def run(*command: str) -> tuple[int, str, str]:
    ended = CliRunner().invoke(app, ["landing", *command])
    if isinstance(ended.exception, UserError):
        raise ended.exception
    return ended.exit_code, ended.stdout, ended.stderr


def test_ls_shows_every_lane(log_on_disk: LogOnDisk, lane: Path) -> None:
    code, text, _ = run("ls", str(log_on_disk.root))
    assert code == 0
    assert text.startswith("queue=003/lane=m-1.1: 6 rows, ")
    assert "1970-01-01T00:00:01.000+00:00 to 1970-01-01T00:00:05.000+00:00 (being written)" in text
    told = json.loads(run("ls", str(log_on_disk.root), "--json")[1])
    assert (told["group"], [each["rows"] for each in told["lanes"]]) == ("orders", [6])


def test_ls_shows_from_when_to_when_rows_are_dated_also_where_the_clock_was_set_back(log_on_disk: LogOnDisk) -> None:
    """`from` was later than `to`, and a replay between the two would have left out what came before the step."""
    lane = log_on_disk.lane()
    for number, second in enumerate((7200, 7260, 3600, 3660), 1):
        lane.append(rows([id_of("k", number)], t_land=second * 1_000_000))
    [told] = json.loads(run("ls", str(log_on_disk.root), "--json")[1])["lanes"]
    assert (told["from"], told["to"]) == ("1970-01-01T01:00:00.000+00:00", "1970-01-01T02:01:00.000+00:00")


def test_ls_shows_what_is_left_of_a_lane_that_is_pruned_meanwhile(
    log_on_disk: LogOnDisk, lane: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_flushes = LaneView.all_flushes

    def overtaken(view: LaneView, start_row: int, end_row: int) -> Iterator[Flush]:
        monkeypatch.undo()
        list(prune(log_on_disk.root, 2_000_000))
        return all_flushes(view, start_row, end_row)

    monkeypatch.setattr(LaneView, "all_flushes", overtaken)
    [told] = json.loads(run("ls", str(log_on_disk.root), "--json")[1])["lanes"]
    assert (told["lane"], told["first_row"], told["rows"]) == (f"queue=003/{lane.name}", 2, 6)


@pytest.mark.parametrize("part", ["lane.json", "000000000000.index"])
def test_ls_goes_on_with_other_lanes_and_says_what_is_damaged(log_on_disk: LogOnDisk, lane: Path, part: str) -> None:
    log_on_disk.lane("a").append(rows([id_of("q", 1)]))
    log_on_disk.lane("z", queue=1).append(rows([id_of("q", 1)], queue=1))
    (lane / part).write_text("{")
    code, text, errors = run("ls", str(log_on_disk.root))
    assert (code, [line.partition(":")[0] for line in text.splitlines()]) == (
        1,
        ["queue=001/lane=z-1.3", "queue=003/lane=a-1.2"],
    )
    (said,) = errors.splitlines()
    assert said.startswith(f"lbg: {lane / part}: ")
    code, text, _ = run("ls", str(log_on_disk.root), "--json")
    told = json.loads(text)
    assert (code, len(told["lanes"]), [each["path"] for each in told["failures"]]) == (1, 2, [str(lane / part)])


def test_a_queue_that_cannot_be_listed_keeps_no_other_from_being_shown_and_pruned(
    log_on_disk: LogOnDisk, lane: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that prunes pruned nothing at all, until its log was full."""
    log_on_disk.close()
    closed = log_on_disk.root / "queue=001"
    closed.mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path) == str(closed):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    code, text, errors = run("ls", str(log_on_disk.root))
    assert (code, len(text.splitlines()), errors) == (1, 1, f"lbg: {closed}: Permission denied\n")
    code, text, errors = run("prune", str(log_on_disk.root), "--retention", "1h")
    assert (code, len(text.splitlines())) == (1, 4)
    assert errors == f"lbg: {closed}: Permission denied; what it has stays\n"


def test_prune_says_where_rows_are_missing_beside_their_index(log_on_disk: LogOnDisk, lane: Path) -> None:
    data = lane / "000000000000.arrow"
    data.unlink()
    for more in (["--dry-run"], []):
        code, text, errors = run("prune", str(log_on_disk.root), "--retention", "1h", *more)
        assert (code, text.partition(",")[0]) == (1, "0 segments")
        assert errors == f"lbg: {data}: it is missing; the rest of its lane stays\n"


def test_verify_ends_with_1_where_something_is_damaged(log_on_disk: LogOnDisk, lane: Path) -> None:
    code, text, _ = run("verify", str(log_on_disk.root))
    assert (code, text) == (0, "whole: 6 rows in 3 segments of 1 lane\n")
    (lane / "000000000000.arrow").write_bytes(b"")
    code, text, _ = run("verify", str(log_on_disk.root), "--json")
    told = json.loads(text)
    assert (code, told["whole"], told["findings"][0]["grade"]) == (1, False, "damage")


def test_prune_says_what_would_go_before_it_goes(log_on_disk: LogOnDisk, lane: Path) -> None:
    code, text, _ = run("prune", str(log_on_disk.root), "--retention", "1h", "--dry-run")
    assert code == 0
    assert "\n2 segments, " in text
    assert text.endswith(", would go\n")
    told = json.loads(run("prune", str(log_on_disk.root), "--retention", "1h", "--json")[1])
    assert [each["first_row"] for each in told["segments"]] == [0, 2]
    assert not (lane / "000000000000.arrow").exists()


def test_prune_goes_on_with_other_lanes_and_says_what_is_damaged(log_on_disk: LogOnDisk, lane: Path) -> None:
    other = log_on_disk.lane("other", segment_bytes=1)
    for number in (1, 2):
        other.append(rows([id_of("q", number)], t_land=number * 1_000_000))
    note = lane / "lane.json"
    note.write_text("{")
    code, text, errors = run("prune", str(log_on_disk.root), "--retention", "1h", "--dry-run")
    assert (code, text.endswith(", would go\n")) == (1, True)
    code, text, errors = run("prune", str(log_on_disk.root), "--retention", "1h")
    assert code == 1
    assert text.startswith(f"{other.name}: rows 0 to 0, ")
    assert errors == f"lbg: {note}: not as it was written; the rest of its lane stays\n"
    assert (lane / "000000000000.arrow").exists()
    code, text, _ = run("prune", str(log_on_disk.root), "--retention", "1h", "--json")
    told = json.loads(text)
    assert (code, told["segments"]) == (1, [])
    assert told["failures"] == [{"path": str(note), "what": "not as it was written"}]


def test_what_prune_cannot_read_is_told_in_words_of_a_reader(log_on_disk: LogOnDisk, lane: Path) -> None:
    note = lane / "lane.json"
    note.unlink()
    note.mkdir()
    code, text, errors = run("prune", str(log_on_disk.root), "--retention", "1h")
    assert (code, text) == (1, "0 segments, 0 B, removed\n")
    assert errors == f"lbg: {note}: Is a directory; the rest of its lane stays\n"


@pytest.mark.parametrize("command", [("ls",), ("verify",), ("prune", "--retention", "1h")])
def test_a_folder_that_is_no_log_is_the_users_mistake(command: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no landing\.json in it"):
        run(*command, str(tmp_path))


def test_a_length_of_time_that_is_none_is_the_users_mistake(log_on_disk: LogOnDisk) -> None:
    with pytest.raises(UserError, match="--retention: 'soon'"):
        run("prune", str(log_on_disk.root), "--retention", "soon")


@pytest.mark.parametrize("name", ["000000000002.arrow", "000000000002.index", "lane.json", "removed.lanes"])
def test_what_cannot_be_read_does_not_hide_what_lies_behind_it(log_on_disk: LogOnDisk, lane: Path, name: str) -> None:
    other = log_on_disk.lane("other")
    other.append(rows([id_of("q", 1)]))
    broken = log_on_disk.root / other.name / "000000000000.arrow"
    broken.write_bytes(broken.read_bytes()[:-8] + b"\xff" * 8)
    path = lane.parent / name if name == "removed.lanes" else lane / name
    path.unlink(missing_ok=True)
    path.mkdir()
    code, text, _ = run("verify", str(log_on_disk.root))
    assert code == 1
    assert f"damage: {path}: cannot be read: Is a directory\n" in text
    assert f"damage: {broken}: rows 0 to 0" in text


def test_what_the_disk_refuses_is_told_with_its_file(
    log_on_disk: LogOnDisk, lane: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    bad = (lane / "000000000002.arrow").stat().st_ino

    def refuse(file: int, size: int, offset: int) -> bytes:
        if os.fstat(file).st_ino == bad:
            raise OSError(errno.EIO, "Input/output error")
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", refuse)
    steps = list[int]()
    walked = Walked(on_bytes=steps.append)
    findings = list(verify(LandingLog(log_on_disk.root), walked))
    assert findings == [Finding(Grade.DAMAGE, str(lane / "000000000002.arrow"), "cannot be read: Input/output error")]
    assert walked.rows == 4
    assert sum(steps) == folder_bytes(log_on_disk.root), "the bar reached its end all the same"


def test_ids_that_cannot_be_read_do_not_hide_what_lies_behind_them(log_on_disk: LogOnDisk, lane: Path) -> None:
    assert len(list(prune(log_on_disk.root, 2_000_000))) == 1
    ids = lane / "000000000000.ids"
    ids.unlink()
    ids.mkdir()
    broken = lane / "000000000004.arrow"
    broken.unlink()
    assert [(each.path, each.what) for each in found(log_on_disk)] == [
        (str(ids), "cannot be read: Is a directory"),
        (str(broken), "it is missing"),
    ]


def test_nor_do_they_make_what_lies_behind_them_wrong(log_on_disk: LogOnDisk, lane: Path) -> None:
    assert len(list(prune(log_on_disk.root, 4_000_000))) == 2
    ids = lane / "000000000002.ids"
    ids.unlink()
    ids.mkdir()
    assert damage(log_on_disk) == ["cannot be read: Is a directory"]


def test_a_folder_that_cannot_be_listed_does_not_hide_the_others(
    log_on_disk: LogOnDisk, lane: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, other = log_on_disk.root / "queue=001", log_on_disk.root / log_on_disk.lane("other").name
    closed.mkdir()
    (lane / "notes.txt").write_text("mine")
    (lane / "000000000000.arrow").unlink()

    def refuse(look: Callable[[str], object], path: str) -> object:
        if str(path) in (str(closed), str(other)):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path)

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, partial(refuse, getattr(os, name)))
    assert [(each.path, each.what) for each in found(log_on_disk)] == [
        (str(lane / "notes.txt"), "no part of a landing log"),
        (str(closed), "cannot be read: Permission denied"),
        (str(lane / "000000000000.arrow"), "it is missing"),
        (str(other), "cannot be read: Permission denied"),
    ]
