"""Counts read as people write them."""

import pytest

from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import GroupInUse, QueueInUse


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 bound flows"), (1, "1 bound flow"), (2, "2 bound flows"), (1_000, "1000 bound flows")],
)
def test_only_one_is_singular(number: int, expected: str) -> None:
    assert counted(number, "bound flow") == expected


def test_refusals_count_what_is_left() -> None:
    assert "orders/0 has 1 message and 2 bound flows left" in str(QueueInUse("orders/0", 1, 2))
    assert "orders/0 (0 messages, 1 flow)" in str(GroupInUse({"orders/0": (0, 1)}))
