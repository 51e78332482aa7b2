"""A session of ours is heard first, others are left alone, and what is not ours goes to the client as it was."""

import threading
from ctypes import byref, c_char_p
from types import SimpleNamespace
from typing import Any

import pytest

from lbg_runtime.transport.solace.fast.publish_session import (
    CALLBACK_TYPE,
    CONFIRM_MODE,
    MAKE_PROPERTIES,
    MANY_AT_ONCE,
    add_confirm_mode,
    build_heard,
)
from lbg_runtime.transport.solace.library import ClientSession, prepare_array

ITS_TYPE = getattr(ClientSession, CALLBACK_TYPE)
MAKE_ITS_PROPERTIES = getattr(ClientSession, MAKE_PROPERTIES)
EVENT = ITS_TYPE._argtypes_[1]._type_
CONFIG = {"solace.messaging.client.name": "c"}


class Builder:
    """In place of the client's: makes a session's callback and properties, as building a service does."""

    def __init__(self) -> None:
        self.passed_on: list[tuple[int, int]] = []

    def build(self) -> Any:
        return SimpleNamespace(
            callback=getattr(ClientSession, CALLBACK_TYPE)(self._routine),
            properties=[each for each in getattr(ClientSession, MAKE_PROPERTIES)(None, CONFIG) if each],
        )

    def _routine(self, _session: Any, info: Any, _user: Any) -> int:
        self.passed_on.append((info.contents.session_event, info.contents.response_code))
        return 0


def tell(service: Any, code: int, tag: int | None = None) -> None:
    event = EVENT(session_event=code, response_code=200, info_p=b"text", correlation_p=tag)
    assert service.callback(None, byref(event), service) == 0


def is_as_before() -> bool:
    held = ClientSession.__dict__
    return held[CALLBACK_TYPE] is ITS_TYPE and held[MAKE_PROPERTIES] is MAKE_ITS_PROPERTIES


def test_events_are_heard_first_and_the_rest_goes_to_the_client() -> None:
    heard: list[tuple[int, int, int]] = []

    def hear(code: int, response_code: int, tag: int) -> bool:
        heard.append((code, response_code, tag))
        return code == 6

    builder = Builder()
    service = build_heard(builder, hear)
    tell(service, 6, 1 << 40)
    tell(service, 11)
    assert heard == [(6, 200, 1 << 40), (11, 200, 0)]
    assert builder.passed_on == [(11, 200)]


def test_the_session_has_all_its_properties_and_one_more() -> None:
    properties = build_heard(Builder(), lambda *_: True).properties
    assert properties == [*Builder().build().properties, CONFIRM_MODE.encode(), MANY_AT_ONCE.encode()]


def test_only_the_session_that_is_built_is_heard() -> None:
    """Another thread may build a service of its own in the same moment, and anybody later."""
    heard: list[int] = []
    other = Builder()
    others: list[Any] = []

    class Slow(Builder):
        def build(self) -> Any:
            thread = threading.Thread(target=lambda: others.append(other.build()))
            thread.start()
            thread.join()
            return super().build()

    build_heard(Slow(), lambda code, *_: not heard.append(code))  # type: ignore[func-returns-value]
    others.append(other.build())
    for service in others:
        tell(service, 6)
        assert CONFIRM_MODE.encode() not in service.properties
    assert heard == []
    assert other.passed_on == [(6, 200), (6, 200)]


def test_the_class_is_as_before_also_where_building_failed() -> None:
    class Failing(Builder):
        def build(self) -> Any:
            assert not is_as_before()
            raise LookupError("for a test")

    with pytest.raises(LookupError):
        build_heard(Failing(), lambda *_: True)
    assert is_as_before()
    build_heard(Builder(), lambda *_: True)
    assert is_as_before()


def test_two_services_can_be_built_at_the_same_time() -> None:
    heard: list[str] = []
    services: list[Any] = []
    both = threading.Barrier(2)

    def build(name: str) -> None:
        both.wait(10)
        services.append(build_heard(Builder(), lambda *_: not heard.append(name)))  # type: ignore[func-returns-value]

    threads = [threading.Thread(target=build, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    for service in services:
        tell(service, 6)
    assert sorted(heard) == ["a", "b"]
    assert is_as_before()


def test_properties_that_leave_no_room_are_not_written_over() -> None:
    full = (c_char_p * 4)(b"SESSION_HOST", b"somewhere", None, None)
    with pytest.raises(ValueError, match="no room"):
        add_confirm_mode(full)
    assert list(full) == [b"SESSION_HOST", b"somewhere", None, None]
    real = prepare_array({"SESSION_HOST": "somewhere"})
    add_confirm_mode(real)
    assert list(real)[:5] == [b"SESSION_HOST", b"somewhere", CONFIRM_MODE.encode(), MANY_AT_ONCE.encode(), None]
