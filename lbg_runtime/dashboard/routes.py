"""The routes of the live page: its three files, the feed, the search for a key; and what an autoscaler asks for.

Nothing here changes anything.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.dashboard.watch import GroupWatch
from lbg_runtime.model.errors import ConfigError, SempError, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.runtime.clock import now_ms, wall_us
from lbg_runtime.status.access import NOT_KEPT, Access, as_json, text_of
from lbg_runtime.status.objects import found_as_object
from lbg_runtime.status.routes import refuse, refuse_value

PAGE = Path(__file__).parent / "page"
FILES = {"/": "dashboard.html", "/dashboard.css": "dashboard.css", "/dashboard.js": "dashboard.js"}
"""Everybody may have them, without a token: they are the same for every group, and tell nothing about this one."""

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    **NOT_KEPT,
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}

SIGN_OF_LIFE_S = 5.0
"""If there is no news, viewers are told so this often."""
MAX_FEEDS = 64
"""At the same time; a page has one."""
MAX_SEARCHES = 4
"""At the same time; members answer no more than a few a second."""


class DashboardRoutes:
    """Shows what a watch has found, on the watch's loop."""

    def __init__(self, watch: GroupWatch, shape: GroupShape, hash_function: HashFunction) -> None:
        self._watch = watch
        self._shape = shape
        self._hash_function = hash_function
        self._feeds = 0
        self._searches = 0

    def application(self, address: ListenAddress, token: str | None) -> Access:
        """The routes, behind the rules for who may ask."""
        files = [Route(path, _file(name)) for path, name in FILES.items()]
        routes = [
            *files,
            Route("/v1/feed", self._feed),
            Route("/v1/why", self._why),
            Route("/v1/autoscale", self._autoscale),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: refuse, UserError: refuse_value})
        app.router.redirect_slashes = False
        return Access(app, address, token, frozenset(FILES))

    async def _feed(self, _: Request) -> Response:
        if self._feeds >= MAX_FEEDS:
            return as_json({"error": "too many viewers at once; try again"}, 503)
        self._feeds += 1
        return _FeedResponse(self._updates(), self._end_feed)

    def _end_feed(self) -> None:
        self._feeds -= 1

    async def _updates(self) -> AsyncIterator[bytes]:
        with self._watch.viewing():
            seen = 0
            feed = self._watch.feed
            while not self._watch.has_ended:
                told = feed.since(seen, now_ms())
                seen = feed.version
                yield b"data: " + orjson.dumps(told, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"
                await self._watch.news(seen, SIGN_OF_LIFE_S)

    async def _why(self, request: Request) -> Response:
        text_of("key", request.scope["query_string"])
        keys = request.query_params.getlist("key")
        if len(keys) != 1:
            raise UserError("key", f"given {len(keys)} times", "once")
        (key,) = keys
        shard = shard_of(self._hash_function, key, self._shape.hash_count)
        if self._searches >= MAX_SEARCHES:
            return as_json({"error": "too many searches at once; try again"}, 503)
        self._searches += 1
        try:
            answers = await self._watch.why(key)
        finally:
            self._searches -= 1
        found = found_as_object(key, shard, answers, self._shape)
        disagree = sorted({answer.header.member for answer in answers if answer.shard != shard})
        return as_json({**found, "disagree": disagree}, headers=HEADERS)

    async def _autoscale(self, _: Request) -> Response:
        try:
            found = await self._watch.backlog.get()
        except (ConfigError, SempError) as error:
            # No number is better than a wrong one: the autoscaler then leaves the group as it is.
            return as_json({"error": str(error)}, 503)
        if not self._watch.hears_group:
            return as_json({"error": "how many members there are is not known: too little of the group was heard"}, 503)
        if (reason := self._watch.not_understood) is not None:
            return as_json({"error": f"how many members there are is not known: {reason}"}, 503)
        known: dict[str, object] = {"group": self._shape.name, "lag": found.backlog.messages}
        # Left out rather than null, which some take for 0.
        if not found.has_records:
            since_s = found.backlog.oldest_spooled_at_s
            known["oldest_age_s"] = 0 if since_s is None else max(0, wall_us() // 1_000_000 - since_s)
        return as_json({**known, "members": self._watch.member_count, "max_members": self._watch.queue_count})


class _FeedResponse(StreamingResponse):
    """Says when it has ended, in whatever way, even if nothing could be sent and its updates never began."""

    def __init__(self, updates: AsyncIterator[bytes], has_ended: Callable[[], None]) -> None:
        super().__init__(updates, headers=HEADERS, media_type="text/event-stream")
        self._has_ended = has_ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send updates for as long as somebody reads them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._has_ended()


def _file(name: str) -> Callable[[Request], Response]:
    # Read once: they are small, and a page that changes under its viewers would not fit its feed.
    content = (PAGE / name).read_bytes()
    kind = MEDIA_TYPES[name.rpartition(".")[2]]
    return lambda _: Response(content, headers=HEADERS, media_type=kind)
