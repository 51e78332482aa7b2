"""What the application may ask of the sidecar: to publish, and to pull and settle events."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict

import anyio
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lbg_runtime.model.errors import PublisherClosed, PublishFailed, PublishRefused, UserError
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.sidecar.counts import Counts
from lbg_runtime.sidecar.gate import Gate
from lbg_runtime.sidecar.publication import read_publication
from lbg_runtime.sidecar.pull import PulledEvents
from lbg_runtime.sidecar.pulling import read_settlements
from lbg_runtime.status.access import as_json, number_of, text_of
from lbg_runtime.status.routes import refuse_value

BODY_WITHIN_S = 30.0
"""How long a request may take to arrive completely."""
CONFIRM_WITHIN_S = 30.0
"""How long to wait for room to send and the broker's confirm. After that, a message that was sent is not lost, but the
application is told that its fate is unknown."""

DEFAULT_OPEN = 16
MAX_OPEN = 1_000
"""The most events that a stream may have open."""

LAST_LINES_S = 0.5
"""How long clients have to read the end of their stream when the member leaves; less than the server allows for all
requests."""

_DAPR_ERROR = "ERR_PUBSUB_PUBLISH_MESSAGE"

_log = structlog.get_logger(__name__)


class SidecarRoutes:
    """The routes of one sidecar; answers on the member's loop."""

    def __init__(
        self,
        publisher: Callable[[], HashedPublisher],
        gate: Gate,
        pulled: PulledEvents | None,
        counts: Counts,
        max_body_bytes: int,
    ) -> None:
        """`publisher` returns the publisher, or raises `UserError` if there is none now. `pulled` is None if events are
        posted to the application.
        """
        self._publisher = publisher
        self._gate = gate
        self._pulled_events = pulled
        self._counts = counts
        self._max_body_bytes = max_body_bytes

    def application(self) -> Starlette:
        routes = [
            Route("/v1/publish/{topic:path}", self._publish, methods=["POST"]),
            Route("/v1.0/publish/{pubsub}/{topic:path}", self._publish_for_dapr, methods=["POST", "PUT"]),
            Route("/v1/pull", self._pull, methods=["POST"]),
            Route("/v1/settle", self._settle, methods=["POST"]),
            Route("/v1/sidecar", self._sidecar),
            Route("/v1.0/healthz", _healthy),
            Route("/v1.0/healthz/outbound", _healthy),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse, UserError: refuse_value})
        # No redirects: a topic may end in a slash, and without that it would be another topic.
        app.router.redirect_slashes = False
        return app

    # -- publishing

    async def _publish(self, request: Request) -> Response:
        published = await self._send(request)
        if isinstance(published, Confirmation):
            return as_json(asdict(published))
        status, fate, reason = published
        return as_json({"error": reason, "fate": fate}, status)

    async def _publish_for_dapr(self, request: Request) -> Response:
        published = await self._send(request)
        if isinstance(published, Confirmation):
            return Response(status_code=204)
        return as_json({"errorCode": _DAPR_ERROR, "message": published[2]}, 500)

    async def _send(self, request: Request) -> Confirmation | tuple[int, str, str]:
        """Publish the message of a request; return the confirm, or an HTTP status, the message's fate, and the
        reason."""
        text_of("topic", request.scope["raw_path"])
        text_of("query", request.scope["query_string"])
        topic = request.path_params["topic"]
        wanted = read_publication(request.headers, request.query_params, await self._body(request))
        try:
            publisher = self._publisher()
        except UserError as error:
            # An error, but not one of the application's request.
            self._counts.unpublished += 1
            return 503, "refused", str(error)
        sent: asyncio.Future[Confirmation] | None = None
        try:
            async with asyncio.timeout(CONFIRM_WITHIN_S):
                sent = await publisher.submit(
                    topic, wanted.payload, key=wanted.key, properties=wanted.properties, headers=wanted.headers
                )
                confirmation = await sent
        except PublisherClosed as error:
            failed = (503, "refused", str(error))
        except PublishRefused as error:
            failed = (422, "refused", str(error))
        except PublishFailed as error:
            failed = (503, "unknown", str(error))
        except TimeoutError:
            if sent is None:
                failed = (503, "refused", f"not sent: for {CONFIRM_WITHIN_S:g} s too much was waiting for its confirm")
            else:
                failed = (504, "unknown", f"no confirm within {CONFIRM_WITHIN_S:g} s")
        else:
            self._counts.published += 1
            return confirmation
        self._counts.unpublished += 1
        return failed

    # -- pulling

    async def _pull(self, request: Request) -> Response:
        pulled = self._pulled()
        capacity = number_of("max", request.query_params.get("max", str(DEFAULT_OPEN)), MAX_OPEN)
        return EventStream(pulled.stream(capacity), pulled.closed)

    async def _settle(self, request: Request) -> Response:
        pulled = self._pulled()
        answers = read_settlements(await self._body(request))
        late = pulled.settle(answers)
        return as_json({"settled": len(answers) - len(late), "late": late})

    def _pulled(self) -> PulledEvents:
        if self._pulled_events is None:
            raise HTTPException(409, "events are posted to sidecar.application; leave it out to pull them")
        return self._pulled_events

    # -- facts

    async def _sidecar(self, _: Request) -> Response:
        return as_json({"application": "ready" if self._gate.is_open else "away", **asdict(self._counts)})

    async def _body(self, request: Request) -> bytes:
        """The whole body; raises `HTTPException` if it is compressed or too large, or does not arrive."""
        encodings = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
        if {each.strip() for each in encodings} - {"", "identity"}:
            # A message cannot say that it is compressed, so its readers would not know.
            raise HTTPException(415, "a body with a Content-Encoding; expected one that is not compressed")
        length = request.headers.get("content-length", "")
        is_too_long = (
            length.isascii() and length.isdecimal() and (len(length) > 10 or int(length) > self._max_body_bytes)
        )
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                # The body is not read if its declared length is too large.
                body = None if is_too_long else await _read(request, self._max_body_bytes)
        except TimeoutError:
            raise HTTPException(408, f"no whole body within {BODY_WITHIN_S:g} s") from None
        except ClientDisconnect:
            raise HTTPException(400, "the client has gone") from None
        if body is None:
            self._counts.refused += 1
            _log.warning("request_refused", status=413, reason="too large", path=request.url.path)
            raise HTTPException(413, f"at most {self._max_body_bytes} bytes in one request")
        return body


