"""Records are JSON objects that say what they are."""

from dataclasses import fields
from typing import get_args

import orjson
import pytest

from lbg_runtime.model.record import (
    RECORD_SCHEMA,
    CloseRecord,
    ConfirmedRecord,
    JournalHeader,
    LedgerHeader,
    Record,
    StripesRecord,
)

KINDS = get_args(Record)


def test_every_kind_of_record_has_a_name_of_its_own() -> None:
    names = [next(field.default for field in fields(kind) if field.name == "kind") for kind in KINDS]
    assert len(set(names)) == len(KINDS)
    assert all(isinstance(name, str) for name in names)


@pytest.mark.parametrize("header", [JournalHeader, LedgerHeader])
def test_headers_carry_the_version_of_the_schema(header: type[JournalHeader | LedgerHeader]) -> None:
    assert next(field.default for field in fields(header) if field.name == "schema") == RECORD_SCHEMA


def test_a_record_becomes_one_line_of_json_with_its_kind() -> None:
    line = orjson.dumps(ConfirmedRecord("k\n", 1, 2, 3, 4, 5))
    assert b"\n" not in line
    assert orjson.loads(line) == {
        "key": "k\n",
        "shard": 1,
        "first_seq": 2,
        "last_seq": 3,
        "t_first": 4,
        "t_last": 5,
        "kind": "confirmed",
    }


def test_a_record_of_a_restriping_names_what_it_leads_from_and_to() -> None:
    line = orjson.dumps(StripesRecord(3, 2, "left", 1, 8, 12, 11, 4, 5))
    assert orjson.loads(line) == {
        "queue": 3,
        "bind_epoch": 2,
        "event": "left",
        "generation": 1,
        "from_count": 8,
        "to_count": 12,
        "shard": 11,
        "t": 4,
        "mono_ns": 5,
        "kind": "stripes",
    }


def test_a_record_of_the_close_counts_what_is_missing() -> None:
    assert orjson.loads(orjson.dumps(CloseRecord(5, 1, clean=False, t=9)))["dropped"] == 1
