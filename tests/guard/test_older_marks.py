"""Marks that an earlier version has left in SQLite hold; of PostgreSQL, the table of the page is tried as it stands."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.guard.bench import SqliteBench, message

pytestmark = pytest.mark.real_time

OF_22_NOVEMBER = """
CREATE TABLE IF NOT EXISTS lbg_guard (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    publisher TEXT NOT NULL,
    number INTEGER NOT NULL,
    marked_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (scope, key, publisher)
) WITHOUT ROWID;
INSERT INTO lbg_guard (scope, key, publisher, number) VALUES ('orders', 'k', 'p', 3);
"""


async def test_marks_of_an_earlier_version_hold(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "effects.db")) as database:
        database.executescript(OF_22_NOVEMBER)
    bench = SqliteBench(tmp_path / "effects.db")
    assert [await bench.apply(message(number)) for number in (2, 3, 4)] == [False, False, True]
    assert await bench.written() == ["p4"]
    await bench.guard.close()
