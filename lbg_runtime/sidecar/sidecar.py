"""The sidecar: a member whose handler is an application in another process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from uuid import uuid4

import structlog

from lbg_runtime.admin.stored import Difference
from lbg_runtime.config.fields import MAX_INTERVAL_MS
from lbg_runtime.config.settings import Settings
from lbg_runtime.config.sidecar_settings import SidecarSettings
from lbg_runtime.metrics.reading import SidecarReading
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.sole_error import sole_error
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, Handling, facts_of
from lbg_runtime.runtime.session import Session
from lbg_runtime.sidecar.access import SidecarAccess
from lbg_runtime.sidecar.answer import Status
from lbg_runtime.sidecar.application import Application, ApplicationFailed, HttpApplication
from lbg_runtime.sidecar.counts import Counts
from lbg_runtime.sidecar.event import Event, header_text
from lbg_runtime.sidecar.gate import Gate
from lbg_runtime.sidecar.publishing import ApplicationPublisher
from lbg_runtime.sidecar.pull import PulledEvents
from lbg_runtime.sidecar.push import PushedEvents
from lbg_runtime.sidecar.receiver import EventUnwanted, Receiver
from lbg_runtime.sidecar.routes import SidecarRoutes
from lbg_runtime.sidecar.server import SidecarServer

_log = structlog.get_logger(__name__)


def sidecar_app(
    settings: Settings,
    *,
    member_index: int | None = None,
    member_count: int | None = None,
    member_id: str | None = None,
    session: Session | None = None,
    application: Application | None = None,
) -> App:
    """The member that settings with a section `sidecar` describe; the other parameters are those of `App`.

    `application` is used, and not closed, instead of the one at `sidecar.application`. Raises what `App` raises.
    """
    if settings.sidecar is None:
        raise ConfigError("sidecar", "not set", "a section, as the sidecar is to be started")
    sidecar = Sidecar(settings, settings.sidecar, application)
    return App(
        sidecar.handlers,
        settings,
        member_index=member_index,
        member_count=member_count,
        member_id=member_id,
        session=session,
        companion=sidecar,
    )


class Sidecar:
    """The `Companion` of one member, and its handlers. Made on any thread; attended once, on the member's loop."""

    def __init__(self, settings: Settings, sidecar: SidecarSettings, application: Application | None) -> None:
        """Parameters as for `sidecar_app`; `sidecar` is the section."""
        self.counts = Counts()
        self.shared: dict[str, str] = {}
        self.handlers = Handlers()
        # One handler for all topics: which topics the application wants is known only when it has answered, and may
        # change when it restarts. The handler's timeout is as long as possible, and the receiver times the answers:
        # while a message waits for an application that is away, its attempt has not begun, and must not time out.
        self.handlers.handler(">", timeout=f"{MAX_INTERVAL_MS}ms")(self._handle)
        self._settings = settings
        self._sidecar = sidecar
        self._application = application
        self._source = f"/{header_text(settings.group.name)}"
        self._receiver: Receiver | None = None
        self._gate: Gate | None = None
        self._may_begin = asyncio.Event()

    # -- Companion

    @asynccontextmanager
    async def attend(
        self, session: Session, on_able: Callable[[bool], None], changed: Callable[[], tuple[Difference, ...]]
    ) -> AsyncIterator[None]:
        """See `Companion.attend`. Raises `ConfigError` if `sidecar.listen` cannot be had."""
        timeout_ms = self._settings.failure.timeout_ms
        publisher = ApplicationPublisher(self._settings, session, changed)
        # In cycle mode, and with a partitioned queue, members do not talk to each other, so the queues stay.
        talks = self._settings.is_cooperative
        self._gate = gate = Gate(on_able, self._may_begin.set, others_take_queues=talks)
        async with AsyncExitStack() as stack:
            stack.callback(gate.end)
            stack.push_async_callback(publisher.close)
            application = self._application
            if application is None and self._sidecar.application is not None:
                application = HttpApplication(self._sidecar.application, self._sidecar, timeout_ms)
                stack.push_async_callback(application.close)
            if application is None:
                self._receiver = pulled = PulledEvents(timeout_ms, gate)
                await self._serve(stack, publisher, gate, pulled)
                # Closed before the server ends, as that waits for its requests.
                stack.callback(pulled.close)
                yield
            else:
                self._receiver = pushed = PushedEvents(application, self._sidecar, gate)
                await self._serve(stack, publisher, gate, None)
                # An error in the member is raised as it would be without a sidecar.
                with sole_error():
                    async with asyncio.TaskGroup() as tasks:
                        watching = tasks.create_task(pushed.run())
                        yield
                        watching.cancel()

    def reading(self) -> SidecarReading:
        is_ready = self._gate is not None and self._gate.is_open
        return SidecarReading(is_ready=is_ready, **asdict(self.counts))

    async def until_ready(self) -> None:
        await self._may_begin.wait()

    def waits_for(self) -> str:
        if self._gate is None or self._gate.is_open:
            return ""
        return f"its application is away: {self._gate.reason}"

    def flow_changed(self, queue: QueueName, epoch: Epoch, *, is_kept: bool) -> None:
        if self._gate is not None:
            self._gate.flow_changed(queue, epoch, is_kept=is_kept)

    async def _serve(
        self, stack: AsyncExitStack, publisher: ApplicationPublisher, gate: Gate, pulled: PulledEvents | None
    ) -> None:
        address, token = self._sidecar.listen, self._sidecar.token
        if address is None:
            return
        routes = SidecarRoutes(publisher.get, gate, pulled, self.counts, self._sidecar.max_body_kb * 1024)
        secret = None if token is None else token.get_secret_value()
        app = SidecarAccess(routes.application(), address, secret, self.counts)
        await stack.enter_async_context(SidecarServer(app, address))

    # -- the handler

    async def _handle(self, message: Message) -> None:
        if self._receiver is None:
            raise ApplicationFailed("the sidecar is not running")
        handling = CURRENT_HANDLING.get()
        try:
            answer = await self._receiver.deliver(self._event(message, handling))
        except (ApplicationFailed, EventUnwanted):
            self.counts.failed += 1
            raise
        match answer.status:
            case Status.SUCCESS:
                self.counts.accepted += 1
            case Status.RETRY:
                self.counts.failed += 1
                raise ApplicationFailed(answer.reason)
            case Status.DROP:
                self.counts.dropped += 1
                _log.warning("event_dropped", **facts_of(handling), reason=answer.reason)

    def _event(self, message: Message, handling: Handling) -> Event:
        delivery = handling.delivery
        return Event(
            message=message,
            topic=handling.topic,
            key=handling.key,
            shard=handling.shard,
            queue=delivery.queue,
            epoch=delivery.epoch,
            attempt=handling.attempts,
            redelivered=delivery.redelivered,
            event_id="" if message.message_id else str(uuid4()),
            source=self._source,
        )
