"""How the sink of a stream keeps to one way of hashing while its query runs, without a JVM."""

from dataclasses import replace
from pathlib import Path

import pytest

from lbg_runtime.model.errors import UserError
from lbg_runtime.pipeline.spark.run_hashing import NOTE, RunHashing, note_hashing, noted_hashing

FIRST = RunHashing("run 1", "hp", 8, "crc32")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    (tmp_path / "offsets").mkdir()
    return str(tmp_path)


@pytest.mark.parametrize(
    ("changed", "where", "found"),
    [
        (replace(FIRST, hash_prefix="other"), "group.hash_prefix", "other, and the query has published with hp"),
        (replace(FIRST, hash_count=16), "group.hash_count", "16, and the query has published with 8"),
        (
            replace(FIRST, hash_function="java_string"),
            "group.hash_function",
            "java_string, and the query has published with crc32",
        ),
    ],
)
def test_a_run_that_would_hash_in_another_way_than_before_is_refused(
    checkpoint: str, changed: RunHashing, where: str, found: str
) -> None:
    note_hashing(checkpoint, FIRST)
    with pytest.raises(UserError) as raised:
        changed.check(noted_hashing(checkpoint))
    assert (raised.value.where, raised.value.found) == (where, found)


def test_a_run_goes_on_in_its_way_and_the_next_run_may_have_another(checkpoint: str) -> None:
    FIRST.check(noted_hashing(checkpoint))
    note_hashing(checkpoint, FIRST)
    FIRST.check(noted_hashing(checkpoint))
    second = replace(FIRST, run="run 2", hash_count=16)
    second.check(noted_hashing(checkpoint))
    note_hashing(checkpoint, second)
    with pytest.raises(UserError, match="8, and the query has published with 16"):
        replace(second, hash_count=8).check(noted_hashing(checkpoint))


def test_a_checkpoint_elsewhere_is_left_alone(tmp_path: Path) -> None:
    note_hashing(None, FIRST)
    note_hashing("s3://bucket/checkpoint", FIRST)
    note_hashing(str(tmp_path), FIRST)
    assert noted_hashing(None) is noted_hashing("s3://bucket/checkpoint") is noted_hashing(str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"[]", b'{"run": "run 1"}'])
def test_a_note_that_is_damaged_ends_the_batch(checkpoint: str, content: bytes) -> None:
    (Path(checkpoint) / NOTE).write_bytes(content)
    with pytest.raises(UserError, match="not as it was written"):
        noted_hashing(checkpoint)
