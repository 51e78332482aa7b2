"""A handler whose effect must happen once: the booking and the mark of its message are in one transaction."""

import sqlite3

from lbg_runtime import Handlers, Message
from lbg_runtime.guard.sqlite import SqliteGuard

handlers = Handlers()
guard = SqliteGuard("bookings.db", scope="orders")


@handlers.handler("orders/>")
async def on_order(message: Message) -> None:
    """A copy of the message, or a former owner that finishes late, books nothing."""

    def book(database: sqlite3.Connection) -> None:
        database.execute("CREATE TABLE IF NOT EXISTS bookings (key TEXT, payload BLOB)")
        database.execute("INSERT INTO bookings VALUES (?, ?)", (message.key, message.payload))

    await guard.once(message, book)
