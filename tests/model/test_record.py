"""Records are JSON objects that say what they are."""

from dataclasses import fields
from typing import get_args

import orjson
import pytest

from lbg_runtime.model.record import RECORD_SCHEMA, CloseRecord, ConfirmedRecord, JournalHeader, LedgerHeader, Record

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


def test_a_record_of_the_close_counts_what_is_missing() -> None:
    assert orjson.loads(orjson.dumps(CloseRecord(5, 1, clean=False, t=9)))["dropped"] == 1
