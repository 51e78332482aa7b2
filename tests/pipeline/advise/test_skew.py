"""How even a load is, and what other cuts would make of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.pipeline.advise.skew import Cut, Spread, best_of, cuts, detect, hashes_of, spread_of

EVEN = Spread(1.0, 0.0)


def test_an_even_load_has_no_skew() -> None:
    assert spread_of(np.array([5.0, 5.0, 5.0])) == EVEN
    assert spread_of(np.zeros(3)) == EVEN


def test_one_that_has_all_has_as_many_times_its_share_as_there_are() -> None:
    found = spread_of(np.array([0.0, 0.0, 0.0, 8.0]))
    assert found == Spread(4.0, 0.75)


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=30))
def test_gini_is_half_the_mean_difference_over_the_mean(loads: list[int]) -> None:
    found = spread_of(np.array(loads, np.float64)).gini
    total = sum(loads)
    expected = sum(abs(a - b) for a in loads for b in loads) / (2 * len(loads) * total) if total else 0.0
    assert found == pytest.approx(expected, abs=1e-9)


@given(
    st.dictionaries(
        st.text("abcdef0123456789-ä", min_size=1, max_size=12), st.integers(1, 50), min_size=1, max_size=40
    ),
    st.sampled_from([HashFunction.CRC32, HashFunction.JAVA_STRING]),
    st.integers(1, 24),
    st.integers(1, 24),
)
def test_a_cut_is_what_publishers_would_make_of_the_keys(
    keys: dict[str, int], function: HashFunction, hash_count: int, queue_count: int
) -> None:
    loads = np.array(list(keys.values()), np.float64)
    found = cuts(hashes_of(function, list(keys)), loads, [hash_count], [queue_count])
    if queue_count > hash_count:
        assert found == []
        return
    queues = [0] * queue_count
    for key, count in keys.items():
        queues[shard_of(function, key, hash_count) % queue_count] += count
    [cut] = found
    assert cut.queues == spread_of(np.array(queues, np.float64))
    assert cut.busy_queues == pytest.approx(sum(queues) / max(queues))


@pytest.mark.parametrize("function", [HashFunction.CRC32, HashFunction.JAVA_STRING, HashFunction.MODULO])
def test_the_hash_function_is_found_by_the_keys(function: HashFunction) -> None:
    keys = {str(number): shard_of(function, str(number), 16) for number in range(-50, 50)}
    assert detect(keys, 16) is function


def test_no_function_is_found_for_keys_that_were_put_anywhere() -> None:
    assert detect({f"key-{number}": number % 16 for number in range(50)}, 16) is None


def test_keys_that_are_no_numbers_cannot_be_cut_by_modulo() -> None:
    with pytest.raises(UserError, match="a decimal integer"):
        hashes_of(HashFunction.MODULO, ["a"])
    with pytest.raises(UserError, match="at most 64 bits"):
        hashes_of(HashFunction.MODULO, [str(1 << 64)])


def cut(hash_count: int, queue_count: int, busy: float) -> Cut:
    return Cut(hash_count, queue_count, EVEN, EVEN, busy)


def test_the_fewest_queues_that_are_nearly_as_good_are_best() -> None:
    found = [cut(48, 4, 3.9), cut(48, 8, 7.0), cut(48, 12, 7.4), cut(48, 24, 7.5)]
    assert best_of(found, 1, 100, 48).queue_count == 8


def test_every_member_has_a_queue_and_no_queue_is_of_no_use() -> None:
    found = [cut(48, 4, 3.9), cut(48, 8, 7.4), cut(48, 12, 7.5), cut(48, 24, 12.0)]
    assert best_of(found, 10, 100, 48).queue_count == 24
    assert best_of(found, 10, 16, 48).queue_count == 12
    # Where both cannot be had.
    assert best_of(found, 50, 2, 48).queue_count == 24


def test_another_hash_count_is_recommended_only_where_that_is_of_use_as_it_needs_a_new_group() -> None:
    found = [cut(50, 8, 7.5), cut(96, 8, 7.4), cut(48, 4, 7.4), cut(64, 8, 7.5)]
    assert best_of(found, 1, 100, 96).hash_count == 96
    assert best_of(found, 1, 100, 50).hash_count == 50
    worse = [cut(50, 8, 5.0), cut(96, 8, 7.5), cut(48, 8, 7.4), cut(64, 12, 7.5)]
    assert best_of(worse, 1, 100, 50).hash_count == 48


def test_an_even_cut_comes_before_one_with_fewer_queues() -> None:
    found = [cut(48, 7, 6.6), cut(48, 8, 6.6), cut(48, 9, 6.6)]
    assert best_of(found, 1, 100, 48).queue_count == 8