class EventStream(Response):
    """A response of lines as they come, until they end; or until the client goes, which ends them at once."""

    def __init__(self, lines: AsyncGenerator[bytes], closed: asyncio.Event) -> None:
        """`lines` must end soon after `closed` is set; a client that does not read them then is abandoned."""
        super().__init__(media_type="application/x-ndjson", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._lines = lines
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - by its protocol
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._until_gone, receive, tasks.cancel_scope)
            tasks.start_soon(self._until_closed, tasks.cancel_scope)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            # An empty line, so that the client sees the stream begin, however late the first event comes.
            await send({"type": "http.response.body", "body": b"\n", "more_body": True})
            async with aclosing(self._lines) as lines:
                async for line in lines:
                    await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _until_closed(self, scope: anyio.CancelScope) -> None:
        """After the end, give up a line that nobody reads: otherwise the server would cancel it later, and log that as
        a failure."""
        await self._closed.wait()
        await anyio.sleep(LAST_LINES_S)
        scope.cancel()


async def _read(request: Request, most: int) -> bytes | None:
    """The body; None if it is longer than `most`. Raises `ClientDisconnect`."""
    parts: list[bytes] = []
    async for part in request.stream():
        parts.append(part)
        most -= len(part)
        if most < 0:
            return None
    return b"".join(parts)


async def _healthy(_: Request) -> Response:
    return Response(status_code=204)


async def _refuse(request: Request, error: Exception) -> Response:
    status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "not answered")
    if status == 405 and isinstance(error, HTTPException) and error.headers is not None:
        # Sorted, as the framework gives them in any order.
        allowed = ", ".join(sorted(error.headers["Allow"].split(", ")))
        return as_json({"error": f"{request.method}; expected {allowed}"}, status, {"Allow": allowed})
    return as_json({"error": "there is no such route" if status == 404 else detail}, status)
