"""Who asks a group works out the same homes as its members, from what they say: on a memory broker in virtual time."""

import asyncio

import pytest

from lbg_runtime.cli.group.homes import derived_placement, group_queues
from lbg_runtime.cli.group.text import picture_as_object, picture_as_table, remarks
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.observer import Observer
from lbg_runtime.transport.memory.transport import MemoryTransport

QUEUES = [QueueName(f"orders/{index}") for index in range(4)]


@pytest.fixture
async def look(trial, settings):
    """Asks the group how it stands, on a session of its own each time."""
    sessions = []

    async def ask(listen_s=1.0):
        session = MemoryTransport(trial.broker, f"observer-{len(sessions)}")
        await session.open()
        sessions.append(session)
        counted = {"membership": {"mode": "discovered", "index": None, "count": None}}
        return await Observer(session, settings(rebind={"mode": "cooperative"}, **counted), "observer").look_at_group(
            listen_s
        )

    yield ask
    for session in sessions:
        await session.close()


def bound(picture):
    """By queue, the members that have a flow there."""
    return {queue: {member for member, beat in picture.members.items() if queue in beat.flows} for queue in QUEUES}


@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 1, 2), (1, 0, 1)])
async def test_homes_are_where_the_queues_are_and_ranks_are_who_is_bound(trial, look, weights):
    one_standby = {"rebind": {"standbys": 1}}
    apps = [
        trial.discovered(name, membership={"weight": weight}, **one_standby)
        for name, weight in zip("abc", weights, strict=True)
    ]
    async with trial.running(*apps):
        await asyncio.sleep(90)
        picture = await look()
        placement = derived_placement(picture, QUEUES)
        assert {queue: (placement.home(queue),) for queue in QUEUES} == dict(picture.owners)
        assert {queue: set(ranked[:2]) for queue, ranked in placement.ranks.items()} == bound(picture)
        assert list(remarks(picture, QUEUES, {}, None)) == []
        told = picture_as_object(picture, QUEUES, 10)
        assert told["placement"] == {queue: list(placement.ranks[queue]) for queue in QUEUES}
        for member in told["members"]:
            for queue, flow in member["flows"].items():
                assert flow["rank"] == (0 if flow["state"] == "active" else 1)
                assert told["placement"][queue][flow["rank"]] == member["member"]


async def test_the_homes_of_counted_members_are_those_of_their_numbers(trial, look):
    async with trial.running(*(trial.member(index, 2, rebind={"mode": "cooperative"}) for index in (0, 1))):
        await asyncio.sleep(60)
        placement = derived_placement(await look(), QUEUES)
        assert [placement.home(queue) for queue in QUEUES] == ["member-0", "member-1"] * 2


async def test_a_home_that_waits_for_its_hand_over_is_marked(trial, look):
    async with trial.at_work(trial.discovered("a")), trial.running(trial.discovered("b")):
        # Long enough for the group to settle, and not for the tenure of its owner.
        await asyncio.sleep(7)
        assert set(trial.active().values()) == {"a"}
        picture = await look(0.3)
        table = picture_as_table(picture, QUEUES)
        cells = list(zip(*(column.cells for column in table.columns), strict=True))[:4]
        marks = {(owner.split(" ")[0], other) for _, owner, other in cells}
        assert marks == {("⌂", "+1 ○"), ("+1", "⌂ ○")}


async def test_homes_are_not_known_while_members_see_different_groups(trial, look):
    async with trial.running(trial.discovered("a"), trial.discovered("b"), trial.discovered("c")):
        await asyncio.sleep(30)
        trial.sessions["c"].kill()
        picture = await look(0.5)
        assert derived_placement(picture, QUEUES) is None
        assert [line for line in remarks(picture, QUEUES, {}, None) if line.startswith("homes are not known")]
        await asyncio.sleep(30)
        assert derived_placement(await look(), QUEUES) is not None


async def test_members_know_better_which_queues_there_are(trial, look):
    async with trial.running(trial.discovered("a")):
        await asyncio.sleep(30)
        picture = await look()
        assert group_queues(picture, QUEUES[:2]) == QUEUES
        told = picture_as_object(picture, QUEUES[:2], 10)
        assert (list(told["queues"]), list(told["placement"])) == (QUEUES, QUEUES)
        assert derived_placement(picture, QUEUES[:2]) is None
    nobody = await look()
    assert (group_queues(nobody, QUEUES), derived_placement(nobody, QUEUES)) == (QUEUES, None)
