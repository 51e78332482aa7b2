"""What is before what, among the messages of one key and publisher."""

import pytest

from lbg_runtime.core.parking.identity import MessageIdentity, is_before

OURS = ("k", "p", 5)


@pytest.mark.parametrize(
    ("parked", "expected"),
    [
        ([], False),
        ([("k", "other", 9), ("other", "p", 9)], False),
        ([("k", "p", 9), ("k", "p", 6), ("k", "other", 1)], True),
        ([("k", "p", 9), ("k", "p", 4)], False),
    ],
)
def test_a_message_is_before_others_only_where_others_of_its_key_and_publisher_are_parked(
    parked: list[MessageIdentity], expected: bool
) -> None:
    assert is_before(OURS, parked) is expected
