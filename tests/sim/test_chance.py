from lbg_runtime.sim.chance import SeededChance


def test_a_seed_gives_these_numbers_for_ever() -> None:
    """Failing seeds are kept in tests; they must mean the same run on every Python."""
    chance = SeededChance(1)
    assert [chance.between(0, 999) for _ in range(6)] == [465, 519, 590, 235, 761, 48]


def test_a_fork_depends_on_its_label_and_leaves_its_parent_alone() -> None:
    parent = SeededChance(7)
    first, second, again = (parent.fork(label).between(0, 10**9) for label in ("a", "b", "a"))
    assert first == again != second
    assert parent.between(0, 10**9) == SeededChance(7).between(0, 10**9)


def test_numbers_that_are_skipped_are_as_if_drawn() -> None:
    drawn, skipped = SeededChance(5), SeededChance(5)
    for _ in range(3):
        drawn.between(0, 9)
    skipped.skip(3)
    assert drawn.between(0, 10**9) == skipped.between(0, 10**9)


def test_numbers_keep_to_their_bounds_and_spread_over_them() -> None:
    chance = SeededChance(3)
    drawn = [chance.between(1, 6) for _ in range(6_000)]
    assert set(drawn) == {1, 2, 3, 4, 5, 6}
    assert all(900 < drawn.count(face) < 1_100 for face in range(1, 7))
    assert all(2.0 <= chance.uniform(2, 3) < 3.0 for _ in range(1_000))
    assert 200 < sum(chance.happens(0.25) for _ in range(1_000)) < 300
