from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.engine.effects import ClientId, DeliverDirect, DeliverRun, FlowId, Published
from lbg_runtime.broker.server import outbox as outbox_module
from lbg_runtime.broker.server.outbox import MAX_DIRECT_BYTES, OVERHEAD_BYTES, WRITE_BYTES, Outbox
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.smf.contents import message_of
from lbg_runtime.smf.frame import DISCARDED, Frame, FrameReader, ParameterKind, Protocol, decode_frame, encode_frame
from lbg_runtime.smf.message import make_relay, read_published

CLIENT = ClientId(1)
ANSWER = bytes.fromhex("038b00ff0000000c0000000c")


def message(size: int, class_of_service: int = 0) -> Published:
    relay = make_relay("a/b", bytes(size))
    head = relay.head[:2] + bytes((class_of_service << 4,)) + relay.head[3:]
    return Published("a/b", replace(relay, head=head), relay.size_bytes)


def direct(number: int, class_of_service: int) -> DeliverDirect:
    """Its size tells it from others."""
    return DeliverDirect(CLIENT, message(number, class_of_service))


def run(first: int, *sizes: int, redelivered: bool = False) -> DeliverRun:
    messages = tuple(map(message, sizes))
    return DeliverRun(CLIENT, FlowId(2), DeliveryId(first), DeliveryId(first - 1), messages, redelivered)


def frames(pieces: list[bytes]) -> list[bytes]:
    reader = FrameReader(1 << 30)
    reader.feed(b"".join(pieces))
    return list(iter(reader.next_frame, None))


def test_everything_comes_out_in_the_order_it_went_in() -> None:
    outbox = Outbox()
    outbox.put_deliveries(run(1, 10))
    outbox.put(ANSWER)
    outbox.put_direct(DeliverDirect(CLIENT, message(20)))
    found = frames(outbox.take())
    assert [len(raw) for raw in found] == [12 + 29 + 9 + 10, 12, 12 + 9 + 20]
    assert found[1] == ANSWER
    assert not outbox


