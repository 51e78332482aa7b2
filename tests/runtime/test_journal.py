"""Where a member's journal lies, and how its lives are told apart."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.restripe.news import StripesFinished
from lbg_runtime.core.roles import Place
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.ids import Epoch, MemberId
from lbg_runtime.runtime import journal as journal_module
from lbg_runtime.runtime.journal import open_journal


@pytest.fixture
def open_one(settings, tmp_path, monkeypatch):
    """Opens a journal of member-0 at a wall clock, closes it and returns its incarnation."""

    def open_at(now_us):
        monkeypatch.setattr(journal_module, "wall_us", lambda: now_us)
        before = set(tmp_path.iterdir())
        open_journal(tmp_path, settings().group.shape(), MemberId("member-0"), "run").close(clean=True)
        (path,) = set(tmp_path.iterdir()) - before
        header = json.loads(path.read_text().splitlines()[0])
        assert path.name == f"member-0-{header['incarnation']}.member.jsonl"
        return header["incarnation"]

    return open_at


def test_an_incarnation_is_the_wall_clock_or_above_every_earlier_one(open_one):
    assert [open_one(now_us) for now_us in (1_000, 2_000, 2_000, 500)] == [1_000, 2_000, 2_001, 2_002]


def test_other_members_and_other_files_do_not_count(open_one, tmp_path):
    strange = f"member-0-{'9' * 20}.member.jsonl"
    for name in ("member-00-9000.member.jsonl", "member-0-9000.ledger.jsonl", "member-0-x.member.jsonl", strange):
        (tmp_path / name).touch()
    assert open_one(1_000) == 1_000


def test_the_header_tells_the_group(settings, tmp_path):
    open_journal(tmp_path / "new" / "folder", settings().group.shape(), MemberId("m"), "run-7").close(clean=True)
    (path,) = (tmp_path / "new" / "folder").iterdir()
    header = json.loads(path.read_text().splitlines()[0])
    assert {name: header[name] for name in ("run_id", "group", "hash_prefix", "hash_count", "queue_count")} == {
        "run_id": "run-7", "group": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 4,
    }  # fmt: skip


def test_who_is_killed_before_it_has_a_queue_leaves_its_header(settings, tmp_path):
    journal = open_journal(tmp_path, settings().group.shape(), MemberId("m"), "run")
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["kind"] == "journal"
    journal.close(clean=False)


def test_who_is_killed_before_the_header_is_written_leaves_no_file(settings, tmp_path, monkeypatch):
    """An empty one would be a journal of which nobody knows what is missing, and no verdict on the run possible."""

    def killed(_file, _data):
        raise SystemExit

    with monkeypatch.context() as dying:
        dying.setattr(os, "write", killed)
        with pytest.raises(SystemExit):
            open_journal(tmp_path, settings().group.shape(), MemberId("m"), "run")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_one_line(settings, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"ops\.journal\.path: .*file/sub: Not a directory; expected a directory"):
        open_journal(tmp_path / "file" / "sub", settings().group.shape(), MemberId("m"), "")


def test_without_a_directory_nothing_is_written(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journal = open_journal(None, settings().group.shape(), MemberId("m"), "")
    machine = SimpleNamespace(epoch=1, place=Place(0, gives_way=False), state=FlowState.ACTIVE, in_flight=0)
    journal.flow_changed(0, machine, "inactive", "")
    journal.stripes(0, Epoch(1), StripesFinished(1, 4, 8))
    journal.flush()
    journal.close(clean=True)
    assert list(tmp_path.iterdir()) == []


def test_a_member_that_stood_still_says_so_before_anything_else(settings, tmp_path, monkeypatch):
    now_ns = 10**12
    monkeypatch.setattr(journal_module, "monotonic_ns", lambda: now_ns)
    journal = open_journal(tmp_path, settings().group.shape(), MemberId("m"), "run")
    machine = SimpleNamespace(epoch=1, place=Place(0, gives_way=False), state=FlowState.ACTIVE, in_flight=0)
    for pass_ns in (3_000_000_000, 3_000_000_001):
        now_ns += pass_ns
        journal.status(0, machine, 0)
        journal.flow_changed(0, machine, "inactive", "")
    journal.close(clean=True)

    (path,) = tmp_path.iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["journal", "status", "flow", "pause", "status", "flow", "close"]
    assert (rows[3]["from_mono_ns"], rows[3]["to_mono_ns"]) == (10**12 + 3_000_000_000, now_ns)


def test_when_a_handling_ended_is_told_by_the_wall_clock_and_what_never_began_is_not_told(
    settings, delivery, tmp_path, monkeypatch
):
    now_ns, now_us = 10**12, 10**15
    monkeypatch.setattr(journal_module, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(journal_module, "wall_us", lambda: now_us)
    journal = open_journal(tmp_path, settings().group.shape(), MemberId("m"), "run")
    for attempts in (0, 1):
        handling = SimpleNamespace(
            delivery=delivery(7), shard=0, key="k", topic="a", attempts=attempts, local_seq=1,
            start_mono_ns=now_ns - 3_000_000_000, done_mono_ns=now_ns - 2_000_000_000, outcome=None,
        )  # fmt: skip
        journal.handled(0, handling, is_settled=True)
    journal.close(clean=True)

    (path,) = tmp_path.iterdir()
    _, row, _ = map(json.loads, path.read_text().splitlines())
    assert (row["attempts"], row["outcome"]) == (1, "cancelled")
    assert (row["t_done"], row["t_settle"]) == (now_us - 2_000_000, now_us)


@pytest.mark.parametrize(("content", "expected"), [("5b1c\n", "5b1c"), (None, None)])
def test_the_header_tells_starts_of_a_host_apart(settings, tmp_path, monkeypatch, content, expected):
    if content is not None:
        (tmp_path / "boot_id").write_text(content)
    monkeypatch.setattr(journal_module, "_BOOT_ID", tmp_path / "boot_id")
    open_journal(tmp_path / "journals", settings().group.shape(), MemberId("m"), "run").close(clean=True)
    (path,) = (tmp_path / "journals").iterdir()
    assert json.loads(path.read_text().splitlines()[0])["boot_id"] == expected


@pytest.mark.parametrize(("number", "expected"), [(1 << 60, 1 << 60), ((1 << 60) + 1, None), ((1 << 63) - 1, None)])
def test_a_number_that_no_reader_takes_is_no_reason_for_it_to_take_the_record_for_damaged(
    settings, delivery, tmp_path, number, expected
):
    """Other publishers may count by a clock, in nanoseconds."""
    journal = open_journal(tmp_path, settings().group.shape(), MemberId("m"), "run")
    came = delivery(7)
    stamps = {**came.message.properties, "lbg_publisher": "p", "lbg_key_sequence": number}
    handling = SimpleNamespace(
        delivery=replace(came, message=replace(came.message, properties=stamps)), shard=0, key="a", topic="a",
        attempts=1, local_seq=1, start_mono_ns=1, done_mono_ns=2, outcome=None,
    )  # fmt: skip
    journal.handled(0, handling, is_settled=True)
    journal.close(clean=True)

    run = read_run(tmp_path)
    assert run.journals.column("defect").to_pylist() == [None]
    assert run.dispatches.column("seq").to_pylist() == [expected]
