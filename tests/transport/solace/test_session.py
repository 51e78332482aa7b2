"""The end of a session, while the library still waits for something on another thread."""

import threading
from typing import Any, cast

import pytest

from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.session import SolaceSession

PATIENCE_S = 10.0


class Library:
    """Notes what it is asked, in order; an answer to the inbox comes when it is let."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_asked = threading.Event()
        self.is_cut = threading.Event()
        self.may_answer = threading.Event()
        self.session_pointer = 1
        self.session = self

    def repeat_inbox(self, _: object) -> None:
        self.is_asked.set()
        assert self.may_answer.wait(PATIENCE_S)
        self.calls.append("answered")

    def break_off(self, _: object) -> None:
        self.calls.append("cut")
        self.is_cut.set()

    def disconnect(self) -> None:
        self.calls.append("disconnected")

    def session_cleanup(self) -> None:
        self.calls.append("freed")

    def close(self) -> None:
        """That of the transactions."""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(native, "repeat_inbox", library.repeat_inbox)
    monkeypatch.setattr(native, "break_off", library.break_off)
    return library


def session_of(library: Library) -> SolaceSession:
    return SolaceSession(library, cast(Any, None), cast(Any, library))


def test_a_session_is_not_freed_while_the_library_waits_in_it(library: Library) -> None:
    # It crashed the process: the connection was lost, so that nobody waited for the answer, and the member left.
    session = session_of(library)
    asking = threading.Thread(target=session.is_heard)
    asking.start()
    assert library.is_asked.wait(PATIENCE_S)
    ending = threading.Thread(target=session.disconnect)
    ending.start()
    assert library.is_cut.wait(PATIENCE_S)
    library.may_answer.set()
    ending.join(PATIENCE_S)
    asking.join(PATIENCE_S)
    assert library.calls == ["cut", "answered", "disconnected", "freed"]


def test_a_session_that_is_over_is_not_asked(library: Library) -> None:
    session = session_of(library)
    session.disconnect()
    assert not session.is_heard()
    assert library.calls == ["disconnected", "freed"]
