"""Reading a laid out run in slices; that they are judged as the whole is in `tests/pipeline/test_parts.py`."""

from pathlib import Path

from lbg_runtime.journal.layout import lay_out, queues_of, read_whole
from lbg_runtime.journal.slices import read_slices
from tests.open_files import open_below
from tests.validator.history import story


def test_no_file_of_handlings_stays_open_between_two_slices(tmp_path: Path) -> None:
    """There is one for each journal and queue: more, in a long run, than a process may have open."""
    story().write(tmp_path)
    run = lay_out(tmp_path, tmp_path / "laid")
    slices = read_slices(run, read_whole(run), queues_of(run), 1)
    count = 0
    for _ in slices:
        count += 1
        assert not [path for path in open_below(tmp_path) if "dispatches-" in path.name]
    assert count > 1
