"""What parts have said is there for whoever goes on with the checkpoint, as of the last batch that is done."""

import pickle
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from py4j.protocol import Py4JNetworkError

from lbg_runtime.journal.pieces import Place
from lbg_runtime.model.errors import StreamFailed, UserError
from lbg_runtime.pipeline.spark import running_verdict
from lbg_runtime.pipeline.spark.kept_verdict import KeptVerdict, Said
from lbg_runtime.pipeline.spark.running_verdict import RunningVerdict
from lbg_runtime.validator.findings import NOTHING_YET, Finding, Law
from tests.failing_disk import FAULTS, Fault, each_operation
from tests.open_files import open_below


def said(published: int) -> Said:
    findings = tuple(Finding(Law.ORDER, f"finding {number}", ()) for number in range(published))
    return Said({0: replace(NOTHING_YET, published=published), 2: NOTHING_YET}, findings)


@pytest.fixture
def kept(tmp_path: Path) -> KeptVerdict:
    return KeptVerdict(tmp_path)


def note_done(checkpoint: Path, batch: int) -> None:
    (checkpoint / "commits").mkdir(exist_ok=True)
    (checkpoint / "commits" / str(batch)).touch()
    # As Hadoop's file system leaves it.
    (checkpoint / "commits" / f".{batch}.crc").touch()


def test_nothing_was_said_before_the_first_batch_is_done(kept: KeptVerdict) -> None:
    assert kept.load() == Said({}, ())
    kept.keep(0, said(1))
    assert kept.load() == Said({}, ())


def test_what_a_batch_said_that_is_not_done_is_said_by_whoever_runs_it_again(kept: KeptVerdict, tmp_path: Path) -> None:
    for batch in range(5):
        kept.keep(batch, said(batch))
        note_done(tmp_path, batch)
    kept.keep(5, said(50))
    assert kept.load() == kept.before(5) == said(4)
    assert kept.before(6) == said(50)
    kept.keep(5, said(5))
    note_done(tmp_path, 5)
    assert kept.load() == said(5)


@pytest.mark.parametrize("content", [b"", b"\x80\x04", pickle.dumps(said(1))[:-20], pickle.dumps(None)])
def test_what_was_said_and_is_damaged_is_one_line_and_no_verdict(
    kept: KeptVerdict, tmp_path: Path, content: bytes
) -> None:
    """An error of any other kind ended the command with the exit code for a broken law."""
    kept.keep(0, said(1))
    (tmp_path / "verdict" / "0").write_bytes(content)
    with pytest.raises(UserError, match="not as it was written"):
        kept.before(1)


def test_a_checkpoint_is_of_one_directory_for_good(tmp_path: Path) -> None:
    run, other, checkpoint = tmp_path / "run", tmp_path / "other", tmp_path / "check" / "point"
    run.mkdir()
    (tmp_path / "also run").symlink_to(run)
    KeptVerdict(checkpoint).claim(run)
    KeptVerdict(checkpoint).claim(tmp_path / "also run")
    with pytest.raises(UserError) as raised:
        KeptVerdict(checkpoint).claim(other)
    assert raised.value.where == str(checkpoint)
    assert raised.value.found == f"the checkpoint of {run}"
    kept = KeptVerdict(checkpoint)
    kept.keep(0, said(1))
    note_done(checkpoint, 0)
    assert kept.load() == said(1)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    """What the first version had read of a file, it had judged only in part."""
    run, checkpoint = tmp_path / "run", tmp_path / "checkpoint"
    KeptVerdict(checkpoint).claim(run)
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "0").touch()
    KeptVerdict(checkpoint).claim(run)
    (checkpoint / "verdict" / "version").unlink()
    with pytest.raises(UserError) as raised:
        KeptVerdict(checkpoint).claim(run)
    assert str(raised.value) == f"{checkpoint}: the checkpoint of another version of lbg-runtime; expected a new one"


