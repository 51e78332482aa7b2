"""A key is first once in an epoch, and never passed over where memory ends."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.dispatch.seen_keys import LONGEST_REMEMBERED, SeenKeys

QUEUE, OTHER = QueueName("orders/0"), QueueName("orders/1")


def meet(seen: SeenKeys, *keys: str, epoch: int = 1, queue: QueueName = QUEUE) -> list[bool]:
    return [seen.meet(queue, Epoch(epoch), LaneKey(key)) for key in keys]


def test_a_key_is_first_once_in_an_epoch() -> None:
    assert meet(SeenKeys(), "a", "b", "a", "b", "c") == [True, True, False, False, True]


def test_a_new_epoch_begins_anew() -> None:
    seen = SeenKeys()
    assert meet(seen, "a") + meet(seen, "a", epoch=2) + meet(seen, "a", epoch=2) == [True, True, False]


def test_a_key_that_comes_from_another_queue_is_new() -> None:
    seen = SeenKeys()
    assert meet(seen, "a") + meet(seen, "a", queue=OTHER) + meet(seen, "a", queue=OTHER) == [True, True, False]


def test_the_key_not_met_for_longest_is_forgotten_first() -> None:
    assert meet(SeenKeys(2), "a", "b", "a", "c", "a", "b") == [True, True, False, True, False, True]


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans())))
def test_a_key_that_is_new_in_its_epoch_is_always_first(capacity: int, steps: list[tuple[str, bool]]) -> None:
    seen, epoch, met = SeenKeys(capacity), 1, set()
    for key, begins_epoch in steps:
        if begins_epoch:
            epoch, met = epoch + 1, set()
        [is_first] = meet(seen, key, epoch=epoch)
        assert is_first or key in met
        met.add(key)


def test_a_key_that_is_taken_back_is_first_again_in_whichever_generation_it_is() -> None:
    seen = SeenKeys(2)
    meet(seen, "a", "b")  # the generations have changed: "a" is in the old one
    for key in ("a", "b", "never met"):
        seen.take_back(LaneKey(key))
    assert meet(seen, "a", "b", "a") == [True, True, False]


def test_keys_of_a_queue_that_are_forgotten_are_new_within_their_epoch_and_no_others() -> None:
    seen = SeenKeys(4)
    meet(seen, "a", "b")
    meet(seen, "c", queue=OTHER)  # the generations have changed: "a" and "b" are in the old one
    seen.forget(QUEUE)
    assert meet(seen, "a", "b", "a") == [True, True, False]
    assert meet(seen, "c", queue=OTHER) == [False]


@pytest.mark.parametrize("length", [LONGEST_REMEMBERED, LONGEST_REMEMBERED + 1])
def test_a_long_key_is_known_like_any_other(length: int) -> None:
    seen, key, other = SeenKeys(), "x" * length, "x" * (length - 1) + "y"
    assert meet(seen, key, other, key, other) == [True, True, False, False]
    seen.take_back(LaneKey(key))
    assert meet(seen, key, other) == [True, False]


def test_what_is_remembered_of_keys_does_not_grow_with_their_length() -> None:
    """A rule for keys that points at a text of a message makes each text a key: a member held gigabytes of them."""
    seen = SeenKeys()
    tracemalloc.start()
    try:
        for number in range(50):
            meet(seen, f"{number}{'x' * 100_000}")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000
