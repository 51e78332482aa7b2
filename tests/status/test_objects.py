"""What is told of a member, under the names that the journal and the commands have for it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson

from lbg_runtime.cli.group.text import picture_as_object
from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import (
    FlowReport,
    Header,
    KeyAnswer,
    KeySight,
    LaneHead,
    LastHandled,
    LastOutcome,
    Life,
    ParkingWait,
    QuestionId,
    ReportedFlow,
)
from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName
from lbg_runtime.model.version import VERSION
from lbg_runtime.status.health import Lack
from lbg_runtime.status.objects import (
    changes_as_object,
    found_as_object,
    handled_as_object,
    key_as_object,
    lack_as_object,
    member_as_object,
)
from lbg_runtime.status.picture import HandledPicture, KeyPicture
from tests.cli.group.test_commands import picture
from tests.status.asking import STANDBY, change, counted, flow, member


def test_a_member_is_told_with_its_flows_and_its_view() -> None:
    given_up = replace(flow(1, FlowState.DRAINING, STANDBY), cause=ReleaseCause.HANDBACK)
    shown = replace(member(flow(0, FlowState.ACTIVE), given_up, owners={0: "a", 1: "b"}), changed_settings=("key",))
    told = orjson.loads(orjson.dumps(member_as_object(shown)))
    facts = {"epoch": 1, "in_flight": 2, "handled": 7, "stopped": False, "parking_wait": None}
    assert told == {
        "group": "orders", "member": "a", "incarnation": 5, "version": VERSION, "state": "active",
        "weight": 1,
        "flows": {
            "orders/0": {"role": "primary", "rank": 0, "state": "active", "cause": None, **facts},
            "orders/1": {"role": "secondary", "rank": 1, "state": "draining", "cause": "handback", **facts},
        },
        "view": {
            "connected": True,
            "members": [
                {"member": "a", "incarnation": 5, "state": "active", "weight": 1, "suspect": False},
                {"member": "b", "incarnation": 5, "state": "active", "weight": 1, "suspect": True},
            ],
            "owners": {"orders/0": "a", "orders/1": "b"},
            "placement": {"orders/0": ["a", "b"], "orders/1": ["b", "a"]},
        },
        "changed_settings": ["key"],
    }  # fmt: skip
    assert member_as_object(member(is_placed=False))["view"]["placement"] is None
    assert member_as_object(counted(shown))["view"] is None


def test_a_lack_is_told_with_its_queue_if_it_is_about_one() -> None:
    of_queue = Lack("it is not fed", QueueName("orders/1"), FlowState.STANDBY)
    assert lack_as_object(of_queue) == {"reason": "it is not fed", "queue": "orders/1", "state": "standby"}
    assert lack_as_object(Lack("it leaves")) == {"reason": "it leaves", "queue": None, "state": None}


def test_a_member_has_the_names_that_lbg_group_status_has() -> None:
    told = orjson.loads(orjson.dumps(picture_as_object(picture(), [], 10)))
    of_group = told["members"][0]
    of_member = orjson.loads(orjson.dumps(member_as_object(member(flow(0, FlowState.ACTIVE)))))
    assert of_group.keys() - of_member.keys() == {"suspect_for"}
    assert of_group["flows"]["orders/0"].keys() <= of_member["flows"]["orders/0"].keys()


def test_every_field_is_explained_on_the_page() -> None:
    named = set(re.findall(r"`(\w+)`", (Path(__file__).parents[2] / "docs/status-api.md").read_text()))
    waits = replace(flow(1, FlowState.ACTIVE), parking_wait=ParkingWait(8_000, "Queue Shutdown"))
    head = LaneHead(LaneStage.RUNNING, 1, True, 17, 250, 240, None)
    sight = KeySight(4, 2, head, LastHandled(16, 2, 13, LastOutcome.HANDLED))
    told = [
        member_as_object(member(waits)),
        handled_as_object(HandledPicture(MemberId("a"), 5, {}, 0, {})),
        {"changes": changes_as_object(MemberId("a"), 5, [])["changes"]},
        key_as_object(
            KeyPicture(MemberId("a"), "k", 9, QueueName("orders/1"), None, None, sight, None, is_stopped=False)
        ),
    ]
    assert {name for each in told for name in _names(orjson.loads(orjson.dumps(each)))} <= named


def _names(told: object) -> Iterator[str]:
    """Those of fields; not of queues."""
    for name, value in told.items() if isinstance(told, dict) else ():
        if "/" not in name:
            yield name
        yield from _names(value)
    for each in told if isinstance(told, list) else ():
        yield from _names(each)


def test_why_a_queue_stands_still_has_the_names_that_its_flow_has() -> None:
    assert flow(0, FlowState.ACTIVE).standstill is None
    waits = replace(flow(1, FlowState.ACTIVE), parking_wait=ParkingWait(8_000, "Queue Shutdown"))
    stopped = replace(flow(12, FlowState.ACTIVE), is_stopped=True)
    still = {index: each.standstill for index, each in ((1, waits), (12, stopped))}
    told = handled_as_object(HandledPicture(MemberId("a"), 5, {}, 0, still))["standing_still"]
    assert told == {
        "1": {"stopped": False, "parking_wait": {"waited_ms": 8_000, "reason": "Queue Shutdown"}},
        "12": {"stopped": True, "parking_wait": None},
    }
    flows = member_as_object(member(waits, stopped))["flows"]
    for index, each in told.items():
        assert each.items() <= flows[f"orders/{index}"].items()


def test_changes_are_told_as_the_journal_has_them() -> None:
    told = changes_as_object(MemberId("a"), 5, [change(2), change(1)])
    assert (told["member"], told["incarnation"]) == ("a", 5)
    assert orjson.loads(orjson.dumps(told["changes"])) == [orjson.loads(orjson.dumps(change(2))), {
        **orjson.loads(orjson.dumps(change(2))), "queue": 1,
    }]  # fmt: skip


def test_a_key_is_told_as_lbg_why_tells_it() -> None:
    head = LaneHead(LaneStage.RUNNING, 1, True, 17, 250, 240, None, "orders/new", "ValueError: no")
    owned = FlowReport(ReportedFlow.ACTIVE, Epoch(3), 12)
    sight = KeySight(4, 2, head, LastHandled(16, 2, 13, LastOutcome.ERROR_QUEUE))
    of_key = KeyPicture(MemberId("a"), "k", 9, QueueName("orders/1"), MemberId("a"), owned, sight, None, True)
    assert orjson.loads(orjson.dumps(key_as_object(of_key))) == {
        "key": "k",
        "shard": 9,
        "queue": "orders/1",
        "known": True,
        "owner": "a",
        "parked": 2,
        "answers": [
            {
                "member": "a",
                "flow": {"state": "active", "epoch": 3, "in_flight": 12},
                "stopped": True,
                "waiting": 4,
                "parked": 2,
                "parking_wait": None,
                "head": {
                    "stage": "running", "attempts": 1, "redelivered": True, "number": 17,
                    "received_ms": 250, "started_ms": 240, "retry_in_ms": None,
                    "topic": "orders/new", "error": "ValueError: no",
                },
                "last": {"number": 16, "attempts": 2, "ended_ms": 13, "outcome": "error_queue"},
            }
        ],
    }  # fmt: skip


def test_what_members_answered_is_told_as_of_the_owner_and_by_the_settings_where_nobody_did() -> None:
    owned, standby = FlowReport(ReportedFlow.ACTIVE, Epoch(3), 12), FlowReport(ReportedFlow.STANDBY, Epoch(1), 0)
    running = KeySight(4, 0, LaneHead(LaneStage.RUNNING, 1, False, 17, 250, 240, None), None)

    def answer(name: str, queue: str, flow: FlowReport, sight: KeySight) -> KeyAnswer:
        header = Header(GroupName("orders"), MemberId(name), Life(1, 1), 1)
        return KeyAnswer(header, QuestionId("q"), 9, QueueName(queue), flow, sight)

    shape = GroupShape(GroupName("orders"), "orders-hash", 16, 4)
    nobody = {"key": "k", "shard": 9, "queue": "orders/1", "known": False, "answers": []}
    assert found_as_object("k", 9, [], shape) == nobody
    left = answer("a", "orders/1", standby, running)
    told = found_as_object("k", 9, [left], shape)
    assert (told["queue"], told["known"]) == ("orders/1", False)
    told = found_as_object("k", 9, [left, answer("b", "orders/5", owned, running)], shape)
    assert (told["queue"], told["known"]) == ("orders/5", True)
    assert [one["member"] for one in orjson.loads(orjson.dumps(told["answers"]))] == ["a", "b"]


def test_what_is_parked_is_known_to_an_owner_that_has_opened_its_parking_queue() -> None:
    owned, standby = FlowReport(ReportedFlow.ACTIVE, Epoch(1), 0), FlowReport(ReportedFlow.STANDBY, Epoch(1), 0)
    handled, wait = KeySight(0, 0, None, LastHandled(1, 1, 1)), ParkingWait(43_000, "Queue Shutdown")
    header, shape = (
        Header(GroupName("orders"), MemberId("a"), Life(1, 1), 1),
        GroupShape(GroupName("orders"), "h", 16, 4),
    )
    waiting = KeyAnswer(header, QuestionId("q"), 9, QueueName("orders/1"), owned, handled, wait)
    known = replace(waiting, wait=None)
    answers = [waiting, known, replace(known, flow=standby), replace(known, flow=None)]
    told = found_as_object("k", 9, answers, shape)["answers"]
    assert [each["parked"] for each in told] == [None, 0, None, None]
    assert [each["flow"] and each["flow"]["state"] for each in told] == ["active", "active", "standby", None]
    assert found_as_object("k", 9, [known], shape)["known"]
    assert not found_as_object("k", 9, [replace(known, sight=KeySight(0, 0, None, None))], shape)["known"]
    found = orjson.loads(orjson.dumps(found_as_object("k", 9, [waiting], shape)))
    assert not found["known"]
    # After a restart nothing else is known of the key.
    opened = replace(waiting, sight=KeySight(0, 2, None, None), wait=None)
    assert found_as_object("k", 9, [opened], shape)["known"]
    assert found["answers"][0]["parking_wait"] == {"waited_ms": 43_000, "reason": "Queue Shutdown"}


def test_only_the_owner_knows_a_key() -> None:
    nothing, something = KeySight(0, 0, None, None), KeySight(0, 0, None, LastHandled(1, 1, 1))
    owned = FlowReport(ReportedFlow.ACTIVE, Epoch(1), 0)
    standby = FlowReport(ReportedFlow.STANDBY, Epoch(1), 0)
    parked, runs = (
        KeySight(0, 1, None, None),
        KeySight(0, 0, LaneHead(LaneStage.RUNNING, 1, False, 1, 1, 1, None), None),
    )
    wait = ParkingWait(0, "it is not open")
    known = [
        KeyPicture(MemberId("a"), "k", 9, QueueName("orders/1"), None, report, sight, waits, False).is_known
        for report, sight, waits in (
            (owned, something, None),
            (owned, parked, None),
            (owned, runs, None),
            (owned, nothing, None),
            (owned, something, wait),
            (standby, something, None),
            (None, something, None),
        )
    ]
    assert known == [True, True, True, False, False, False, False]
