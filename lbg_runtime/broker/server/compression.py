"""Compressed connections: each direction is one raw deflate stream, from the first byte on."""

import zlib

from lbg_runtime.model.errors import ProtocolError

INFLATED_BYTES = 256 * 1024
"""The most inflated at once: a few bytes may stand for very many, and other clients wait meanwhile."""

_RAW = -15
_LEVEL = 1
_BLOCK_STARTS = frozenset({0b000, 0b010, 0b100})
"""The low bits of a stream that does not end with its first block; a frame starts with 0b011."""


def is_deflate(first: int) -> bool:
    """Whether a connection whose first byte is this one is compressed."""
    return first & 7 in _BLOCK_STARTS


class DeflateStreams:
    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(_RAW)
        self._deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
        self.has_more = False
        """Whether `inflate` may have something to give without new data."""

    def inflate(self, data: bytes) -> bytes:
        """Return the inflated data, at most `INFLATED_BYTES` of it; raises `ProtocolError`."""
        try:
            inflated = self._inflater.decompress(self._inflater.unconsumed_tail + data, INFLATED_BYTES)
        except zlib.error as error:
            raise ProtocolError("a compressed stream that cannot be read") from error
        if self._inflater.eof:
            raise ProtocolError("a compressed stream that says it has ended")
        # A full piece may leave something inside, even if all input is consumed.
        self.has_more = bool(self._inflater.unconsumed_tail) or len(inflated) == INFLATED_BYTES
        return inflated

    def deflate(self, data: bytes) -> bytes:
        """The bytes to send, complete up to the last one of `data`."""
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)
