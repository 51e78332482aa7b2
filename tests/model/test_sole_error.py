"""What leaves a task group alone keeps what it says of itself."""

import asyncio

import pytest

from lbg_runtime.model.sole_error import sole_error


async def test_the_only_error_of_a_group_is_raised_with_its_cause() -> None:
    cause = KeyError("why")
    with pytest.raises(ValueError, match="what") as raised, sole_error():
        async with asyncio.TaskGroup():
            raise ValueError("what") from cause
    assert raised.value.__cause__ is cause


async def test_an_error_that_was_raised_while_another_one_was_handled_still_shows_that() -> None:
    async def fail() -> None:
        try:
            {}["first"]
        except KeyError:
            raise ValueError("what")  # noqa: B904 - as users do

    with pytest.raises(ValueError, match="what") as raised, sole_error():
        async with asyncio.TaskGroup():
            await fail()
    assert isinstance(raised.value.__context__, KeyError)
    assert not raised.value.__suppress_context__


def test_several_errors_stay_a_group() -> None:
    with pytest.raises(ExceptionGroup) as raised, sole_error():
        raise ExceptionGroup("", [ValueError(), KeyError()])
    assert len(raised.value.exceptions) == 2
