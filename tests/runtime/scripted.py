"""A flow runner between a machine, a scripted transport and a dispatcher: what its tests are made of."""

import asyncio
import random
from contextlib import asynccontextmanager

from lbg_runtime.core.flow.events import FlowActive
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.record import DispatchRecord, FlowRecord
from lbg_runtime.runtime.flow.runner import FlowRunner
from lbg_runtime.runtime.flow.settings import rebind_settings
from lbg_runtime.runtime.handlers.hooks import QueueHooks
from lbg_runtime.runtime.journal import MemberJournal
from lbg_runtime.runtime.turns import Turns

QUEUE = QueueName("orders/0")
HOME = Place(0, gives_way=True)
STANDBY = Place(1, gives_way=False)


class ScriptedTransport:
    """Binds as told; everything that reaches it or the journal stands in `log`, in order."""

    def __init__(self):
        self.log = []
        self.binds = asyncio.Queue()
        self.refusals = []
        self.sink = None
        self.unbinds_are_answered = True
        self.unbind_takes_s = 0.001
        self._awaited_count = 0
        self._reached = asyncio.Event()

    async def settled(self, count):
        """Wait until so many deliveries are settled."""
        self._awaited_count = count
        await self._reached.wait()

    def note_settled(self, epoch, delivery_id):
        self.log.append(("settle", epoch, delivery_id))
        self._awaited_count -= 1
        if self._awaited_count == 0:
            self._reached.set()

    async def bind(self, queue, epoch, sink):
        await asyncio.sleep(0.001)
        if self.refusals:
            raise self.refusals.pop()
        self.sink = sink
        self.binds.put_nowait(epoch)
        return ScriptedFlow(self, epoch)


class ScriptedFlow:
    def __init__(self, transport, epoch):
        self._transport = transport
        self._log = transport.log
        self._epoch = epoch

    def settle(self, delivery_id, outcome):
        self._transport.note_settled(self._epoch, delivery_id)

    def flush(self):
        self._log.append(("flush", self._epoch))

    def stop_intake(self):
        self._log.append(("stop_intake", self._epoch))

    def start_intake(self):
        self._log.append(("start_intake", self._epoch))

    async def unbind(self):
        self._log.append(("unbind", self._epoch))
        await asyncio.sleep(self._transport.unbind_takes_s)
        return self._transport.unbinds_are_answered


class ScriptedWriter:
    """Stands in for the record file: what is flushed goes to the log."""

    def __init__(self, log):
        self._log = log
        self._batch = []

    def write(self, record):
        self._batch.append(record)

    def flush(self):
        if self._batch:
            self._log.append(("records", self._batch))
            self._batch = []


class ScriptedOwner:
    """Keeps what it is told of its flow, and has the news in the log."""

    def __init__(self, log):
        self._log = log
        self.changes = []
        self.settled_ids = []
        self.refusals = []

    def flow_changed(self, runner):
        machine = runner.machine
        self.changes.append((machine.state.value, machine.epoch, machine.cause and machine.cause.value))

    def settled(self, _, handling):
        self.settled_ids.append(handling.delivery.delivery_id)

    def bind_refused(self, _, refusal):
        self.refusals.append(refusal)

    def stripes_told(self, _, news):
        self._log.append(("stripes", news))

    def probe_asked(self, probe):
        self._log.append(("probe", probe.epoch))


class Trial:
    """A flow runner whose every move stands in `log`; `hooks`: `Handlers` that have some; `gate`: for a re-striping;
    `handlers`: those, and not `handle`."""

    def __init__(
        self, rig, settings, handle, place=HOME, hooks=None, gate=None, parking=None, handlers=None, **sections
    ):
        self.transport = ScriptedTransport()
        self.rig = rig(handle, handlers=handlers, **sections)
        made = settings(**sections)
        machine = FlowMachine(
            QUEUE, place, rebind_settings(made), made.dispatch.max_in_flight, random.Random(1), now_ms=0, gate=gate
        )
        journal = MemberJournal(ScriptedWriter(self.log), 1)
        self.owner = ScriptedOwner(self.log)
        self.runner = FlowRunner(
            0,
            machine,
            self.transport,
            self.rig.dispatcher,
            journal,
            Turns(journal.flush),
            self.owner,
            QueueHooks(() if hooks is None else hooks.hooks, QUEUE, made.failure.timeout_ms),
            parking,
        )

    @property
    def log(self):
        return self.transport.log

    def dispatch_records(self):
        return [record for record in self.records() if isinstance(record, DispatchRecord)]

    def flow_changes(self):
        return [(record.event, record.cause) for record in self.records() if isinstance(record, FlowRecord)]

    def records(self):
        return [record for entry in self.log if entry[0] == "records" for record in entry[1]]

    def settled(self):
        return [entry[1:] for entry in self.log if entry[0] == "settle"]

    @asynccontextmanager
    async def running(self):
        """With runner and dispatcher at work; the runner is stopped at the end, and what ended it before is raised."""
        task = asyncio.ensure_future(self.runner.run())
        async with self.rig.running():
            try:
                yield task
            finally:
                self.runner.stop()
                await asyncio.wait([task], timeout=100)
                if not task.cancelled():
                    task.result()

    async def activate(self):
        epoch = await self.transport.binds.get()
        self.transport.sink(FlowActive(epoch))
        return epoch

    @asynccontextmanager
    async def fed(self):
        """As `running`, from when the flow is active; its epoch."""
        async with self.running():
            yield await self.activate()
