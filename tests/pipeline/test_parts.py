"""The verdict part by part is the one on the whole run."""

from pathlib import Path

import pytest

from lbg_runtime.journal.layout import lay_out
from lbg_runtime.journal.reader import read_run
from lbg_runtime.pipeline.parts import parts_of_run, validate_locally
from lbg_runtime.validator.findings import Law
from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.report import as_object
from tests.validator.changes import BREAKING, Change
from tests.validator.history import story
from tests.validator.run_files import Run
from tests.validator.script import Life, at, published
from tests.validator.striping import striped_story


def laid_out_in_small_groups(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Smaller than a slice and than what a queue has."""
    monkeypatch.setattr("lbg_runtime.journal.layout.ROW_GROUP_RECORDS", 3)
    return lay_out(folder, folder / "laid")


@pytest.mark.parametrize(
    ("run", "parts"), [(story(), 3), (striped_story(4, 6), 2), (striped_story(4, 8, 4), 4), (Run(), 1)]
)
def test_the_verdict_part_by_part_is_that_on_the_whole(
    run: Run, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write(tmp_path)
    expected = as_object(validate(read_run(tmp_path)))
    # The reader takes a file in blocks, too.
    monkeypatch.setattr("lbg_runtime.journal.reader._BLOCK_BYTES", 4000)
    laid = laid_out_in_small_groups(tmp_path, monkeypatch)
    assert len(parts_of_run(laid)) == parts
    assert as_object(validate_locally(laid)) == expected


@pytest.mark.parametrize("change", [change for _, change in BREAKING], ids=lambda change: change.__name__)
def test_a_part_in_slices_is_judged_as_in_one_go_with_all_its_witnesses(
    change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = story()
    assert change(run)
    run.write(tmp_path)
    laid = laid_out_in_small_groups(tmp_path, monkeypatch)
    expected = as_object(validate_locally(laid))
    monkeypatch.setattr("lbg_runtime.pipeline.parts.SLICE_RECORDS", 5)

    assert as_object(validate_locally(laid)) == expected


def test_a_repeat_of_what_slices_have_long_forgotten_is_told_with_both_its_handlings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    life = Life(run, "a").flow("active", 0)
    for number, seq in enumerate([*range(1, 31), 2]):
        life.handle(seq, 1_000 * number, 1_000 * number + 1, 1_000 * number + 2)
    life.flow("released", 40_000, cause="stop").close(50_000)
    published(run, 30).write(tmp_path)
    laid = laid_out_in_small_groups(tmp_path, monkeypatch)
    monkeypatch.setattr("lbg_runtime.pipeline.parts.SLICE_RECORDS", 5)

    found = {each.law: each for each in validate_locally(laid, 100).findings}[Law.DUPLICATE_WITHOUT_FAULT]
    assert [each.start_mono_ns for each in found.witnesses] == [at(1_000), at(30_000)]
