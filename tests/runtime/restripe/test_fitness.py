"""Which settings carry a re-striping."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import Settings
from lbg_runtime.core.group.control_codec import encode
from lbg_runtime.core.group.control_messages import (
    FlowReport,
    Header,
    Heartbeat,
    Life,
    MemberState,
    ReportedFlow,
)
from lbg_runtime.core.restripe.layout import SeenQueues
from lbg_runtime.core.restripe.records import StripePlan
from lbg_runtime.core.restripe.striping import Striping, StripingReport, proof_of
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.model.group import LARGEST_HASH_COUNT, GroupShape
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName
from lbg_runtime.runtime.restripe.fitness import (
    MOST_MOVES,
    insist_on_few_moves,
    insist_on_fit_names,
    insist_on_fit_queues,
    insist_on_fit_settings,
    insist_on_fit_topic,
)

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 4, "provision": "none"}


def settings(group: dict[str, Any], more: dict[str, Any]) -> Settings:
    return parse_settings({"group": {**GROUP, **group}, **more}, "test", {})


def test_fitting_settings_pass() -> None:
    insist_on_fit_settings(settings({}, {}))


@pytest.mark.parametrize(
    ("group", "more", "where"),
    [
        ({"backend": "partitioned"}, {"dispatch": {"missing_key": "error"}}, "group.backend"),
        ({}, {"rebind": {"mode": "cycle"}, "membership": {"mode": "static", "index": 0, "count": 2}}, "rebind.mode"),
        ({"provision": "create_missing"}, {}, "group.provision"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(group: dict[str, Any], more: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        insist_on_fit_settings(settings(group, more))
    assert refused.value.where == where


def test_a_control_topic_leaves_room_for_the_records_below_it() -> None:
    """The broker refused the first subscription, and the command said that it was to be run again."""
    plan = StripePlan(1_796_031_290_455_157, 4, 12, "s" * 32)
    insist_on_fit_topic(plan, "c" * 186)
    with pytest.raises(ConfigError, match=r"^group.control_topic: 187 bytes; expected at most 186, as the topic of "):
        insist_on_fit_topic(plan, "c" * 187)


def test_of_the_moves_those_that_change_their_queue_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbg_runtime.runtime.restripe.fitness.MOST_MOVES", 7)
    shape = GroupShape(GroupName("orders"), "h", 12, 4)
    insist_on_few_moves(StripePlan(1, 4, 2, "s"), shape)
    with pytest.raises(UserError, match="6 instead of 4, so that 8 of 12 shards move"):
        insist_on_few_moves(StripePlan(1, 4, 6, "s"), shape)


def test_no_queue_is_to_have_a_name_that_a_broker_refuses() -> None:
    """The queue could not be made once the others had been, and the re-striping had no end."""
    shape = GroupShape(GroupName("o" * 198), "h", 16, 2)
    insist_on_fit_names(shape, 10)
    with pytest.raises(UserError, match=r"^--queues: 12, with which .* 201 characters; expected names of at most 200"):
        insist_on_fit_names(shape, 12)
    wide = GroupShape(GroupName("ü" * 124), "h", 16, 2)
    insist_on_fit_names(wide, 10)
    with pytest.raises(
        UserError, match=r"^--queues: 12, with which .* 251 bytes; expected names of at most 250: fewer"
    ):
        insist_on_fit_names(wide, 12)


def test_no_more_shards_move_than_members_can_tell_each_other_of() -> None:
    """With more, no heartbeat could be sent any more, and the re-striping would stand still in the middle."""
    plan = StripePlan(7, 1, 2, "s3cr3t")
    insist_on_few_moves(plan, GroupShape(GroupName("orders"), "h", 2 * MOST_MOVES, 1))
    with pytest.raises(UserError) as refused:
        insist_on_few_moves(plan, GroupShape(GroupName("orders"), "h", 2 * MOST_MOVES + 2, 1))
    assert str(refused.value) == (
        "--queues: 2 instead of 1, so that 9998 of 19996 shards move; expected a number for which at most 9997 do, "
        "or a new group"
    )


def test_a_queue_that_is_made_for_it_shows_the_records_of_as_many_shards_as_may_move() -> None:
    """With two more, the new queue kept back its own finish, and the re-striping stood still before its end."""
    shape = GroupShape(GroupName("orders"), "h", 2 * MOST_MOVES, 1)
    plan = StripePlan(7, 1, 2, "s3cr3t")
    insist_on_few_moves(plan, shape)
    # Plan and finish, and one message behind them.
    assert plan.marker_counts(shape.hash_count)[1] + 3 <= 10_000


def test_a_member_can_tell_of_as_many_shards_as_may_move() -> None:
    left = frozenset(range(LARGEST_HASH_COUNT - MOST_MOVES, LARGEST_HASH_COUNT))
    striping = Striping(2**62, 999, 1_000, left, frozenset(range(1_000)))
    flow = FlowReport(ReportedFlow.ACTIVE, Epoch(1_000_000), 1_000)
    flows = {QueueName(f"orders/{index}"): flow for index in range(1_000)}
    header = Header(GroupName("orders"), MemberId("orders-member-0"), Life(2**50, 2**53), 2**40)
    report = StripingReport(striping, proof_of("s3cr3t", striping))
    assert encode(Heartbeat(header, MemberState.ACTIVE, 1, {}, flows, "0" * 16, report))


@pytest.mark.parametrize(("before", "after", "expected"), [(4, 2, [0, 1, 2]), (2, 4, [0, 1, 2, 3])])
async def test_the_queues_of_both_layouts_are_to_be_fit_but_for_one_that_is_about_to_be_deleted(
    before: int, after: int, expected: list[int]
) -> None:
    """It has no topic left, and may be closed for that; and the one beyond them may be somebody else's."""
    looked_at: list[str] = []

    async def ensure_fit(queue: str, _shown: int) -> None:
        looked_at.append(queue)

    shape = GroupShape(GroupName("orders"), "h", 8, before)
    topics = {0: {"h/0/>"}, 1: {"h/1/>"}, 2: {"plan"}, 3: set[str](), 4: {"invoices/>"}}
    seen = SeenQueues(shape, "lbg-control/orders", {index: frozenset(each) for index, each in topics.items()})
    queues = cast(Any, SimpleNamespace(ensure_fit=ensure_fit))
    await insist_on_fit_queues(queues, StripePlan(1, before, after, "s3cr3t"), seen)
    assert looked_at == [shape.queue_name(index) for index in expected]
