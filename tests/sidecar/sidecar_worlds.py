"""The worlds of `every_step` in which a member's handler is an application: it is posted to, in bulks too, or pulls.

The application is some milliseconds away, and works on the loop of the world. An outcome of a message is what its
application answers the first time.
"""

import asyncio
import json
from contextlib import aclosing
from typing import ClassVar

from lbg_runtime.sidecar import pull
from lbg_runtime.sidecar.answer import Answer, Status
from lbg_runtime.sidecar.application import ApplicationFailed, ApplicationUnreachable, NotSent, Response
from lbg_runtime.sidecar.sidecar import sidecar_app
from tests.runtime.distant_session import LATENCY_S
from tests.runtime.every_step import World
from tests.runtime.mishaps import Mishap

TIMEOUT_S = 2
"""For an answer, as in the settings of all worlds."""


class _Application:
    """What both kinds have: it does its work, and may be gone for a while."""

    def __init__(self, world, member):
        self.world = world
        self.member = member
        self.tasks = set()
        self.is_up = self.is_well = True

    def start(self, coroutine):
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def go_away(self, seconds):
        self.is_up = False
        for task in self.tasks:
            task.cancel()
        self.world.later(seconds, self.come_back)

    def come_back(self):
        self.is_up = True

    def be_ill(self, seconds):
        self.is_well = False
        self.world.later(seconds, lambda: setattr(self, "is_well", True))

    async def take(self, facts):
        """Handle an event; return the status of its answer, or what becomes of that."""
        identity = facts["lbg-key"], int(facts["lbg-fencing-token"])
        answer = self.world.outcomes.pop(identity, "SUCCESS")
        if answer in ("DROP", "404"):
            self.world.done[identity] += 1
            return answer
        try:
            await self.world.work(self.member, identity)
        except ValueError:
            return "RETRY"
        return answer


class PushedApplication(_Application):
    """An `Application`."""

    route = "/orders"

    def restart(self):
        """As another program, which nobody sees."""
        for task in self.tasks:
            task.cancel()
        self.route += "x"

    async def post(self, route, headers, body, may_send):
        # A new connection comes about.
        await asyncio.sleep(LATENCY_S)
        if not self.is_up:
            raise ApplicationUnreachable("nobody listens")
        if not may_send():
            raise NotSent
        entries = json.loads(body)["entries"] if self.world.IS_BULK else [{"metadata": headers}]
        for entry in entries:
            self.world.check_event(self.member, entry["metadata"])
        doing = self.start(self._answer(route, entries))
        done, _ = await asyncio.wait([doing], timeout=TIMEOUT_S)
        if done and not doing.cancelled():
            return doing.result()
        doing.cancel()
        raise ApplicationFailed("no answer")

    async def _answer(self, route, entries):
        await asyncio.sleep(LATENCY_S)
        if route != self.route:
            return Response(404, "", b"")
        try:
            said = await asyncio.gather(*(self.take(entry["metadata"]) for entry in entries))
        finally:
            await asyncio.sleep(LATENCY_S)
        if "late" in said:
            await asyncio.sleep(TIMEOUT_S)
        if "reset" in said:
            raise ApplicationFailed("reset")
        if code := {"404", "500"} & set(said):
            return Response(int(*code), "", b"")
        told = {"status": said[0]}
        if self.world.IS_BULK:
            told = {"statuses": [{"entryId": e["entryId"], "status": s} for e, s in zip(entries, said, strict=True)]}
        return Response(200, "application/json", json.dumps(told).encode()[: 1 if "cut off" in said else None])

    async def probe(self):
        await asyncio.sleep(LATENCY_S)
        if not self.is_up:
            raise ApplicationUnreachable("nobody listens")
        if not self.is_well:
            raise ApplicationFailed("HTTP 503")

    async def subscriptions(self):
        await self.probe()
        bulk = {"enabled": self.world.IS_BULK, "maxMessagesCount": 2, "maxAwaitDurationMs": 20}
        return json.dumps([{"topic": "orders/>", "route": self.route, "bulkSubscribe": bulk}]).encode()


