"""Named, versioned hash functions from key to shard. A name's meaning never changes: publishers depend on it.

Golden vectors are in `model/hash_vectors.py`; any publisher in any language can be checked against them.
"""

import re
import zlib
from collections.abc import Callable
from enum import Enum

from lbg_runtime.model.errors import UserError


class HashFunction(Enum):
    """The functions a group may name. Values are what configuration files say."""

    CRC32 = "crc32"
    """CRC-32 (IEEE 802.3, as in zlib) of the key's UTF-8 bytes, unsigned. A lone surrogate is refused (`UserError`)."""
    JAVA_STRING = "java_string"
    """`Math.abs(key.hashCode() % n)` of Java: 31-polynomial over UTF-16 code units in 32-bit arithmetic.

    Not `Math.abs(key.hashCode()) % n`, which is negative for a key that hashes to the smallest integer.
    """
    MODULO = "modulo"
    """The key's value as a decimal integer (ASCII digits, with or without a minus before them) modulo n, never
    negative.

    Any other key is refused (`UserError`).
    """


_DECIMAL = re.compile(r"-?[0-9]{1,1000}")
# Python's own int() also takes spaces, underscores, a plus and digits of other scripts, which no other language would
# read as the same number; and it refuses numbers of some thousand digits, hence a bound of our own.


def full_hash(function: HashFunction, key: str) -> int:
    """The hash before the modulo: unsigned 32 bits for CRC32, signed 32 bits for JAVA_STRING, the number for MODULO."""
    return _FULL_HASHES[function](key)


def shard_of(function: HashFunction, key: str, hash_count: int) -> int:
    """The shard of a key, 0 <= shard < hash_count."""
    value = full_hash(function, key)
    if function is HashFunction.JAVA_STRING:
        # Java's % truncates toward zero, so the magnitude of the remainder is that of abs(value) modulo n.
        return abs(value) % hash_count
    return value % hash_count


def _crc32(key: str) -> int:
    try:
        return zlib.crc32(key.encode())
    except UnicodeEncodeError:
        raise UserError("key", ascii(key), "text that UTF-8 can carry, as the hash function crc32 requires") from None


def _java_string(key: str) -> int:
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _modulo(key: str) -> int:
    if _DECIMAL.fullmatch(key) is None:
        raise UserError("key", ascii(key), "a decimal integer, as the hash function modulo requires")
    return int(key)


_FULL_HASHES: dict[HashFunction, Callable[[str], int]] = {
    HashFunction.CRC32: _crc32,
    HashFunction.JAVA_STRING: _java_string,
    HashFunction.MODULO: _modulo,
}
