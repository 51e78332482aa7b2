"""The balances that docs/examples/running_balance.py publishes, in a table: an account's newest, each change once."""

import os
import sqlite3

import orjson

from lbg_runtime import Handlers, Message
from lbg_runtime.guard.sqlite import SqliteGuard

handlers = Handlers()
guard = SqliteGuard(os.environ.get("BALANCES_DB", "balances.db"), scope="balances")


@handlers.handler("balances/changed")
async def on_balance(message: Message) -> None:
    """Copies, which a Spark batch that is run again leaves, change nothing: the guard knows them."""
    change = orjson.loads(message.payload)

    def book(database: sqlite3.Connection) -> None:
        database.execute(
            "CREATE TABLE IF NOT EXISTS balances"
            " (account TEXT PRIMARY KEY, orders INTEGER, cents INTEGER, seen INTEGER)"
        )
        database.execute(
            "INSERT INTO balances VALUES (?, ?, ?, 1) ON CONFLICT (account)"
            " DO UPDATE SET orders = excluded.orders, cents = excluded.cents, seen = seen + 1",
            (change["account"], change["orders"], change["cents"]),
        )

    await guard.once(message, book)
