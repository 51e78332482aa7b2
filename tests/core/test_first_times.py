from lbg_runtime.core.first_times import FirstTimes


def test_each_thing_is_new_once_and_nothing_is_new_after_the_most() -> None:
    told = FirstTimes(most=2)
    assert [told.is_first(what) for what in ("a", "a", ("b", 1), "c", "a", ("b", 1), "c")] == [
        True,
        False,
        True,
        False,
        False,
        False,
        False,
    ]