def test_a_write_takes_about_so_much_and_leaves_the_rest() -> None:
    outbox = Outbox()
    for number in range(1, 11):
        outbox.put_deliveries(run(number, WRITE_BYTES // 4))
    assert len(frames(outbox.take())) == 4
    assert outbox
    assert len(frames(outbox.take() + outbox.take())) == 6


def test_a_write_counts_answers_and_direct_messages_too() -> None:
    outbox = Outbox()
    large = encode_frame(Frame(Protocol.MESSAGE, (), bytes(WRITE_BYTES // 4)))
    for _ in range(5):
        outbox.put(large)
    assert len(frames(outbox.take())) == 4
    outbox.put_deliveries(run(1, *[WRITE_BYTES // 4] * 5))
    assert len(frames(outbox.take())) == 1 + 3
    outbox = Outbox()
    for _ in range(5):
        outbox.put_direct(DeliverDirect(CLIENT, message(WRITE_BYTES // 4)))
    assert len(frames(outbox.take())) == 4


def test_the_first_message_of_a_group_says_so() -> None:
    outbox = Outbox()
    outbox.put_deliveries(replace(run(1, 10, 20), first_property="first"))
    outbox.put_deliveries(run(3, 10))
    said = []
    for raw in frames(outbox.take()):
        published = read_published(raw)
        said.append((published.message_id, message_of("a/b", published.relay).properties))
    assert said == [(1, {"first": True}), (2, {"first": True}), (3, {})]


def test_a_message_larger_than_a_write_is_taken_whole() -> None:
    outbox = Outbox()
    outbox.put_deliveries(run(1, 3 * WRITE_BYTES))
    assert len(frames(outbox.take())) == 1


def ids_in(frame: bytes) -> tuple[int, int]:
    """The id of a delivery, and that of the one before it."""
    found = decode_frame(frame)
    first, second = found.find(ParameterKind.MESSAGE_ID), found.find(ParameterKind.PREVIOUS_ID)
    assert first is not None
    assert second is not None
    return int.from_bytes(first, "big"), int.from_bytes(second, "big")


@given(
    sizes=st.lists(st.integers(0, 2 * WRITE_BYTES), min_size=1, max_size=8),
    redelivered=st.booleans(),
    is_held=st.booleans(),
)
def test_a_run_is_cut_where_a_write_is_full_and_goes_on_where_it_was_cut(
    sizes: list[int], redelivered: bool, is_held: bool
) -> None:
    outbox = Outbox()
    if is_held:
        outbox.hold_messages()
    outbox.put_deliveries(run(4, *sizes, redelivered=redelivered))
    outbox.put(ANSWER)
    assert outbox.waiting_count == (1 if is_held else len(sizes) + 1)
    found = []
    if is_held:
        found.append(ANSWER)
        assert frames(outbox.take()) == found
        outbox.release_messages()
    taken_count = len(found)
    while outbox:
        some = frames(outbox.take())
        assert some
        # Each write but its last message is below the bound: what a slow reader makes wait here is little.
        assert sum(map(len, some[:-1])) < WRITE_BYTES + 200 * len(some)
        found += some
        taken_count += len(some)
        assert outbox.waiting_count == len(sizes) + 1 - taken_count
    assert found.pop(0 if is_held else -1) == ANSWER
    assert [len(decode_frame(frame).body) for frame in found] == sizes
    assert [ids_in(frame) for frame in found] == [(number, number - 1) for number in range(4, 4 + len(sizes))]
    flags = [decode_frame(frame).find(ParameterKind.REDELIVERED) is not None for frame in found]
    assert flags == [redelivered] * len(sizes)


def test_direct_messages_beyond_the_bound_are_lost_and_the_one_after_them_says_so() -> None:
    outbox = Outbox()
    size = MAX_DIRECT_BYTES // 4
    for _ in range(6):
        outbox.put_direct(DeliverDirect(CLIENT, message(size)))
    pieces: list[bytes] = []
    while outbox:
        pieces += outbox.take()
    first = frames(pieces)
    assert len(first) == 3
    outbox.put_direct(DeliverDirect(CLIENT, message(size)))
    outbox.put_direct(DeliverDirect(CLIENT, message(1)))
    later = frames(outbox.take() + outbox.take())
    flags = [decode_frame(raw).flags & DISCARDED for raw in [*first, *later]]
    assert flags == [0, 0, 0, DISCARDED, 0]


def test_small_direct_messages_are_counted_with_what_they_take_besides_their_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "MAX_DIRECT_BYTES", 10 * OVERHEAD_BYTES)
    outbox = Outbox()
    for _ in range(2):
        for _ in range(20):
            outbox.put_direct(direct(1, 0))
        assert len(bodies(outbox)) == 9, "whatever has left counts no more"


def test_answers_that_wait_are_counted() -> None:
    outbox = Outbox()
    outbox.put(bytes(100))
    outbox.put(bytes(50))
    assert outbox.answer_bytes == 150
    outbox.take()
    assert outbox.answer_bytes == 0


def bodies(outbox: Outbox) -> list[int]:
    """How long the bodies of all messages are, in the order in which they leave."""
    pieces: list[bytes] = []
    while outbox:
        pieces += outbox.take()
    return [len(decode_frame(raw).body) for raw in frames(pieces)]


def test_direct_messages_of_a_higher_class_leave_first_and_each_class_in_its_order() -> None:
    outbox = Outbox()
    for number, class_of_service in enumerate((0, 1, 2, 0, 2, 1), start=1):
        outbox.put_direct(direct(number, class_of_service))
    assert bodies(outbox) == [3, 5, 2, 6, 1, 4]


def test_a_class_above_the_highest_is_the_highest() -> None:
    outbox = Outbox()
    for number, class_of_service in enumerate((1, 2, 3), start=1):
        outbox.put_direct(direct(number, class_of_service))
    assert bodies(outbox) == [2, 3, 1]


def test_messages_that_were_held_back_leave_by_class_too() -> None:
    outbox = Outbox()
    outbox.put_direct(direct(1, 0))
    outbox.hold_messages()
    outbox.put_direct(direct(2, 0))
    outbox.put_direct(direct(3, 2))
    assert bodies(outbox) == [1], "none that is held takes the place of one that is not"
    outbox.release_messages()
    assert bodies(outbox) == [3, 2]


def test_a_flood_of_one_class_costs_the_others_nothing() -> None:
    outbox = Outbox()
    for _ in range(3):
        outbox.put_direct(direct(MAX_DIRECT_BYTES // 2, 0))
    outbox.put_direct(direct(7, 2))
    assert bodies(outbox) == [7, MAX_DIRECT_BYTES // 2]


KINDS = st.sampled_from(["answer", "delivery", 0, 1, 2])


@given(st.lists(st.one_of(KINDS, st.just("take")), max_size=40))
def test_answers_and_deliveries_keep_their_places_and_no_class_its_order_lost(steps: list[str | int]) -> None:
    outbox = Outbox()
    waiting: list[tuple[str | int, int]] = []
    for number, step in enumerate(steps, start=1):
        if step == "take":
            expected: list[int] = []
            # What leaves when everything that waits leaves: the places stay, direct messages fill theirs by class.
            by_class = sorted((each for each in waiting if isinstance(each[0], int)), key=lambda each: -int(each[0]))
            for kind, size in waiting:
                expected.append(by_class.pop(0)[1] if isinstance(kind, int) else size)
            waiting.clear()
            assert bodies(outbox) == expected
            continue
        waiting.append((step, number))
        if step == "answer":
            outbox.put(encode_frame(Frame(Protocol.ASSURED_CTRL, body=bytes(number))))
        elif step == "delivery":
            outbox.put_deliveries(run(number, number))
        else:
            outbox.put_direct(direct(number, int(step)))
