"""Streams of an application that pulls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import UserError
from lbg_runtime.sidecar.answer import Status
from lbg_runtime.sidecar.pulling import Streams, read_settlements


def test_an_event_goes_to_the_stream_with_the_most_room():
    streams = Streams("a")
    small, large = streams.open(1), streams.open(3)
    given_to = []
    for _ in range(4):
        assert streams.has_room
        given_to.append(streams.give()[0])
    assert (given_to.count(small), given_to.count(large)) == (1, 3)
    assert streams.give() is None
    assert not streams.has_room


def test_one_that_is_overdue_is_given_what_no_other_has_room_for_and_one_at_a_time():
    streams = Streams("a")
    overdue, other = streams.open(9), streams.open(2)
    overdue.is_overdue = True
    assert [streams.give()[0] for _ in range(3)] == [other, other, overdue]
    assert not streams.has_room
    assert streams.give() is None
    overdue.is_overdue = False
    assert streams.give()[0] is overdue


def test_no_id_of_one_life_is_given_in_another():
    former, current = Streams("a"), Streams("b")
    for streams in (former, current):
        streams.open(1)
    (_, old_id), (_, new_id) = former.give(), current.give()
    current.take_back(old_id)
    assert not current.has_room
    current.take_back(new_id)
    assert current.has_room


def test_a_settled_event_makes_room_once():
    streams = Streams("a")
    stream = streams.open(1)
    _, event_id = streams.give()
    for _ in range(2):
        streams.take_back(event_id)
        assert stream.room == 1
    assert streams.give()[1] != event_id


def test_what_is_open_on_a_stream_goes_with_it():
    streams = Streams("a")
    stream, other = streams.open(2), streams.open(1)
    ids = [streams.give()[1] for _ in range(2)]
    lost = streams.close(stream)
    assert set(lost) <= set(ids)
    assert streams.close(stream) == ()
    for event_id in lost:
        streams.take_back(event_id)
    streams.close(other)
    assert streams.give() is None


@given(st.lists(st.tuples(st.sampled_from(["open", "close", "give", "back"]), st.integers(0, 5)), max_size=80))
def test_no_stream_has_more_than_it_asked_for_and_no_id_is_used_twice(steps):
    streams, opened, given_ids = Streams("a"), [], []
    for step, number in steps:
        if step == "open":
            opened.append(streams.open(number + 1))
        elif step == "close" and opened:
            streams.close(opened.pop(number % len(opened)))
        elif step == "give" and (given := streams.give()) is not None:
            assert given[0] in opened
            given_ids.append(given[1])
        elif step == "back" and given_ids:
            streams.take_back(given_ids[number % len(given_ids)])
        assert all(stream.room >= 0 for stream in opened)
    assert len(given_ids) == len(set(given_ids))


def test_settlements_are_one_or_a_list():
    assert [(each, answer.status) for each, answer in read_settlements(b'{"id": "1-1", "status": "SUCCESS"}')] == [
        ("1-1", Status.SUCCESS)
    ]
    told = read_settlements(b'[{"id": "a", "status": "DROP"}, {"id": "b", "status": "RETRY"}]')
    assert [answer.status for _, answer in told] == [Status.DROP, Status.RETRY]


@pytest.mark.parametrize("status", [b'"success"', b'"DONE"', b'"SUCCESS "', b'""', b"5", b"null", b'["SUCCESS"]'])
def test_a_status_that_is_none_of_the_three_is_refused(status):
    """Its sender would get the event again without end."""
    with pytest.raises(UserError, match=r"""an entry with status .*; expected .*"SUCCESS" \| "RETRY" \| "DROP\""""):
        read_settlements(b'{"id": "a", "status": ' + status + b"}")
    with pytest.raises(UserError, match=r"body: an entry without status; expected "):
        read_settlements(b'[{"id": "a", "status": "SUCCESS"}, {"id": "b"}]')


@pytest.mark.parametrize("body", [b"", b"{broken", b"7", b'["a"]', b'{"status": "SUCCESS"}', b'[{"id": 1}]'])
def test_what_is_no_settlement_is_refused(body):
    with pytest.raises(UserError, match="body"):
        read_settlements(body)
