"""Sends the events of one subscription together, and gives each its own answer."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack, suppress
from typing import NamedTuple
from uuid import uuid4

from lbg_runtime.runtime.clock import DeadlineTimer, now_ms
from lbg_runtime.runtime.runners.attempts import attempt_put_off, may_begin
from lbg_runtime.runtime.runners.batch_turns import BatchTurns
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, Handling
from lbg_runtime.sidecar.answer import Answer, read_bulk_answer
from lbg_runtime.sidecar.application import Application, ApplicationUnreachable, NotSent
from lbg_runtime.sidecar.bulk import BulkGathering, bulk_body
from lbg_runtime.sidecar.event import Event
from lbg_runtime.sidecar.gate import Gate
from lbg_runtime.sidecar.subscriptions import Bulk, Subscription

Spawn = Callable[[Coroutine[None, None, None]], object]
"""Runs a coroutine in the sidecar's task group."""


class _Entry(NamedTuple):
    event: Event
    answer: asyncio.Future[Answer]
    gathering: ExitStack
    """Closed when the event is sent: until then its attempt has not begun."""
    handling: Handling | None

    def is_wanted(self) -> bool:
        """Whether the event was not taken back, and need not be taken back now."""
        return not self.answer.done() and may_begin(self.handling)


_HEADERS = {"content-type": "application/json"}

_TOO_LARGE = 413
"""The HTTP status of a server for a body that is larger than it takes."""


class BulkSender:
    """One per subscription with bulks. Called from the member's runners."""

    def __init__(
        self,
        application: Application,
        subscription: Subscription,
        bulk: Bulk,
        spawn: Spawn,
        gate: Gate,
        turns: BatchTurns,
    ) -> None:
        """While `gate` is closed, nothing is sent. `turns` says for which flow handles nothing may wait here."""
        self._application = application
        self._subscription = subscription
        self._spawn = spawn
        self._gathering = BulkGathering(bulk)
        self._waiting: dict[int, _Entry] = {}
        self._count = 0
        self._timer = DeadlineTimer(self._arm)
        self._is_armed = False
        self._gate = gate
        self._turns = turns

    async def deliver(self, event: Event) -> Answer:
        """Like `Receiver.deliver`, but raises `ApplicationUnreachable` if the event was not sent."""
        self._count += 1
        number = self._count
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        with ExitStack() as gathering:
            gathering.enter_context(attempt_put_off())
            if not self._waiting:
                # Only while something waits here: nobody tells this object when the application wants no such bulks any
                # more.
                self._turns.join(self._look)
            self._waiting[number] = _Entry(event, answer, gathering, CURRENT_HANDLING.get(None))
            self._gathering.offer(number, now_ms())
            if self._turns.is_leaving(event):
                self._gathering.hurry(number)
            self._arm()
            try:
                return await answer
            finally:
                self._gathering.withdraw(number)
                del self._waiting[number]
                if not self._waiting:
                    self._turns.part(self._look)

    def _look(self) -> None:
        for number, entry in self._waiting.items():
            if self._turns.is_leaving(entry.event):
                self._gathering.hurry(number)
                self._arm()

    def _arm(self) -> None:
        """Send in the next turn of the loop, so that events that come in this turn go along."""
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        self._is_armed = False
        for number, entry in self._waiting.items():
            if entry.answer.done():
                # It was taken back in this turn of the loop, and the task that waits for it is yet to be woken.
                self._gathering.withdraw(number)
        while numbers := self._gathering.take(now_ms()):
            if not self._gate.is_open:
                self._gathering.answered()
                for number in numbers:
                    self._waiting[number].answer.set_exception(ApplicationUnreachable(self._gate.reason))
                continue
            self._spawn(self._send(numbers))
        self._timer.set(self._gathering.deadline_ms)

    async def _send(self, numbers: Iterable[int]) -> None:
        try:
            if entries := self._begun(numbers):
                await self._post(entries)
        finally:
            self._gathering.answered()
            self._arm()

    def _begun(self, numbers: Iterable[int]) -> dict[str, _Entry]:
        """Begin the attempts of these events, and return those that have begun. Not among them are events that were
        taken back, or must not begin any more, as when the process was stopped since the bulk was made."""
        entries: dict[str, _Entry] = {}
        for number in numbers:
            entry = self._waiting.get(number)
            if entry is not None and not entry.answer.done():
                with suppress(asyncio.CancelledError):
                    entry.gathering.close()
                    entries[str(number)] = entry
        return entries

    async def _post_left(self, entries: dict[str, _Entry]) -> None:
        """Send these events, without those that were taken back meanwhile."""
        if left := {number: entry for number, entry in entries.items() if entry.is_wanted()}:
            await self._post(left)

    async def _post(self, entries: dict[str, _Entry]) -> None:
        def are_wanted() -> bool:
            return all(entry.is_wanted() for entry in entries.values())

        failure: Exception | None = None
        answers: dict[str, Answer] = {}
        try:
            events = [(entry_id, entry.event) for entry_id, entry in entries.items()]
            body = bulk_body(self._subscription, str(uuid4()), events)
            response = await self._application.post(self._subscription.route, _HEADERS, body, are_wanted)
            if response.status == _TOO_LARGE and len(entries) > 1:
                # If they were tried again together, all would fail until their attempts end.
                numbers = list(entries)
                for half in (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]):
                    await self._post_left({each: entries[each] for each in half})
                return
            answers = read_bulk_answer(response.status, response.body, tuple(entries))
        except NotSent:
            await self._post_left(entries)
            return
        except Exception as error:  # noqa: BLE001 - each event gets it, as if it had been sent alone
            failure = error
        for entry_id, entry in entries.items():
            if entry.answer.done():
                continue  # taken back meanwhile
            if failure is None:
                entry.answer.set_result(answers[entry_id])
            else:
                entry.answer.set_exception(failure)
