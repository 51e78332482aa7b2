import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.server.compression import INFLATED_BYTES, DeflateStreams, is_deflate
from lbg_runtime.model.errors import ProtocolError


def raw_stream(*pieces: bytes, level: int = 5) -> bytes:
    deflater = zlib.compressobj(level, zlib.DEFLATED, -15)
    return b"".join(deflater.compress(piece) + deflater.flush(zlib.Z_SYNC_FLUSH) for piece in pieces)


@given(pieces=st.lists(st.binary(min_size=1), min_size=1, max_size=5))
def test_every_piece_is_complete_when_it_is_sent(pieces: list[bytes]) -> None:
    streams = DeflateStreams()
    inflater = zlib.decompressobj(-15)
    assert [inflater.decompress(streams.deflate(piece)) for piece in pieces] == pieces


@given(pieces=st.lists(st.binary(min_size=1), min_size=1, max_size=5), level=st.integers(0, 9))
def test_what_a_client_compressed_is_known_as_such_and_read(pieces: list[bytes], level: int) -> None:
    sent = raw_stream(*pieces, level=level)
    assert is_deflate(sent[0])
    assert DeflateStreams().inflate(sent) == b"".join(pieces)


def test_a_frame_is_not_taken_for_a_compressed_stream() -> None:
    assert not is_deflate(0x03)


def test_few_bytes_that_stand_for_many_come_out_in_pieces() -> None:
    sent = raw_stream(bytes(10 * INFLATED_BYTES + 1), level=9)
    assert len(sent) < INFLATED_BYTES // 10
    streams = DeflateStreams()
    sizes = [len(streams.inflate(sent))]
    while streams.has_more:
        sizes.append(len(streams.inflate(b"")))
    assert max(sizes) == INFLATED_BYTES
    assert sum(sizes) == 10 * INFLATED_BYTES + 1


@given(data=st.binary(max_size=200))
def test_any_bytes_are_inflated_or_a_protocol_error(data: bytes) -> None:
    try:
        DeflateStreams().inflate(data)
    except ProtocolError as error:
        assert error.what.startswith("a compressed stream")  # noqa: PT017  # which of the two depends on the bytes


def test_a_stream_that_ends_is_refused() -> None:
    deflater = zlib.compressobj(5, zlib.DEFLATED, -15)
    with pytest.raises(ProtocolError, match="has ended"):
        DeflateStreams().inflate(deflater.compress(b"all") + deflater.flush())
