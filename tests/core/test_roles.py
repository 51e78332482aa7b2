import pytest

from lbg_runtime.core.roles import Role, static_role
from lbg_runtime.model.errors import UserError


def test_each_queue_has_exactly_one_primary() -> None:
    for member_count in range(1, 9):
        for queue_index in range(20):
            roles = [static_role(queue_index, member, member_count) for member in range(member_count)]
            assert roles.count(Role.PRIMARY) == 1
            assert roles.index(Role.PRIMARY) == queue_index % member_count


@pytest.mark.parametrize(("index", "count"), [(-1, 3), (3, 3), (0, 0), (0, -1)])
def test_an_index_outside_the_count_is_a_users_mistake(index: int, count: int) -> None:
    with pytest.raises(UserError, match="membership"):
        static_role(0, index, count)
