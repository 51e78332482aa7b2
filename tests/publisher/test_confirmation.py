from dataclasses import FrozenInstanceError, fields

import pytest

from lbg_runtime.publisher.confirmation import Confirmation, make_confirmation


def test_what_is_made_without_its_constructor_is_what_the_constructor_makes() -> None:
    made, constructed = make_confirmation("k", 1, 2, "t", "id"), Confirmation("k", 1, 2, "t", "id")
    # By field, as a new field that is not made would be missing without a word.
    for each in fields(constructed):
        assert getattr(made, each.name) == getattr(constructed, each.name)
    assert (type(made), made, repr(made)) == (Confirmation, constructed, repr(constructed))
    assert {made, constructed} == {constructed}
    with pytest.raises(FrozenInstanceError):
        made.topic = "other"  # type: ignore[misc]
