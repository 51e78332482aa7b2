"""Gives events to an application that listens: they are posted to the routes it has named, as long as it is there."""

import asyncio
from contextlib import suppress
from contextvars import Context

import structlog

from lbg_runtime.config.sidecar_settings import ContentMode, SidecarSettings
from lbg_runtime.core.first_times import FirstTimes
from lbg_runtime.model.errors import InvariantViolated, LbgError
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.runners.attempts import attempt_put_off, end_unbegun, may_begin
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING
from lbg_runtime.runtime.runners.pool import CURRENT_POOL
from lbg_runtime.sidecar.answer import NO_ROUTE, Answer, Status, read_answer
from lbg_runtime.sidecar.application import Application, ApplicationFailed, ApplicationUnreachable, NotSent
from lbg_runtime.sidecar.bulk_sender import BulkSender
from lbg_runtime.sidecar.event import STRUCTURED_TYPE, Event, binary, facts, structured
from lbg_runtime.sidecar.gate import Gate
from lbg_runtime.sidecar.health import ApplicationHealth, ApplicationState
from lbg_runtime.sidecar.receiver import EventUnwanted
from lbg_runtime.sidecar.subscriptions import (
    Bulk,
    Subscription,
    Subscriptions,
    SubscriptionsRefused,
    configured,
    mqtt_remarks,
    read_subscriptions,
)

_log = structlog.get_logger(__name__)

ASKED_AGAIN_EVERY_MS = 100
"""How often the application is asked again at most, because of events, what it wants; events in between wait for
that."""

REASONS_TOLD = 10
"""How many reasons are logged in one absence: what an application answers may be different each time."""