class PullingApplication(_Application):
    """Has one stream at a time, with room for one event."""

    def __init__(self, world, member, pulled):
        super().__init__(world, member)
        self._pulled = pulled
        self.come_back()

    def come_back(self):
        super().come_back()
        if not self._pulled.closed.is_set():
            self.start(self._read())

    async def end(self):
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self):
        async with aclosing(self._pulled.stream(1)) as lines:
            async for line in lines:
                await asyncio.sleep(LATENCY_S)
                if line.strip():
                    self.start(self._take(json.loads(line)))

    async def _take(self, told):
        said = await self.take(told["metadata"])
        if said == "never":
            return
        await asyncio.sleep(TIMEOUT_S if said == "late" else LATENCY_S)
        status = {"RETRY": Status.RETRY, "DROP": Status.DROP}.get(said, Status.SUCCESS)
        late = self._pulled.settle([(told["id"], Answer(status))])
        late += self._pulled.settle([(told["id"], Answer(Status.RETRY))] if said == "twice" else [])
        if said in ("late", "twice") and not late:
            self.world.fault(f"what was settled {said} is taken for in time")


def _of_a(name, *given):
    def happen(world):
        if (application := world.applications.get("a")) is not None and application.is_up:
            getattr(application, name)(*given)

    return happen


class SidecarWorld(World):
    MISHAPS: ClassVar = {
        "its application is away for a moment": Mishap(_of_a("go_away", 0.3)),
        "its application is away for longer than its queue waits": Mishap(_of_a("go_away", 3)),
        "its application is away for longer than it wants queues": Mishap(_of_a("go_away", 15)),
    }

    def __init__(self, loop, trouble):
        super().__init__(loop, trouble)
        self.applications = {}
        self._timers = []

    def later(self, seconds, callback):
        self._timers.append(self.loop.call_later(seconds, callback))

    def check_event(self, member, facts):
        """`facts` of an event that leaves for the application."""
        identity = facts["lbg-key"], int(facts["lbg-fencing-token"])
        self.check_may_begin(member, identity, facts["lbg-queue"], int(facts["lbg-epoch"]))

    async def end_of_life(self):
        await super().end_of_life()
        for timer in self._timers:
            timer.cancel()


class PushedWorld(SidecarWorld):
    IS_BULK = False
    MISHAPS: ClassVar = SidecarWorld.MISHAPS | {
        "its application is another one": Mishap(_of_a("restart")),
        "its application is ill": Mishap(_of_a("be_ill", 4)),
    }

    def sections(self, name):
        return {"sidecar": {"listen": "off", "application": "http://127.0.0.1:9"}}

    def app_of(self, member, settings):
        application = self.applications[member.name] = PushedApplication(self, member)
        return sidecar_app(settings, session=member.session, application=application)


class BulkWorld(PushedWorld):
    IS_BULK = True


class PulledWorld(SidecarWorld):
    def sections(self, name):
        return {"sidecar": {"listen": "127.0.0.1:0"}}

    def app_of(self, member, settings):
        app = sidecar_app(settings, session=member.session)

        async def serve(stack, publisher, gate, pulled):
            made = self.applications[member.name] = PullingApplication(self, member, pulled)
            stack.push_async_callback(made.end)

        # Without a port.
        app._companion._serve = serve
        return app

    def fault(self, text):
        # Its application has stood still as well, and is still at work on what comes again.
        if not (self.loop.stood_still_s and "handles two of" in text):
            super().fault(text)

    def changes(self):
        facts_of_line = pull.facts

        def facts(event):
            told = facts_of_line(event)
            self.check_event(next(reversed(self.members.values())), told)
            return told

        return [(pull, "facts", facts)]
