import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.frame import (
    LARGEST_HEADER_BYTES,
    Frame,
    FrameReader,
    Parameter,
    Protocol,
    decode_frame,
    encode_frame,
    encode_parameter,
)

parameters = st.one_of(
    st.builds(
        Parameter,
        kind=st.integers(1, 31),
        value=st.binary(max_size=20) | st.binary(min_size=250, max_size=300),
        mark=st.integers(0, 3),
    ),
    st.builds(
        Parameter,
        kind=st.integers(0, 7),
        value=st.binary(max_size=3),
        light=st.just(True),
        mark=st.integers(0, 3),
    ),
)
frames = st.builds(
    Frame,
    protocol=st.integers(0, 63),
    parameters=st.lists(parameters, max_size=5).map(tuple),
    body=st.binary(max_size=50),
    flags=st.integers(0, 31).map(lambda bits: bits << 3),
    mark=st.integers(0, 3),
    service=st.integers(0, 255),
    hops=st.integers(0, 255),
)


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """The stream in pieces of these sizes, again and again."""
    pieces, position, number = [], 0, 0
    while position < len(stream):
        size = sizes[number % len(sizes)]
        pieces.append(stream[position : position + size])
        position += size
        number += 1
    return pieces


def read_all(pieces: list[bytes], limit_bytes: int = 1 << 20) -> list[bytes]:
    reader = FrameReader(limit_bytes)
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (raw := reader.next_frame()) is not None:
            found.append(raw)
    return found


@given(frame=frames)
def test_every_frame_is_read_as_it_was_written(frame: Frame) -> None:
    assert decode_frame(encode_frame(frame)) == frame


@given(sent=st.lists(frames, max_size=6), sizes=st.lists(st.integers(1, 40), min_size=1))
def test_frames_are_found_whatever_pieces_they_come_in(sent: list[Frame], sizes: list[int]) -> None:
    encoded = [encode_frame(frame) for frame in sent]
    assert read_all(cut(b"".join(encoded), sizes)) == encoded


@given(stream=st.binary(max_size=300), sizes=st.lists(st.integers(1, 40), min_size=1))
def test_any_bytes_are_frames_or_a_protocol_error(stream: bytes, sizes: list[int]) -> None:
    try:
        for raw in read_all(cut(stream, sizes)):
            decode_frame(raw)
    except ProtocolError as error:
        assert error.what  # noqa: PT017  # which error it is depends on the bytes


@given(data=st.binary(min_size=1, max_size=200))
def test_any_parameters_are_read_or_a_protocol_error(data: bytes) -> None:
    size = 12 + len(data)
    raw = bytes((3, 0x8D, 0, 1)) + size.to_bytes(4, "big") * 2 + data
    try:
        decode_frame(raw)
    except ProtocolError as error:
        assert 12 <= error.offset < size  # noqa: PT017  # the place of the fault is within the parameters


def test_padding_between_parameters_is_passed_over() -> None:
    raw = bytes.fromhex("038d0001 00000012 00000012 00 030304 80 00")
    assert decode_frame(raw).parameters == (Parameter(3, b"\4"),)


