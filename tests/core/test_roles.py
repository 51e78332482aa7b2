import pytest

from lbg_runtime.core.roles import CountedPlace, Place, Role
from lbg_runtime.model.errors import UserError


def test_each_queue_has_one_home_and_every_other_member_as_a_standby() -> None:
    for member_count in range(1, 9):
        for queue_index in range(20):
            places = [CountedPlace(member, member_count).on(queue_index) for member in range(member_count)]
            assert sorted(place.rank for place in places if place.rank is not None) == list(range(member_count))
            assert places[queue_index % member_count] == Place(0, gives_way=True)
            assert all(place.gives_way for place in places)


@pytest.mark.parametrize(("index", "count"), [(-1, 3), (3, 3), (0, 0), (0, -1)])
def test_an_index_outside_the_count_is_a_users_mistake(index: int, count: int) -> None:
    with pytest.raises(UserError, match="membership"):
        CountedPlace(index, count)


def test_only_home_is_primary_in_the_journal() -> None:
    assert [Place(rank, gives_way=False).role for rank in (0, 1, None)] == [
        Role.PRIMARY,
        Role.SECONDARY,
        Role.SECONDARY,
    ]
    assert [Place(rank, gives_way=False).is_wanted for rank in (0, 1, None)] == [True, True, False]


def test_a_place_has_a_name() -> None:
    assert [str(Place(rank, gives_way=False)) for rank in (0, 1, 2, None)] == ["home", "standby 1", "standby 2", "none"]
