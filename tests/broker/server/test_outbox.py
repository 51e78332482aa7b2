from lbg_runtime.broker.engine.effects import ClientId, Deliver, DeliverDirect, FlowId, Published
from lbg_runtime.broker.server.outbox import MAX_DIRECT_BYTES, WRITE_BYTES, Outbox
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.smf.frame import DISCARDED, FrameReader, decode_frame
from lbg_runtime.smf.message import make_relay

CLIENT = ClientId(1)


def message(size: int) -> Published:
    relay = make_relay("a/b", bytes(size))
    return Published("a/b", relay, relay.size_bytes)


def delivery(number: int, size: int) -> Deliver:
    return Deliver(CLIENT, FlowId(2), DeliveryId(number), DeliveryId(number - 1), message(size), redelivered=False)


def frames(pieces: list[bytes]) -> list[bytes]:
    reader = FrameReader(1 << 30)
    reader.feed(b"".join(pieces))
    return list(iter(reader.next_frame, None))


def test_everything_comes_out_in_the_order_it_went_in() -> None:
    outbox = Outbox()
    answer = bytes.fromhex("038b00ff0000000c0000000c")
    outbox.put_delivery(delivery(1, 10))
    outbox.put(answer)
    outbox.put_direct(DeliverDirect(CLIENT, message(20)))
    found = frames(outbox.take())
    assert [len(raw) for raw in found] == [12 + 29 + 9 + 10, 12, 12 + 9 + 20]
    assert found[1] == answer
    assert not outbox


def test_a_write_takes_about_so_much_and_leaves_the_rest() -> None:
    outbox = Outbox()
    for number in range(1, 11):
        outbox.put_delivery(delivery(number, WRITE_BYTES // 4))
    assert len(frames(outbox.take())) == 4
    assert outbox
    assert len(frames(outbox.take() + outbox.take())) == 6


def test_a_message_larger_than_a_write_is_taken_whole() -> None:
    outbox = Outbox()
    outbox.put_delivery(delivery(1, 3 * WRITE_BYTES))
    assert len(frames(outbox.take())) == 1


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


def test_answers_that_wait_are_counted() -> None:
    outbox = Outbox()
    outbox.put(bytes(100))
    outbox.put(bytes(50))
    assert outbox.answer_bytes == 150
    outbox.take()
    assert outbox.answer_bytes == 0
