"""docs/hashing.md has the golden vectors, and what its example says."""

import re

from lbg_runtime.model.hash_vectors import VECTORS
from lbg_runtime.model.hashing import HashFunction, full_hash, shard_of
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "hashing.md"
ROW = re.compile(r"^\| (?:`(.+)`|\(none: an empty text\)) \| (\d+) \|(?: (\d+) \| (-?\d+) \| (\d+) \|)?$", re.MULTILINE)


def test_the_vectors_are_those_that_our_publishers_check_themselves_against() -> None:
    shown: dict[HashFunction, list[str]] = {each: [] for each in HashFunction}
    for key, *numbers in ROW.findall(PAGE.read_text()):
        if numbers[1]:
            for function, pair in ((HashFunction.CRC32, numbers[:2]), (HashFunction.JAVA_STRING, numbers[2:])):
                assert pair == [str(full_hash(function, key)), str(shard_of(function, key, 100))]
                shown[function].append(key)
        else:
            assert numbers[0] == str(shard_of(HashFunction.MODULO, key, 100))
            shown[HashFunction.MODULO].append(key)
    for function, vectors in VECTORS.items():
        assert {each.key for each in vectors} <= set(shown[function])


def test_the_example_in_python_is_right() -> None:
    (example,) = blocks(PAGE, "python")
    exec(example, {})  # noqa: S102  # it is our own page
