"""One life of a member of which it is counted what goes in and comes out, and how it ends."""

import asyncio
from math import inf

from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.runtime.shutdown import TAIL_MS
from lbg_runtime.testing.freezer import Freezer
from tests.runtime.distant_session import DistantTransport
from tests.runtime.figures import Figures

DRAIN_TIMEOUT_S = 4

PATIENCE_S = 60
"""For the next message to be handled: above the longest outage, and what follows it."""


class WatchedMember:
    """One life; `work` is what its handler does."""

    def __init__(self, world, name, settings, trouble=None):
        self.world = world
        self.name = name
        self.closed_with = 0
        """Flows that were still bound when the connection was closed."""
        self.asked_s = None
        """When it was first asked to leave."""
        self.ended_s = None
        self.lost_s = {}
        """By queue and epoch, when it was told that it is not fed there any more."""
        self.may_begin = True
        """It has not been told to leave at once."""
        self.dispatched = self.ended = 0
        self.supervisor = None
        self.dispatcher = None
        self.figures = None
        # A defect in the middle of its settlements ends it, whatever it has counted by then.
        self._is_beyond_counting = any(call == "settle" for call, _ in trouble or {})
        self.task = None
        self.process = Freezer()
        self._death = asyncio.get_running_loop().create_future()
        self.session = DistantTransport(self, trouble or {})
        self.app = world.app_of(self, settings)
        self.app._begin_watch = lambda: world.loop

    def start(self):
        self.task = asyncio.get_running_loop().create_task(self.app.run(), context=self.process.context())
        self.task.add_done_callback(self._note_end)

    def _note_end(self, _):
        self.ended_s = self.world.loop.time()

    @property
    def is_there(self):
        return self.task is not None and not self.task.done() and not self.is_killed

    def leave(self, how):
        """`how`: stop, stop_now or cancel."""
        if self.asked_s is None:
            self.asked_s = self.world.loop.time()
        if how == "cancel":
            self.task.cancel()
        else:
            self.process.context().run(getattr(self.app, how))
            self.may_begin &= how == "stop"

    @property
    def is_killed(self):
        return self._death.done()

    def kill(self):
        """As by SIGKILL: nothing of it runs any more, and the broker sees its connection break."""
        if self.is_there:
            self._death.set_result(None)
            self.process.freeze()
            self.session.kill()

    async def dispose(self):
        """End what is left of one that was killed."""
        if self.is_killed:
            self.process.cancel()
            await asyncio.wait([self.task])

    def lose_queues(self):
        """From now on, others may have the queues that it is fed from."""
        for machine in [] if self.supervisor is None else [runner.machine for runner in self.supervisor.runners]:
            if machine.state in (FlowState.ACTIVE, FlowState.DRAINING):
                for queue in (machine.queue, f"{PARKING_PREFIX}{machine.queue}"):
                    self.lost_s.setdefault((queue, machine.epoch), -inf)

    def watch(self, made):
        """Count what goes into its dispatcher, and what comes out."""
        self.supervisor, self.dispatcher = made, made._dispatcher
        prepare, end = self.dispatcher._prepare, self.dispatcher._end
        figures = self.figures = Figures(made, made._journal, self.session)

        def counted_prepare(delivery):
            self.dispatched += 1
            handling = prepare(delivery)
            figures.take_in(handling)
            return handling

        def counted_end(handling, outcome):
            self.ended += 1
            end(handling, outcome)
            figures.end(handling)
            self.world.look_at_end(self, handling)

        self.dispatcher._prepare, self.dispatcher._end = counted_prepare, counted_end

    def look_at_figures(self):
        """Called between two steps of the loop."""
        if self.figures is not None and not self.is_killed:
            self._note_wrong(self.figures.wrong())

    def _note_wrong(self, found):
        # Once: what is told wrong stays so.
        for each in [] if self._is_beyond_counting else list(found):
            self._is_beyond_counting = True
            self.world.fault(f"{self.name} tells of {each}")

    async def until_ended(self):
        await asyncio.wait([self.task, self._death], timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if self.is_killed:
            return
        if self.is_there:
            self.world.fault(f"{self.name} does not end")
            self.task.cancel()
            await asyncio.wait([self.task], timeout=PATIENCE_S)
        ended_s = self.world.loop.time() if self.ended_s is None else self.ended_s
        took_s = 0 if self.asked_s is None else ended_s - self.asked_s - self.world.loop.stood_still_s
        if took_s > DRAIN_TIMEOUT_S + TAIL_MS / 1_000 + 1:
            self.world.fault(f"{self.name} took {took_s:.1f} s to leave")

    @property
    def end(self):
        """Its report, what it raised, or how it is."""
        if self.is_killed:
            return "killed"
        if self.task is None or self.task.cancelled():
            return "cancelled"
        if not self.task.done():
            return "still there"
        return self.task.exception() or self.task.result()

    def check_end(self, *, is_clean):
        if is_clean and not getattr(self.end, "is_clean", False):
            self.world.fault(f"{self.name} left with {self.end!r}")
        if self.world.flows_of(self.name):
            self.world.fault(f"{self.name} is gone and still bound")
        if self.is_killed:
            return
        if self.figures is not None:
            self._note_wrong(self.figures.wrong_at_end())
        # Who cancels it a second time does not want to wait.
        in_good_order = self.asked_s is not None and self.task.cancelling() < 2
        if in_good_order and self.closed_with > getattr(self.end, "still_bound", 0):
            self.world.fault(f"{self.name} closed its connection with {self.closed_with} flows bound")
        if self.dispatched != self.ended:
            self.world.fault(f"{self.name} was given {self.dispatched} deliveries, of which {self.ended} ended")
        if self.dispatcher is not None and self.dispatcher.held().waiting + self.dispatcher.held().running:
            self.world.fault(f"{self.name} left deliveries in its lanes")
