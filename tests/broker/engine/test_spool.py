import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.model.errors import InvariantViolated


def filled(count: int) -> Spool:
    spool = Spool()
    for number in range(1, count + 1):
        spool.add(Published("t", number, size_bytes=number))
    return spool


def test_messages_go_out_in_the_order_they_came():
    spool = filled(3)

    assert [message.message.content for message in spool.take_next(3)] == [1, 2, 3]
    assert (spool.depth, spool.waiting_count, spool.unacked_count, spool.spooled_bytes) == (3, 0, 3, 6)


def test_what_is_put_back_takes_its_old_place():
    spool = filled(4)
    taken = spool.take_next(3)
    for message in (taken[2], taken[0]):
        spool.put_back(message)

    assert [message.sequence for message in spool.take_next(3)] == [1, 3, 4]


def test_putting_back_twice_counts_once():
    spool = filled(1)
    (message,) = spool.take_next(1)
    spool.put_back(message)
    spool.put_back(message)

    spool.take_next(1)
    assert spool.waiting_count == 0


def test_a_held_message_is_not_handed_out_and_comes_back_to_its_place():
    spool = filled(3)
    first, second = spool.take_next(2)
    spool.put_back(first)
    spool.put_back(second)
    spool.hold(first)

    assert spool.take_next(1) == [second]
    spool.put_back(first)
    assert spool.take_next(1) == [first]


def test_a_removed_message_is_gone_wherever_it_was():
    spool = filled(3)
    (taken,), waiting = spool.take_next(1), spool.next_from(2)
    assert waiting is not None

    spool.remove([taken, waiting, taken])
    spool.remove([waiting])
    spool.put_back(taken)
    assert spool.take_next(1)[0].sequence == 3
    assert (spool.depth, spool.spooled_bytes, spool.unacked_count) == (1, 3, 1)


def test_only_waiting_messages_can_be_held():
    spool = filled(1)
    with pytest.raises(InvariantViolated):
        spool.hold(*spool.take_next(1))


def test_nothing_to_hand_out_is_an_error():
    with pytest.raises(InvariantViolated):
        Spool().take_next(1)


def test_a_message_is_found_however_many_places_are_empty_before_it():
    spool = filled(2)
    spool.skip_to(1 << 60)
    spool.add(Published("t", 3, 1))

    assert [message.message.content for message in spool.messages_behind(1)] == [2, 3]
    found = spool.next_from(3)
    assert found is not None
    spool.remove([found])
    assert spool.next_from(3) is None


class Content:
    """Something that a weak reference can watch."""


def test_the_content_of_removed_messages_is_let_go_though_nobody_reads_the_queue():
    spool = filled(1)
    watched = []
    for _ in range(1000):
        content = Content()
        watched.append(weakref.ref(content))
        spool.add(Published("t", content, 1))
        message = spool.next_from(spool.last_sequence)
        assert message is not None
        spool.remove([message])

    assert sum(reference() is not None for reference in watched) < 100


@given(st.lists(st.sampled_from(["add", "take", "back", "remove", "remove waiting"]), max_size=200), st.data())
def test_the_first_waiting_message_is_always_next(steps, data):
    spool = Spool()
    waiting: list[int] = []
    taken = {}
    for number, step in enumerate(steps):
        if step == "add":
            spool.add(Published("t", number, 1))
            waiting.append(spool.last_sequence)
        elif step == "take" and waiting:
            count = data.draw(st.integers(1, len(waiting)))
            for message in spool.take_next(count):
                assert message.sequence == waiting.pop(0)
                taken[message.sequence] = message
        elif step in ("back", "remove") and taken:
            message = taken.pop(data.draw(st.sampled_from(sorted(taken))))
            if step == "back":
                spool.put_back(message)
                waiting = sorted([*waiting, message.sequence])
            else:
                spool.remove([message])
        elif step == "remove waiting" and waiting:
            found = spool.next_from(waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))
            assert found is not None
            spool.remove([found])
        assert spool.depth == len(waiting) + len(taken)
        assert spool.waiting_count == len(waiting)
        assert spool.first_sequence == min([*waiting, *taken], default=spool.last_sequence + 1)
