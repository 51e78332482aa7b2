"""Asks a status API over a real socket, and pictures of members to show there."""

import asyncio
import http.client
from collections.abc import Mapping
from dataclasses import dataclass, replace

import orjson

from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import FlowReport, KeySight, Life, MemberState, ReportedFlow
from lbg_runtime.core.group.membership import OwnState
from lbg_runtime.core.group.placement import Placement
from lbg_runtime.core.group.view import GroupView, MemberView
from lbg_runtime.core.roles import Place
from lbg_runtime.metrics.reading import MemberReading
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName
from lbg_runtime.model.record import OwnerRecord
from lbg_runtime.status.picture import FlowPicture, HandledPicture, KeyPicture, MemberPicture, ViewPicture
from tests.metrics.readings import member_reading
from tests.patience import PATIENCE_S

HOME = Place(0, gives_way=False)
STANDBY = Place(1, gives_way=False)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def told(self) -> dict[str, object]:
        found = orjson.loads(self.body)
        assert isinstance(found, dict)
        return found


async def ask(
    port: int,
    path: str,
    *,
    method: str = "GET",
    host: str | None = None,
    headers: Mapping[str, str] | None = None,
    at: str = "127.0.0.1",
) -> Answer:
    """One request on a connection of its own, from a thread: the loop may be the one that is asked about."""
    host = f"{at}:{port}" if host is None else host
    return await asyncio.to_thread(_ask, at, port, path, method, host, headers or {})


def _ask(at: str, port: int, path: str, method: str, host: str, headers: Mapping[str, str]) -> Answer:
    connection = http.client.HTTPConnection(at, port, timeout=PATIENCE_S)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    finally:
        connection.close()


def flow(queue: int, state: FlowState, place: Place = HOME, epoch: int = 1) -> FlowPicture:
    return FlowPicture(QueueName(f"orders/{queue}"), place, state, Epoch(epoch), None, 2, 7, False, None, None)


def member(
    *flows: FlowPicture,
    owners: Mapping[int, str] | None = None,
    state: OwnState = OwnState.ACTIVE,
    is_placed: bool = True,
    can_hear: bool = True,
    hears_other_versions: bool = False,
) -> MemberPicture:
    """Member `a` of a group in which members talk to each other."""
    ab = (MemberId("a"), MemberId("b"))
    ranks = {one.queue: ab if one.place.rank == 0 else ab[::-1] for one in flows}
    group = GroupView(
        tuple(MemberView(MemberId(name), Life(5, 1), MemberState.ACTIVE, 1, name == "b", {}) for name in ("a", "b")),
        {QueueName(f"orders/{queue}"): MemberId(owner) for queue, owner in (owners or {}).items()},
    )
    view = ViewPicture(group, Placement(ranks) if is_placed else None, can_hear, hears_other_versions)
    return MemberPicture(
        GroupName("orders"),
        MemberId("a"),
        5,
        state,
        1,
        flows,
        view,
        changed_settings=(),
        is_connected=True,
        why_away=None,
        awaited_lifespan=None,
    )


def counted(picture: MemberPicture) -> MemberPicture:
    """The same in a group in which nobody talks."""
    return replace(picture, view=None)


def change(queue: int) -> OwnerRecord:
    return OwnerRecord(queue, 1, "taken", None, None, "a", "elected", "broker", False, None, None, 0, 1_000, 2_000)


class ShownMember:
    """A `StatusSource` with fixed answers."""

    def __init__(self, picture: MemberPicture, changes: int = 0) -> None:
        self.shown = picture
        self.recorded = tuple(change(queue) for queue in range(changes))

    def picture(self) -> MemberPicture:
        return self.shown

    def reading(self) -> MemberReading:
        return member_reading(member=self.shown.member)

    def handled(self) -> HandledPicture:
        return HandledPicture(self.shown.member, self.shown.incarnation, {0: 7, 12: 1}, 2)

    def changes(self, limit: int) -> tuple[OwnerRecord, ...]:
        return self.recorded[:limit]

    def key(self, key: str) -> KeyPicture:
        if key == "impossible":
            raise UserError("key", key, "another one")
        report = FlowReport(ReportedFlow.ACTIVE, Epoch(1), 0)
        sight = KeySight(0, 0, None, None)
        return KeyPicture(MemberId("a"), key, 3, QueueName("orders/3"), MemberId("a"), report, sight, None, False)
