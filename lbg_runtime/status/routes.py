"""The routes of the status API, as an ASGI application, which runs in the server's thread and asks the member's
loop."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.metrics.member import CONTENT_TYPE, ScrapedMember, exposition
from lbg_runtime.model.errors import UserError
from lbg_runtime.status.access import NOT_KEPT, Access, as_json, number_of, text_of
from lbg_runtime.status.health import has_started, lacks
from lbg_runtime.status.member_loop import Blocked, MemberLoop
from lbg_runtime.status.objects import (
    changes_as_object,
    handled_as_object,
    key_as_object,
    lack_as_object,
    member_as_object,
)
from lbg_runtime.status.shared import Shared
from lbg_runtime.status.source import StatusSource

MAX_CHANGES = 1_000
DEFAULT_CHANGES = 100

MAX_QUESTIONS = 16
"""How many questions about facts are answered at a time, as each takes time of the member's loop. Probes and `/metrics`
are always answered."""

_KEYS_PATH = b"/v1/keys/"

_Answer = TypeVar("_Answer")


class _Health(NamedTuple):
    has_started: bool
    reasons: list[dict[str, object]]


class _NotBegun(NamedTuple):
    waits_for: str


class StatusRoutes:
    """Answers from a member, once there is one, and from what is seen of its loop."""

    def __init__(
        self, member_loop: MemberLoop, source: Callable[[], StatusSource | None], waits_for: Callable[[], str]
    ) -> None:
        """Both functions are called on the member's loop. `source` returns None until the member has begun; until then,
        `waits_for` says what it waits for, if that is known.
        """
        self._member_loop = member_loop
        self._source = source
        self._waits_for = waits_for
        self._questions = 0
        # Shared: a picture of a large group takes milliseconds of the member's loop, and anybody may ask for a probe.
        self._health = Shared(self._look_at_health)
        self._exposition = Shared(self._expose)

    def application(self, address: ListenAddress, token: str | None) -> Access:
        """The routes, behind the rules for who may ask."""
        routes = [
            Route("/livez", self._live),
            Route("/readyz", self._ready),
            Route("/startedz", self._started),
            Route("/metrics", self._metrics),
            Route("/v1/status", self._status),
            Route("/v1/handled", self._handled),
            Route("/v1/moves", self._moves),
            Route("/v1/keys/{key:path}", self._key),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: refuse, UserError: refuse_value})
        # No redirects: a key may end in a slash, and without that it would be another key.
        app.router.redirect_slashes = False
        return Access(app, address, token)

    # -- probes

    async def _live(self, request: Request) -> Response:
        blocked_ms = await self._member_loop.blocked_ms()
        return _probed(request, "live", not blocked_ms, {"blocked_ms": blocked_ms})

    async def _ready(self, request: Request) -> Response:
        health = await self._health.answer()
        if not isinstance(health, _Health):
            return _probed(request, "ready", False, health)
        return _probed(request, "ready", not health.reasons, {"reasons": health.reasons})

    async def _started(self, request: Request) -> Response:
        health = await self._health.answer()
        if not isinstance(health, _Health):
            return _probed(request, "started", False, health)
        return _probed(request, "started", health.has_started, {})

    async def _look_at_health(self) -> _Health | dict[str, object]:
        picture = await self._look(lambda source: source.picture())
        if isinstance(picture, Blocked | _NotBegun):
            return _why_unanswered(picture)
        return _Health(has_started(picture), [lack_as_object(lack) for lack in lacks(picture)])

    # -- facts

    async def _status(self, _: Request) -> Response:
        return await self._tell(lambda source: source.picture(), member_as_object)

    async def _metrics(self, _: Request) -> Response:
        return Response(await self._exposition.answer(), headers=NOT_KEPT, media_type=CONTENT_TYPE)

    async def _expose(self) -> bytes:
        reading = await self._look(lambda source: source.reading())
        if isinstance(reading, Blocked):
            return exposition(ScrapedMember(max(1, reading.blocked_ms), None))
        return exposition(ScrapedMember(0, None if isinstance(reading, _NotBegun) else reading))

    async def _handled(self, _: Request) -> Response:
        return await self._tell(lambda source: source.handled(), handled_as_object)

    async def _moves(self, request: Request) -> Response:
        limit = number_of("limit", request.query_params.get("limit", str(DEFAULT_CHANGES)), MAX_CHANGES)
        return await self._tell(
            lambda source: (source.picture(), source.changes(limit)),
            lambda found: changes_as_object(found[0].member, found[0].incarnation, found[1]),
        )

    async def _key(self, request: Request) -> Response:
        key = _key_of(request.scope["raw_path"])
        return await self._tell(lambda source: source.key(key), key_as_object)

    async def _tell(
        self, question: Callable[[StatusSource], _Answer], as_object: Callable[[_Answer], dict[str, object]]
    ) -> Response:
        """The member's answer, or why there is none; questions beyond `MAX_QUESTIONS` are refused."""
        if self._questions >= MAX_QUESTIONS:
            return as_json({"error": "too many questions at once; try again"}, 503)
        self._questions += 1
        try:
            answer = await self._look(question)
        finally:
            self._questions -= 1
        if isinstance(answer, Blocked | _NotBegun):
            return as_json(_why_unanswered(answer), 503)
        return as_json(as_object(answer))

    async def _look(self, question: Callable[[StatusSource], _Answer]) -> _Answer | Blocked | _NotBegun:
        def asked() -> _Answer | _NotBegun:
            source = self._source()
            return _NotBegun(self._waits_for()) if source is None else question(source)

        return await self._member_loop.ask(asked)


def _why_unanswered(found: Blocked | _NotBegun) -> dict[str, object]:
    if isinstance(found, Blocked):
        return {"error": "the member's event loop does not answer", "blocked_ms": found.blocked_ms}
    why = f": {found.waits_for}" if found.waits_for else ""
    return {"error": f"the member has not begun yet{why}"}


def _probed(request: Request, name: str, passes: bool, facts: dict[str, object]) -> Response:
    told = facts if request.state.is_trusted else {}
    return as_json({name: passes, **told}, 200 if passes else 503)


def _key_of(raw_path: bytes) -> str:
    if not raw_path.startswith(_KEYS_PATH):
        raise HTTPException(404)
    return text_of("key", raw_path.removeprefix(_KEYS_PATH))


async def refuse(_: Request, error: Exception) -> Response:
    """The answer to a request for something that does not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return as_json({"error": "there is no such route" if status == 404 else "not answered"}, status)


async def refuse_value(_: Request, error: Exception) -> Response:
    """The answer to a request with a value that makes no sense."""
    facts = vars(error) if isinstance(error, UserError) else {}
    return as_json({"error": str(error), **facts}, 400)
