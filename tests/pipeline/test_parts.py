"""The verdict part by part is the one on the whole run."""

from pathlib import Path

import pytest

from lbg_runtime.journal.layout import lay_out
from lbg_runtime.journal.reader import read_run
from lbg_runtime.pipeline.parts import parts_of_run, validate_locally
from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.report import as_object
from tests.validator.history import story
from tests.validator.run_files import Run
from tests.validator.striping import striped_story


@pytest.mark.parametrize(
    ("run", "parts"), [(story(), 3), (striped_story(4, 6), 2), (striped_story(4, 8, 4), 4), (Run(), 1)]
)
def test_the_verdict_part_by_part_is_that_on_the_whole(run: Run, parts: int, tmp_path: Path) -> None:
    run.write(tmp_path)
    laid = lay_out(tmp_path, tmp_path / "laid")
    assert len(parts_of_run(laid)) == parts
    expected, found = as_object(validate(read_run(tmp_path))), as_object(validate_locally(laid))
    # Which findings of a law are shown depends on the parts.
    assert {**found, "witnesses": None} == {**expected, "witnesses": None}