def test_a_query_does_not_start_with_the_checkpoint_of_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    monkeypatch.setattr(running_verdict, "_start", lambda _, directory, *__: started.append(directory))

    def start(name: str) -> None:
        RunningVerdict(None, tmp_path / name, tmp_path / "checkpoint", 1_000)  # type: ignore[arg-type]  # no JVM

    start("run")
    start("run")
    with pytest.raises(UserError, match="the checkpoint of"):
        start("other")
    assert started == [tmp_path / "run"] * 2


def test_a_query_whose_jvm_has_died_fails_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    query = SimpleNamespace(awaitTermination=fail, processAllAvailable=fail, stop=fail)
    monkeypatch.setattr(running_verdict, "_start", lambda *_: query)
    running = RunningVerdict(None, tmp_path, tmp_path / "checkpoint", 1_000)  # type: ignore[arg-type]  # no JVM
    running.catch_up()
    for call in (lambda: running.look(0.1), running.stop):
        with pytest.raises(StreamFailed) as raised:
            call()
        assert raised.value.reason == "the JVM of Spark does not answer any more"
    monkeypatch.setattr(running_verdict, "_start", fail)
    with pytest.raises(StreamFailed):
        RunningVerdict(None, tmp_path, tmp_path / "checkpoint", 1_000)  # type: ignore[arg-type]  # no JVM


def test_a_run_that_goes_on_is_caught_up_with_at_the_ends_of_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(has_more: bool) -> dict[str, object]:
        places = {"a": [0, *Place(9)], "b": [1, *Place(9, has_more=has_more)]}
        return {"sources": [{"endOffset": {"parts": 2, "files": places}}]}

    query = SimpleNamespace(lastProgress=None)
    monkeypatch.setattr(running_verdict, "_start", lambda *_: query)
    running = RunningVerdict(None, tmp_path, tmp_path / "checkpoint", 1_000)  # type: ignore[arg-type]  # no JVM
    found = [running.is_at_the_ends]
    running._take(SimpleNamespace(collect=list), 7)  # type: ignore[arg-type]  # no JVM
    for number, has_more in [(7, False), (8, True), (9, False)]:
        query.lastProgress = SimpleNamespace(batchId=number, json=orjson.dumps(end(has_more)).decode())
        found.append(running.is_at_the_ends)
    # The first batch may be one that was planned before there was what is there at the start.
    assert found == [False, False, False, True]


def test_the_last_two_batches_are_kept(kept: KeptVerdict, tmp_path: Path) -> None:
    for batch in range(9):
        kept.keep(batch, said(batch))
        note_done(tmp_path, batch)
    assert {path.name for path in (tmp_path / "verdict").iterdir()} == {"7", "8"}


def test_a_batch_that_was_cut_short_while_it_was_kept_leaves_the_one_before(kept: KeptVerdict, tmp_path: Path) -> None:
    kept.keep(0, said(3))
    note_done(tmp_path, 0)
    (tmp_path / "verdict" / ".1").write_bytes(b"half")
    assert kept.load() == said(3)
    kept.keep(1, said(4))
    note_done(tmp_path, 1)
    assert kept.load() == said(4)


@pytest.mark.parametrize("fault", FAULTS, ids=attrgetter("name"))
def test_whatever_the_disk_refuses_a_batch_that_is_done_is_kept_and_the_others_are_run_again(
    tmp_path: Path, fault: Fault
) -> None:
    def go_on(checkpoint: Path, directory: Path) -> None:
        kept = KeptVerdict(checkpoint)
        kept.claim(directory)
        for batch in range(len(done), 3):
            assert kept.before(batch) == (said(batch - 1) if batch else Said({}, ()))
            kept.keep(batch, said(batch))
            done.append(batch)

    for top, disk in each_operation(tmp_path, fault):
        done: list[int] = []
        with disk.ill(), suppress(OSError, UserError):
            go_on(top / "checkpoint", tmp_path)
        assert open_below(top) == []
        go_on(top / "checkpoint", tmp_path)
        kept = KeptVerdict(top / "checkpoint")
        assert kept.before(3) == said(2)
        names = sorted(path.name for path in (top / "checkpoint/verdict").iterdir())
        assert names == ["1", "2", "directory", "version"]
