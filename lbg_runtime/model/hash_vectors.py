"""Golden vectors of the hash functions: what every publisher of a group, in any language, must compute.

A publisher checks itself against them when it starts: if two publishers disagree about one key, they send it to two
queues, and its order is lost without any error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.hashing import HashFunction, full_hash, shard_of


@dataclass(frozen=True, slots=True)
class HashVector:
    """One key and its hash: `full_hash`, and the shard in a group with a hash count of 100."""

    key: str
    full_hash: int
    shard_of_100: int


VECTORS: Mapping[HashFunction, tuple[HashVector, ...]] = MappingProxyType(
    {
        HashFunction.CRC32: (
            HashVector("", 0x00000000, 0),
            HashVector("a", 0xE8B7BE43, 7),
            HashVector("123456789", 0xCBF43926, 62),
            HashVector("The quick brown fox jumps over the lazy dog", 0x414FA339, 69),
            HashVector("order/4711", 0x5C899EAF, 27),
            HashVector("Gr\u00f6\u00dfe", 0x946E9015, 13),
            HashVector("\u6771\u4eac", 0x922642EF, 39),
            HashVector("\U0001f600", 0x054DB544, 56),
        ),
        HashFunction.JAVA_STRING: (
            HashVector("", 0, 0),
            HashVector("a", 97, 97),
            HashVector("Aa", 2112, 12),
            HashVector("BB", 2112, 12),
            HashVector("hello", 99162322, 22),
            # The smallest integer, of which Java's abs is the same negative number: so abs must come after the
            # remainder.
            HashVector("polygenelubricants", -2147483648, 48),
            HashVector("order/4711", 710124036, 36),
            HashVector("Gr\u00f6\u00dfe", 69209585, 85),
            HashVector("\u6771\u4eac", 841051, 51),
            # Two UTF-16 code units, D83D DE00.
            HashVector("\U0001f600", 1772899, 99),
        ),
        HashFunction.MODULO: (
            HashVector("0", 0, 0),
            HashVector("99", 99, 99),
            HashVector("100", 100, 0),
            HashVector("0107", 107, 7),
            HashVector("-1", -1, 99),
            HashVector("-100", -100, 0),
            HashVector("12345678901234567890", 12345678901234567890, 90),
        ),
    }
)


def verify_hashing(function: HashFunction) -> None:
    """Return if this process computes the function's golden vectors; raise `InvariantViolated` if it does not."""
    for vector in VECTORS[function]:
        found = HashVector(vector.key, full_hash(function, vector.key), shard_of(function, vector.key, 100))
        if found != vector:
            raise InvariantViolated(f"{function.value} computes {found}, the golden vector is {vector}")
