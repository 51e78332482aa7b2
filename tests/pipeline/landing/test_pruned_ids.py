"""The ids that stay of a pruned segment: which of them lie before a row, and that they are as they were written."""

from pathlib import Path

import pytest

from lbg_runtime.model.errors import LandingDamaged
from lbg_runtime.pipeline.landing.pruned_ids import read_pruned, write_pruned
from tests.pipeline.landing.landed import id_of

IDS = [id_of("k", number) for number in range(4)]


@pytest.mark.parametrize(("end_row", "count"), [(0, 0), (9, 0), (10, 0), (11, 1), (13, 3), (14, 4), (99, 4), (None, 4)])
def test_of_a_segment_whose_ids_are_all_kept_those_before_a_row_are_told(
    tmp_path: Path, end_row: int | None, count: int
) -> None:
    """One too many would have a reader leave out a message that it has not read."""
    write_pruned(tmp_path, 10, 14, IDS, 1)
    assert read_pruned(tmp_path, 10).ids(end_row).to_pylist() == IDS[:count]


@pytest.mark.parametrize("end_row", [11, 13, 14, None])
def test_where_only_the_last_are_kept_all_of_them_are_told(tmp_path: Path, end_row: int | None) -> None:
    """Nobody knows to which rows they belong."""
    write_pruned(tmp_path, 10, 14, IDS[2:], 1)
    assert read_pruned(tmp_path, 10).ids(end_row).to_pylist() == IDS[2:]


def test_what_another_process_that_prunes_has_written_again_is_no_damage(tmp_path: Path) -> None:
    """When it looked, the lane had more rows, and so it keeps fewer ids. A reader remembers what it has once read."""
    write_pruned(tmp_path, 10, 14, IDS, 1)
    known = read_pruned(tmp_path, 10)
    write_pruned(tmp_path, 10, 14, IDS[2:], 2)
    assert known.ids(14).to_pylist() == IDS[2:]


@pytest.mark.parametrize("place", [-1, 0, 20], ids=["content", "mark", "header"])
def test_a_flipped_bit_is_damage(tmp_path: Path, place: int) -> None:
    write_pruned(tmp_path, 10, 14, IDS, 1)
    [path] = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(LandingDamaged):
        read_pruned(tmp_path, 10).ids()


def test_ids_by_the_name_of_another_segment_are_damage(tmp_path: Path) -> None:
    """Copies of what the segment of that name had would come again."""
    write_pruned(tmp_path, 10, 14, IDS, 1)
    [path] = tmp_path.iterdir()
    path.rename(path.with_name("000000000014.ids"))
    with pytest.raises(LandingDamaged, match="its name is not that of its first row"):
        read_pruned(tmp_path, 14)
