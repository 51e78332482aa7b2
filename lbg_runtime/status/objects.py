"""Turns pictures into JSON values, with the names of the journal, `lbg group status --json` and `lbg why --json`.

Names are stable; more may be added.
"""

from collections.abc import Sequence
from dataclasses import asdict

from lbg_runtime.core.group.control_messages import KeyAnswer, LastHandled, ParkingWait
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import MemberId
from lbg_runtime.model.record import OwnerRecord
from lbg_runtime.model.version import VERSION
from lbg_runtime.status.health import Lack
from lbg_runtime.status.picture import FlowPicture, HandledPicture, KeyPicture, MemberPicture, Standstill, ViewPicture


def member_as_object(picture: MemberPicture) -> dict[str, object]:
    """The member with its flows, and what it knows of its group."""
    return {
        "group": picture.group,
        "member": picture.member,
        "incarnation": picture.incarnation,
        "version": VERSION,
        "state": picture.state.value,
        "weight": picture.weight,
        "flows": {flow.queue: _flow_as_object(flow) for flow in picture.flows},
        "view": None if picture.view is None else _view_as_object(picture.view),
        "changed_settings": list(picture.changed_settings),
    }


def _flow_as_object(flow: FlowPicture) -> dict[str, object]:
    return {
        "role": flow.place.role.value,
        "rank": flow.place.rank,
        "state": flow.state.value,
        "cause": None if flow.cause is None else flow.cause.value,
        "epoch": flow.epoch,
        "in_flight": flow.in_flight,
        "handled": flow.handled,
        "stopped": flow.is_stopped,
        "parking_wait": _wait_as_object(flow.parking_wait),
    }


def _view_as_object(view: ViewPicture) -> dict[str, object]:
    return {
        "connected": view.can_hear,
        "members": [
            {
                "member": one.member,
                "incarnation": one.life.incarnation,
                "state": one.state.value,
                "weight": one.weight,
                "suspect": one.is_suspect,
            }
            for one in view.group.members
        ],
        "owners": dict(view.group.owners),
        "placement": None if view.placement is None else {queue: list(r) for queue, r in view.placement.ranks.items()},
    }


def handled_as_object(picture: HandledPicture) -> dict[str, object]:
    """How much the member has handled and what stands still, by the index of the queue (as text, as JSON demands), and
    how many keys it has parked."""
    counts = {str(index): count for index, count in (picture.handled or {}).items()}
    return {
        "member": picture.member,
        "incarnation": picture.incarnation,
        "handled": counts,
        "keys_parked": picture.keys_parked,
        "standing_still": {str(index): _still_as_object(still) for index, still in picture.standing_still.items()},
    }


def _still_as_object(still: Standstill) -> dict[str, object]:
    return {"stopped": still.is_stopped, "parking_wait": _wait_as_object(still.parking_wait)}


def _wait_as_object(wait: ParkingWait | None) -> dict[str, object] | None:
    return None if wait is None else asdict(wait)


def changes_as_object(member: MemberId, incarnation: int, changes: Sequence[OwnerRecord]) -> dict[str, object]:
    """Owner changes as the member's journal has them."""
    return {"member": member, "incarnation": incarnation, "changes": [asdict(change) for change in changes]}


def key_as_object(picture: KeyPicture) -> dict[str, object]:
    """What `lbg why` would print if only this member had answered, and the owner of the queue as the member sees it."""
    return {
        "key": picture.key,
        "shard": picture.shard,
        "queue": picture.queue,
        "known": picture.is_known,
        "owner": picture.owner,
        "parked": picture.parked,
        "answers": [_answer_as_object(picture.member, picture)],
    }


def found_as_object(key: str, shard: int, answers: Sequence[KeyAnswer], shape: GroupShape) -> dict[str, object]:
    """What members answered about a key; `shard` and `shape` follow from the asker's settings."""
    holders = [answer for answer in answers if answer.is_of_owner]
    # The members' word for the queue counts: they know of a re-striping, and the asker's settings may not.
    placed = [answer.queue for answer in (*holders, *answers)]
    return {
        "key": key,
        "shard": shard,
        "queue": placed[0] if placed else shape.queue_name(shape.queue_index_of_shard(shard)),
        "known": any(answer.is_known for answer in answers),
        "answers": [_answer_as_object(answer.header.member, answer) for answer in answers],
    }


def _answer_as_object(member: MemberId, answer: KeyAnswer | KeyPicture) -> dict[str, object]:
    flow, sight = answer.flow, answer.sight
    head = sight.head
    return {
        "member": member,
        "flow": None if flow is None else {"state": flow.state.value, "epoch": flow.epoch, "in_flight": flow.in_flight},
        "stopped": answer.is_stopped,
        "waiting": sight.waiting,
        "parked": answer.parked,
        "parking_wait": _wait_as_object(answer.wait),
        "head": None if head is None else {**asdict(head), "stage": head.stage.value},
        "last": None if sight.last is None else _last_as_object(sight.last),
    }


def _last_as_object(last: LastHandled) -> dict[str, object]:
    return {**asdict(last), "outcome": None if last.outcome is None else last.outcome.value}


def lack_as_object(lack: Lack) -> dict[str, object]:
    """One reason why a member is not ready."""
    return {"reason": lack.reason, "queue": lack.queue, "state": None if lack.state is None else lack.state.value}
