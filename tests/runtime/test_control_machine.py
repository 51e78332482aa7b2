"""What the settings say of a member's part in its group's conversation."""

import pytest

from lbg_runtime.config.settings import Settings
from lbg_runtime.core.roles import CountedPlace
from lbg_runtime.model.ids import MemberId
from lbg_runtime.runtime.control_machine import pins, settings_alike
from lbg_runtime.runtime.membership import Membership

GROUP = {"name": "orders", "hash_prefix": "hash", "hash_count": 12, "queue_count": 3}
SETTINGS = Settings.model_validate({"group": GROUP})
FOUND = Membership(MemberId("a"), None)
PLANNED = Membership(MemberId("member-1"), CountedPlace(1, 2))


def test_planned_members_have_their_queues_by_number_however_many_there_are() -> None:
    assert pins(SETTINGS, FOUND, 3) == {}
    assert pins(SETTINGS, PLANNED, 4) == {
        "orders/0": "member-0",
        "orders/1": "member-1",
        "orders/2": "member-0",
        "orders/3": "member-1",
    }


@pytest.mark.parametrize(("membership", "count"), [(FOUND, ""), (PLANNED, "2")])
def test_a_group_has_its_shape_the_number_of_its_members_and_what_the_companion_says_alike(membership, count) -> None:
    alike = settings_alike(SETTINGS, membership, parks=False, of_companion={"landing.log": "/log"})
    assert alike == {**SETTINGS.group.shared(), "membership.count": count, "landing.log": "/log"}


def test_only_a_member_that_parks_has_it_among_what_is_alike() -> None:
    alike = settings_alike(SETTINGS, FOUND, parks=True, of_companion={})
    assert alike["failure.then"] == "park"