def test_a_long_value_takes_the_long_form() -> None:
    assert encode_parameter(Parameter(0x18, bytes(253)))[:2] == bytes((0x18, 255))
    assert encode_parameter(Parameter(0x18, bytes(254)))[:6] == bytes.fromhex("180000000104")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("18", "without its length"),
        ("1801", "shorter than its own head: 1 bytes"),
        *((f"18000000000{size}", f"shorter than its own head: {size} bytes") for size in range(6)),
        # No room for the length, nor for its last byte.
        ("1800", "a parameter"),
        ("1800000000", "a parameter"),
        ("180401", "longer than the header"),
        ("2301", "longer than the header"),
        ("180000000007", "longer than the header"),
        ("180001000006", "longer than the header"),
    ],
)
@pytest.mark.parametrize("body", ["", "00000006ffff"], ids=["bare", "with a body"])
def test_a_parameter_does_not_end_before_its_value_nor_behind_the_header(data: str, what: str, body: str) -> None:
    raw = encode_frame(Frame(Protocol.MESSAGE, (Parameter(3, b"\4"),), bytes.fromhex(data + body)))
    raw = raw[:4] + (15 + len(data) // 2).to_bytes(4, "big") + raw[8:]
    with pytest.raises(ProtocolError, match=rf"{what}.* \(at byte 15\)"):
        decode_frame(raw)


def test_a_value_is_found_by_its_kind_and_its_form() -> None:
    light, standard = Parameter(3, b"\1", light=True), Parameter(3, b"\2")
    for parameters in ((light, standard), (standard, light)):
        frame = Frame(Protocol.MESSAGE, parameters)
        assert (frame.find(3), frame.find(3, light=True), frame.find(4)) == (b"\2", b"\1", None)
    assert Frame(Protocol.MESSAGE, (light, Parameter(0, b"tag", light=True))).tag == b"tag"


def test_a_lightweight_parameter_holds_three_bytes_at_most() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        encode_parameter(Parameter(0, bytes(4), light=True))


def test_a_large_frame_in_small_pieces_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = encode_frame(Frame(Protocol.MESSAGE, body=bytes(100_000)))
    copied: list[int] = []

    def copy(unfinished: bytearray) -> bytes:
        copied.append(len(unfinished))
        return bytes(unfinished)

    monkeypatch.setattr("lbg_runtime.smf.frame.bytes", copy, raising=False)
    reader = FrameReader(len(raw))
    for start in range(0, len(raw), 100):
        reader.feed(raw[start : start + 100])
        found = reader.next_frame()
    assert found == raw
    assert copied == [len(raw)]


def test_what_is_fed_before_all_has_been_read_comes_behind_the_rest() -> None:
    raw = [encode_frame(Frame(Protocol.MESSAGE, body=bytes(size))) for size in (1, 2, 3, 4)]
    reader = FrameReader(1000)
    reader.feed(raw[0] + raw[1] + raw[2][:5])
    assert reader.next_frame() == raw[0]
    reader.feed(b"")
    reader.feed(raw[2][5:] + raw[3])
    assert list(iter(reader.next_frame, None)) == raw[1:]


def test_frames_before_an_impossible_one_are_still_read() -> None:
    keep_alive = encode_frame(Frame(Protocol.KEEP_ALIVE))
    reader = FrameReader(1000)
    reader.feed(keep_alive * 2 + b"GET / HTTP/1.1\r\n")
    assert [reader.next_frame(), reader.next_frame()] == [keep_alive, keep_alive]
    with pytest.raises(ProtocolError, match="version 7"):
        reader.next_frame()


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ("048b0001 0000000c 0000000c", r"version 4 .*\(at byte 0\)"),
        ("038b0001 0000000b 0000000c", r"a header of 11 bytes .*\(at byte 4\)"),
        ("038b0001 0000000d 0000000c", r"a header of 13 bytes in a frame of 12 \(at byte 4\)"),
        ("038b0001 0000000c 000003e9", r"1001 bytes where 1000 are allowed \(at byte 8\)"),
        ("038d0001 00010001 01c9c380", r"a header of 65537 bytes where 65536 are allowed \(at byte 4\)"),
    ],
)
def test_an_impossible_header_is_refused_before_its_body_is_waited_for(header: str, what: str) -> None:
    reader = FrameReader(1000)
    reader.feed(bytes.fromhex(header))
    with pytest.raises(ProtocolError, match=what):
        reader.next_frame()


def test_the_longest_header_and_the_longest_frame_are_still_read() -> None:
    raw = bytes.fromhex("038d0001 00010000 00010000") + bytes(LARGEST_HEADER_BYTES - 12)
    assert read_all([raw], limit_bytes=len(raw)) == [raw]


def test_a_frame_of_another_length_than_it_says_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"12 bytes long and is 13 \(at byte 8\)"):
        decode_frame(bytes.fromhex("038b00010000000c0000000c00"))
