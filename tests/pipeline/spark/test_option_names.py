"""Options that are nearly ours."""

import pytest

from lbg_runtime.model.errors import UserError
from lbg_runtime.pipeline.spark.option_names import check_option_names
from lbg_runtime.pipeline.spark.sink_options import read_sink_options
from lbg_runtime.pipeline.spark.source_options import read_source_options

KNOWN = ("path", "startingOffsets", "failOnDataLoss")


@pytest.mark.parametrize("name", ["startingOffset", "starting_offsets", "failOnDatalost", "STARTINGOFSETS", "paths"])
def test_a_slip_is_named_with_what_was_meant(name: str) -> None:
    with pytest.raises(UserError, match=r"startingOffsets|failOnDataLoss|path") as raised:
        check_option_names([name], KNOWN)
    assert raised.value.where == f"option {name}"


def test_sparks_own_and_ours_in_any_case_are_left_alone() -> None:
    check_option_names(["PATH", "startingoffsets", "checkpointLocation", "queryName", "mergeSchema"], KNOWN)


def test_source_and_sink_look_at_their_names() -> None:
    with pytest.raises(UserError, match="startingOffsets"):
        read_source_options({"path": "nowhere", "startingOffset": "latest"})
    with pytest.raises(UserError, match="keyColumn"):
        read_sink_options({"topic": "t", "keyColum": "account"}, {"key": "string", "payload": "binary"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("startingTimestamp", "startingOffsets"),
        ("STARTINGOFFSETSBYTIMESTAMP", "startingOffsets"),
        ("maxOffsetsPerTrigger", "maxRowsPerBatch"),
        ("maxBytesPerTrigger", "maxBytesPerBatch"),
        ("endingOffsets", "a condition on t_land"),
    ],
)
def test_what_other_sources_call_it_is_named_with_what_it_is_here(name: str, meant: str) -> None:
    with pytest.raises(UserError) as raised:
        read_source_options({"path": "nowhere", name: "2026-01-31"})
    assert str(raised.value) == f"option {name}: not known; expected {meant}"
