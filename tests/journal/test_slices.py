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


def test_records_come_in_slices_also_where_nothing_was_handled(tmp_path: Path) -> None:
    story().write(tmp_path)
    run = lay_out(tmp_path, tmp_path / "laid")
    whole, queues = read_whole(run), queues_of(run)

    def read() -> list[list[int]]:
        slices = [tables for tables, _ in read_slices(run, whole, queues, 1)]
        return [[getattr(tables, name).num_rows for tables in slices] for name in ("dispatches", "flows", "confirmed")]

    handlings, *others = read()
    assert max(handlings) < sum(handlings)
    for name in ("dispatches", "flows"):
        for path in run.glob(f"queue=*/{name}-*.parquet"):
            path.unlink()
        flows, confirmed = read()[1:]
        assert sum(flows) == (sum(others[0]) if name == "dispatches" else 0)
        assert sum(confirmed) == sum(others[1]) > 0
    for path in run.glob("queue=*/*confirmed-*.parquet"):
        path.unlink()
    assert read() == [[], [], []]


def test_flows_alone_are_a_slice(tmp_path: Path) -> None:
    story().write(tmp_path)
    run = lay_out(tmp_path, tmp_path / "laid")
    for path in [*run.glob("queue=*/dispatches-*.parquet"), *run.glob("queue=*/*confirmed-*.parquet")]:
        path.unlink()
    [(tables, _)] = read_slices(run, read_whole(run), queues_of(run), 1)
    assert tables.flows.num_rows > 0
