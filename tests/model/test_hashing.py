"""Golden vectors hold, and each function is what its name says, by an independent definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model import hash_vectors
from lbg_runtime.model.errors import InvariantViolated, UserError
from lbg_runtime.model.hash_vectors import VECTORS, HashVector, verify_hashing
from lbg_runtime.model.hashing import HashFunction, full_hash, shard_of

ALL_VECTORS = [(function, vector) for function, vectors in VECTORS.items() for vector in vectors]


def bitwise_crc32(data: bytes) -> int:
    """The reflected polynomial 0xEDB88320, one bit at a time."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def utf16_units(text: str) -> list[int]:
    units = []
    for code in map(ord, text):
        units += [code] if code < 0x10000 else [0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)]
    return units


def java_hash_code(text: str) -> int:
    """s[0]*31^(n-1) + ... + s[n-1] over UTF-16 units, as a signed 32 bit number."""
    units = utf16_units(text)
    total = sum(unit * 31 ** (len(units) - 1 - position) for position, unit in enumerate(units))
    return (total + 2**31) % 2**32 - 2**31


def java_remainder(value: int, divisor: int) -> int:
    """Java's %: the sign of the dividend."""
    return -(-value % divisor) if value < 0 else value % divisor


@pytest.mark.parametrize(("function", "vector"), ALL_VECTORS, ids=lambda value: ascii(getattr(value, "key", value)))
def test_golden_vectors_hold(function: HashFunction, vector: HashVector) -> None:
    assert full_hash(function, vector.key) == vector.full_hash
    assert shard_of(function, vector.key, 100) == vector.shard_of_100


@pytest.mark.parametrize(
    ("key", "expected"),
    [("", 0), ("123456789", 0xCBF43926), ("The quick brown fox jumps over the lazy dog", 0x414FA339)],
)
def test_crc32_gives_the_check_values_everybody_publishes(key: str, expected: int) -> None:
    assert full_hash(HashFunction.CRC32, key) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [("", 0), ("hello", 99162322), ("polygenelubricants", -2147483648), ("\U0001f600", 1772899)],
)
def test_java_string_gives_what_a_java_virtual_machine_gives(key: str, expected: int) -> None:
    assert full_hash(HashFunction.JAVA_STRING, key) == expected


def test_the_key_whose_hash_has_no_absolute_value_still_gets_a_shard() -> None:
    assert shard_of(HashFunction.JAVA_STRING, "polygenelubricants", 100) == 48
    assert shard_of(HashFunction.JAVA_STRING, "polygenelubricants", 64) == 0


def test_every_function_has_vectors() -> None:
    assert set(VECTORS) == set(HashFunction)


@pytest.mark.parametrize("function", list(HashFunction))
def test_the_self_test_passes_here(function: HashFunction) -> None:
    verify_hashing(function)


def test_the_self_test_finds_a_function_that_gives_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_vectors, "full_hash", lambda function, key: hash(key))
    with pytest.raises(InvariantViolated):
        verify_hashing(HashFunction.CRC32)


@given(st.text())
def test_crc32_is_the_bitwise_definition_over_utf8(key: str) -> None:
    assert full_hash(HashFunction.CRC32, key) == bitwise_crc32(key.encode())


@given(st.text(st.characters(codec="utf-16", exclude_categories=())))
def test_java_string_is_the_sum_over_utf16_units(key: str) -> None:
    assert full_hash(HashFunction.JAVA_STRING, key) == java_hash_code(key)


@given(st.text(), st.integers(1, 10_000))
def test_java_string_shards_are_abs_of_the_java_remainder(key: str, hash_count: int) -> None:
    expected = abs(java_remainder(java_hash_code(key), hash_count))
    assert shard_of(HashFunction.JAVA_STRING, key, hash_count) == expected


@given(st.integers(), st.integers(1, 10_000))
def test_modulo_is_the_rest_that_is_never_negative(number: int, hash_count: int) -> None:
    shard = shard_of(HashFunction.MODULO, str(number), hash_count)
    assert 0 <= shard < hash_count
    assert (number - shard) % hash_count == 0


@pytest.mark.parametrize("key", ["-1", "-100", "-0", "007"])
def test_modulo_takes_negative_numbers_and_leading_zeros(key: str) -> None:
    assert shard_of(HashFunction.MODULO, key, 100) == int(key) % 100


@pytest.mark.parametrize(
    "key",
    [
        "",
        "-",
        "+1",
        "1_000",
        " 1",
        "1 ",
        "1\n",
        "1.0",
        "1e3",
        "0x10",
        "--1",
        "\u0661",
        "\uff11",
        "\u00b2",
        "abc",
        "9" * 5000,
    ],
)
def test_modulo_refuses_what_other_languages_would_not_read_as_the_same_number(key: str) -> None:
    with pytest.raises(UserError) as raised:
        shard_of(HashFunction.MODULO, key, 100)
    assert raised.value.where == "key"


def test_crc32_refuses_half_a_surrogate_pair_with_an_error_of_ours() -> None:
    with pytest.raises(UserError):
        full_hash(HashFunction.CRC32, "a\ud83d")


@given(st.sampled_from([HashFunction.CRC32, HashFunction.JAVA_STRING]), st.text(), st.integers(1, 10_000))
def test_every_shard_is_within_the_hash_count(function: HashFunction, key: str, hash_count: int) -> None:
    assert 0 <= shard_of(function, key, hash_count) < hash_count