class PushedEvents:
    """A `Receiver`; its `run` watches the application's health and opens and closes the gate."""

    def __init__(self, application: Application, settings: SidecarSettings, gate: Gate) -> None:
        self._application = application
        self._settings = settings
        self._health = ApplicationHealth(settings.health.interval_ms, now_ms())
        self._gate = gate
        self._look = asyncio.Event()
        """Set when the health, and with it the deadline, has changed, or when there are doubts."""
        self._doubts: list[asyncio.Future[None]] = []
        """The deliveries that wait until the application has said again what it wants."""
        self._may_ask_ms = now_ms()
        """The earliest time at which the application may be asked because of them."""
        self._subscriptions = Subscriptions(())
        self._proven_routes: set[str] = set()
        """Routes that have taken an event since the application came: it is known to have them."""
        self._bulk_senders: dict[Subscription, BulkSender] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._told = FirstTimes(REASONS_TOLD)
        """The reasons for the present absence that were logged, each once."""

    # -- Receiver

    async def deliver(self, event: Event) -> Answer:
        """See `Receiver.deliver`.

        Before an event is dropped because its route is unknown, or fails because it has none, the application is asked
        again what it wants, as it may have been restarted unnoticed. Only an answer to a question that was asked after
        the event came back counts. The application does not name the routes of the settings: if one of these is
        unknown, the event is dropped only if the application is known to have that route.
        """
        is_sent_anew = False
        while True:
            if not self._gate.is_open:
                await self._gate.passed(event)
            subscription = self._subscriptions.find(event.topic)
            try:
                if subscription is not None:
                    answer = await self._send(event, subscription)
                    if answer is not NO_ROUTE:
                        if answer.status is not Status.RETRY:
                            self._proven_routes.add(subscription.route)
                        return answer
                    if subscription.is_configured:
                        self._check_proven(subscription.route)
                        return answer
                await self._asked_again()
            except ApplicationUnreachable as error:
                self._not_reached(error)
                continue
            if self._subscriptions.find(event.topic) == subscription:
                if subscription is None:
                    raise EventUnwanted(event.topic, self._subscriptions.topics)
                return NO_ROUTE
            if is_sent_anew:
                # Asked only once in an attempt, so that there is a backoff between all further questions.
                raise ApplicationFailed("its subscriptions change from answer to answer")
            is_sent_anew = True

    async def run(self) -> None:
        """Watch the application until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            while True:
                self._look.clear()
                # Doubts that come up during a probe wait for the next one: the answer may have been on its way already.
                with suppress(TimeoutError):
                    async with asyncio.timeout((self._probe_ms() - now_ms()) / 1_000):
                        await self._look.wait()
                if self._probe_ms() <= now_ms():
                    await self._probe()

    def _probe_ms(self) -> int:
        """When the next probe is due."""
        return min(self._health.deadline_ms, self._may_ask_ms) if self._doubts else self._health.deadline_ms

    # -- sending

    async def _send(self, event: Event, subscription: Subscription) -> Answer:
        if subscription.bulk is not None:
            return await self._bulk_sender(subscription, subscription.bulk).deliver(event)
        if subscription.content_mode is ContentMode.BINARY:
            headers, body = binary(event, subscription.pubsub_name)
            headers |= facts(event)
        else:
            body = structured(event, subscription.pubsub_name, is_raw=subscription.is_raw)
            headers = facts(event)
            headers["content-type"] = STRUCTURED_TYPE
        handling = CURRENT_HANDLING.get(None)
        try:
            response = await self._application.post(subscription.route, headers, body, lambda: may_begin(handling))
        except NotSent:
            await end_unbegun()
        return read_answer(response.status, response.content_type, response.body)

    def _check_proven(self, route: str) -> None:
        if route not in self._proven_routes:
            raise ApplicationFailed(
                f"HTTP 404 from {route}, which sidecar.subscriptions names and which has taken no event since the "
                "application came: is it mistyped, or not there yet?"
            )

    def _bulk_sender(self, subscription: Subscription, bulk: Bulk) -> BulkSender:
        sender = self._bulk_senders.get(subscription)
        if sender is None:
            if self._tasks is None:
                raise InvariantViolated("the gate was opened before the application was watched")
            turns = CURRENT_POOL.get().batch_turns
            sender = BulkSender(self._application, subscription, bulk, self._tasks.create_task, self._gate, turns)
            self._bulk_senders[subscription] = sender
        return sender

    # -- health

    async def _asked_again(self) -> None:
        """Return when the application, asked after this call, has said what it wants.

        Raises `ApplicationUnreachable`, or `ApplicationFailed` if it does not say.
        """
        doubt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._doubts.append(doubt)
        self._look.set()
        try:
            # Meanwhile the event is with nobody, so it goes back if its flow is lost.
            with attempt_put_off():
                # Bounded by two probes with their answers, and the time between them; `run` ends only after all
                # deliveries.
                await doubt
        except SubscriptionsRefused as error:
            raise ApplicationFailed(str(error)) from None

    async def _probe(self) -> None:
        doubts, self._doubts = self._doubts, []
        failure: LbgError | None = None
        try:
            await self._application.probe()
            if doubts or self._health.is_in_doubt:
                # It may be another process now, which wants other events.
                await self._ask_subscriptions()
        except (ApplicationUnreachable, ApplicationFailed, SubscriptionsRefused) as error:
            failure = error
            self._health.probe_failed(now_ms())
        else:
            self._health.probe_passed(now_ms())
        self._follow(failure)
        if doubts:
            # Otherwise an application that drops many events by 404 would be asked for each of them.
            self._may_ask_ms = now_ms() + ASKED_AGAIN_EVERY_MS
        for doubt in doubts:
            if doubt.done():
                continue  # taken back meanwhile
            if failure is None:
                doubt.set_result(None)
            else:
                doubt.set_exception(failure)

    async def _ask_subscriptions(self) -> None:
        told = await self._application.subscriptions()
        asked, remarks = ([], []) if told is None else read_subscriptions(told)
        found = (*configured(self._settings.subscriptions), *asked)
        if not found:
            raise SubscriptionsRefused("no subscription, and none in sidecar.subscriptions")
        if found == self._subscriptions.subscriptions:
            return
        for remark in (*remarks, *mqtt_remarks(found)):
            _log.warning("subscription_remark", remark=remark)
        _log.info("subscriptions_read", topics=[each.topic for each in found])
        self._subscriptions = Subscriptions(found)
        # Events that another sender still sends, or that wait in it, are answered all the same.
        self._bulk_senders = {asked: sender for asked, sender in self._bulk_senders.items() if asked in found}

    def _not_reached(self, error: ApplicationUnreachable) -> None:
        if self._health.not_reached(now_ms()):
            # In a fresh context, so that the log does not show the event in whose context this was found.
            Context().run(self._follow, error)
            self._look.set()

    def _follow(self, error: LbgError | None) -> None:
        """Open or close the gate, and log it once."""
        if error is None or self._health.state is ApplicationState.READY:
            if not self._gate.is_open:
                _log.info("application_ready")
            self._told = FirstTimes(REASONS_TOLD)
            self._gate.open()
            return
        # The reason alone: the text of the error speaks of an event, and here the application failed at something else.
        reason = error.reason if isinstance(error, ApplicationFailed) else str(error)
        self._gate.close(reason)
        # The application that comes back may be another program.
        self._proven_routes.clear()
        if self._told.is_first(reason):
            _log.warning("application_away", application=self._settings.application, reason=reason)
