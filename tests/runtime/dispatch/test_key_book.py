"""What a member remembers of single keys, however long they are."""

import tracemalloc
from types import SimpleNamespace
from typing import cast

from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.dispatch.key_book import KeyBook
from lbg_runtime.runtime.runners.handling import Handling
from tests.runtime.conftest import make_delivery


def _settle(book: KeyBook, key: str, attempts: int) -> None:
    handling = SimpleNamespace(key=key, attempts=attempts, delivery=make_delivery(1), done_mono_ns=1, end_report=None)
    book.settled(cast(Handling, handling))


def test_the_last_message_of_a_long_key_is_known_and_what_is_remembered_does_not_grow_with_the_key() -> None:
    nothing_waits = SimpleNamespace(look=lambda _: None, parked_of=lambda _: 0)
    shape = GroupShape(GroupName("orders"), "h", 8, 4)
    book = KeyBook(cast(Dispatcher, nothing_waits), shape, HashFunction.CRC32, cast(StripingBook, None))
    tracemalloc.start()
    try:
        for number in range(50):
            _settle(book, f"{number}{'x' * 100_000}", number + 1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000
    last = book.sight(f"7{'x' * 100_000}").last
    assert last is not None
    assert last.attempts == 8
