"""The example of the README does what it says."""

import sqlite3
from pathlib import Path

import pytest

from handlers import bookings
from lbg_runtime.guard.sqlite import SqliteGuard
from lbg_runtime.model.message import Message

pytestmark = pytest.mark.real_time


def order(number: int) -> Message:
    stamps = {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": number}
    return Message("h/0/orders/new", str(number).encode(), stamps)


async def test_an_order_is_booked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bookings.db"
    guard = SqliteGuard(path, scope="orders")
    monkeypatch.setattr(bookings, "guard", guard)
    for number in (1, 2, 1, 3, 2):
        await bookings.on_order(order(number))
    await guard.close()
    database = sqlite3.connect(path)
    assert database.execute("SELECT payload FROM bookings").fetchall() == [(b"1",), (b"2",), (b"3",)]
    database.close()


def test_the_readme_shows_this_example() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    example = Path(bookings.__file__).read_text()
    shown = example[example.index("guard = ") :]
    assert shown in readme
