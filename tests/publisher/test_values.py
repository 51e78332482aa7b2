"""What is made without its constructor is what the constructor makes."""

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from lbg_runtime.model.message import Headers, Message
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.publisher.values import make_confirmation, make_message

PAIRS = [
    (make_message("t", b"p", {"k": 1}, "id", 7, Headers("c")), Message("t", b"p", {"k": 1}, "id", 7, Headers("c"))),
    (make_confirmation("k", 1, 2, "t", "id"), Confirmation("k", 1, 2, "t", "id")),
]


@pytest.mark.parametrize(("made", "constructed"), PAIRS, ids=["message", "confirmation"])
def test_it_is_the_same_value(made: Any, constructed: Any) -> None:
    assert type(made) is type(constructed)
    # By field, as a new field that is not made would be missing without a word.
    for each in fields(constructed):
        assert getattr(made, each.name) == getattr(constructed, each.name)
    assert made == constructed
    assert repr(made) == repr(constructed)
    with pytest.raises(FrozenInstanceError):
        made.topic = "other"


def test_equal_confirmations_hash_alike() -> None:
    made, constructed = PAIRS[1]
    assert {made, constructed} == {constructed}
