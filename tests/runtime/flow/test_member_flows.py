import asyncio
from types import SimpleNamespace

from lbg_runtime.core.group.rebalance import AWAY
from lbg_runtime.core.roles import Place
from lbg_runtime.runtime.flow.member_flows import MemberFlows

HOME = Place(0, gives_way=False)


class _Runner:
    """Of a flow that is never bound, and leaves when it is told to."""

    def __init__(self, queue_index, place):
        self.queue_index = queue_index
        self.machine = SimpleNamespace(queue=f"orders/{queue_index}", place=place)
        self.was_bound = False
        self._stopped = asyncio.Event()

    def stop(self):
        self._stopped.set()

    async def run(self):
        await self._stopped.wait()


async def test_only_refusals_of_all_queues_in_the_settings_say_that_nothing_can_be_bound():
    flows = MemberFlows(_Runner, [HOME, HOME, AWAY])
    async with asyncio.TaskGroup() as group:
        flows.run(group)
        first, second, other = flows.runners
        assert not flows.note_refusal(other), "it is wanted by others"
        assert not flows.note_refusal(first), "the other one has not been answered"
        [added] = flows.add(4)
        assert not flows.note_refusal(added), "it is not one of the settings"
        assert flows.note_refusal(second)
        added.was_bound = True
        assert not flows.note_refusal(second), "something can be bound"
        flows.stop()


async def test_flows_have_left_when_the_last_one_has_also_of_those_that_were_added():
    flows = MemberFlows(_Runner, [HOME])
    async with asyncio.TaskGroup() as group:
        flows.run(group)
        [added] = flows.add(2)
        flows.runners[0].stop()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        assert not flows.have_left.is_set()
        added.stop()
        async with asyncio.timeout(10):
            await flows.have_left.wait()
