"""Which queues a group has, by the word of its members; homes are tested with real members, in tests/runtime."""

from dataclasses import replace

from lbg_runtime.cli.group.homes import MAX_QUEUES, derived_placement, group_queues
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from tests.cli.group.test_commands import QUEUES, picture


def said(*totals: int) -> GroupPicture:
    """Members that each say of so many queues."""
    made = GroupPicture()
    for beat, total in zip(picture().members.values(), totals, strict=False):
        made.hear(replace(beat, flows={}, settings={}, striping=StripingReport(Striping(1, total), "")))
    return made


def test_members_know_how_many_queues_there_are_since_a_re_striping() -> None:
    assert group_queues(said(5, 5), QUEUES) == [f"orders/{index}" for index in range(5)]
    assert group_queues(said(2), QUEUES) == ["orders/0", "orders/1"]


def test_where_they_do_not_agree_or_one_lies_the_settings_say_it() -> None:
    for told in (said(), said(3, 5), said(MAX_QUEUES + 1), said((1 << 63) - 1)):
        assert group_queues(told, QUEUES) == QUEUES


def test_homes_of_who_sees_another_group_are_not_known() -> None:
    assert derived_placement(said(3, 3), QUEUES) is None
    assert derived_placement(picture(), QUEUES) is None
