"""Requests to the SEMPv2 API of one broker."""

import asyncio
import os
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx
import orjson

from lbg_runtime.model.errors import SempExists, SempMissing, SempRefused, SempUnreachable
from lbg_runtime.model.semp_code import SempCode
from lbg_runtime.semp.address import Segment, SempApi, path_of
from lbg_runtime.semp.answer import Json, SempAnswer, SempObject, read_answer

PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Between the attempts of a request that a broker is not ready for: a standby, or one that is starting."""

PAGE_SIZE = 100
"""The most that a broker gives of these collections at once."""

REQUEST_TIMEOUT_S = 10.0
"""For each phase of an attempt; behind a fence, for all attempts of a request together."""

_CERTIFICATE = "one that is in date, names this host, and comes from an authority in semp.tls.trust_store"

_API = "the broker's management API at semp.url, by https:// if it speaks TLS and by http:// if it does not"

_NOT_READY = 503
_UNAUTHORIZED = 401

_KINDS: Mapping[int, type[SempRefused]] = {SempCode.NOT_FOUND: SempMissing, SempCode.ALREADY_EXISTS: SempExists}


@dataclass(frozen=True, slots=True)
class SempAccount:
    """An administrator's address and name; the password is not shown."""

    url: str
    """Scheme, host and port: `https://broker:943`."""
    username: str
    password: str
    token: str | None = None
    """If it is set, the name and password are not sent."""

    def __repr__(self) -> str:
        return f"SempAccount({self.url!r}, {self.username!r})"

    def authorization(self) -> str:
        """The value of the header that identifies the administrator."""
        if self.token is not None:
            return f"Bearer {self.token}"
        return "Basic " + b64encode(f"{self.username}:{self.password}".encode()).decode()


class SempClient:
    """An async context manager; its calls may run at the same time.

    Every call raises `SempRefused` if the broker refuses and `SempUnreachable` if there is no answer. A broker that is
    not ready (503) is asked again for 8 s. A request whose answer was lost may have been carried out. Proxies from the
    environment are not used, and no redirection is followed: credentials go to the address given and nowhere else.
    """

    def __init__(
        self,
        account: SempAccount,
        *,
        newest: Callable[[], SempAccount] | None = None,
        tls: ssl.SSLContext | bool = True,
        distrusted: Callable[[], None] = lambda: None,
        transport: httpx.AsyncBaseTransport | None = None,
        within_s: float | None = None,
    ) -> None:
        """`newest` tells what to show instead of the password or token of `account`, before each attempt: they may be
        replaced while this client lives.

        `within_s`: a request is given up so long after it began, with all its attempts; None: no such bound.

        `tls` True checks the broker's certificate against the usual public authorities, False does not check it.
        `distrusted` is called when the certificate was refused, as `tls` may have to learn of another authority.

        `transport` takes the place of the network, in tests. Raises `SempUnreachable` if the list of authorities cannot
        be read.
        """
        self.url = account.url.rstrip("/")
        self._account = newest or (lambda: account)
        self._shown = "semp.username or semp.password" if account.token is None else "semp.token"
        self._insist: Callable[[], Awaitable[None]] | None = None
        self._within_s = within_s
        self._distrusted = distrusted
        try:
            self._http = httpx.AsyncClient(
                verify=tls,
                transport=transport,
                timeout=REQUEST_TIMEOUT_S,
                trust_env=False,
                follow_redirects=False,
                headers={"accept": "application/json"},
            )
        except OSError as error:
            # The constructor reads the files of authorities, and there may be no file descriptor left.
            raise SempUnreachable(self.url, *_reason_of(error)) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A cancellation must end only this wait: the library would leave open what it has not closed yet.
        await asyncio.shield(asyncio.ensure_future(self._http.aclose()))

    def fence(self, insist: Callable[[], Awaitable[None]]) -> None:
        """From now on await `insist` before every attempt of every request; if it raises, nothing is sent.

        No attempt is sent later than `REQUEST_TIMEOUT_S` after an `insist` that allowed it: by then the request is
        given up, with `SempUnreachable`. For callers that another process may replace in mid-request.
        """
        self._insist, self._within_s = insist, REQUEST_TIMEOUT_S

    async def get(self, api: SempApi, path: Sequence[Segment], *, select: Sequence[str] = ()) -> SempObject:
        """One object, with the selected attributes or all."""
        return self._only(await self._request("GET", api, path, query=_query(select=select)))

    async def find(self, api: SempApi, path: Sequence[Segment], *, select: Sequence[str] = ()) -> SempObject | None:
        """One object as from `get`; None if it does not exist."""
        try:
            return await self.get(api, path, select=select)
        except SempMissing:
            return None

    async def find_all(
        self, api: SempApi, path: Sequence[Segment], *, select: Sequence[str] = (), where: Sequence[str] = ()
    ) -> tuple[SempObject, ...]:
        """All objects of a collection that meet every condition, page by page.

        Objects that change meanwhile may be missing, or come twice.
        """
        found: list[SempObject] = []
        query = _query(select=select, where=where, count=(str(PAGE_SIZE),))
        seen: set[str] = set()
        while True:
            # Only the query of the next page's address is used: credentials go to no other host.
            answer = await self._request("GET", api, path, query=query)
            found += answer.objects
            if answer.next_query is None:
                return tuple(found)
            query = answer.next_query
            if query in seen:
                raise SempUnreachable(self.url, "the pages of a collection have no end")
            seen.add(query)

    async def create(self, path: Sequence[Segment], attributes: Mapping[str, Json]) -> SempObject:
        """Create an object in a collection; attributes that are not given have their defaults."""
        return self._only(await self._request("POST", SempApi.CONFIG, path, body=attributes))

    async def update(self, path: Sequence[Segment], attributes: Mapping[str, Json]) -> SempObject:
        """Change what is given and nothing else."""
        return self._only(await self._request("PATCH", SempApi.CONFIG, path, body=attributes))

    async def delete(self, path: Sequence[Segment]) -> None:
        """Delete an object and everything below it; succeeds if it does not exist."""
        with suppress(SempMissing):
            await self._request("DELETE", SempApi.CONFIG, path)

    async def act(self, path: Sequence[Segment]) -> None:
        """Have something done, once: the last part of the path says what."""
        await self._request("PUT", SempApi.ACTION, path, body={})

    # -- parts

    async def _request(
        self,
        method: str,
        api: SempApi,
        path: Sequence[Segment],
        *,
        query: str = "",
        body: Mapping[str, Json] | None = None,
    ) -> SempAnswer:
        where = path_of(api, path)
        request = f"{method} {where}"
        url = f"{self.url}{where}?{query}" if query else self.url + where
        content = None if body is None else orjson.dumps(body)
        headers = {} if body is None else {"content-type": "application/json"}
        hidden = body is not None and bool(body.get("password"))
        try:
            async with asyncio.timeout(self._within_s):
                for attempt, pause_s in enumerate((*PAUSES_S, None), 1):
                    if self._insist is not None:
                        await self._insist()
                    headers["authorization"] = self._account().authorization()
                    try:
                        response = await self._http.request(method, url, content=content, headers=headers)
                    # httpx also reads the address of a redirection that it does not follow, and lets other errors
                    # through.
                    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
                        reason, expected = _reason_of(error)
                        if expected is _CERTIFICATE:
                            self._distrusted()
                        raise SempUnreachable(self.url, reason, expected) from None
                    if response.status_code != _NOT_READY or pause_s is None:
                        return self._read(request, response, hidden=hidden, is_repeated=attempt > 1)
                    await asyncio.sleep(pause_s)
        except TimeoutError:
            raise SempUnreachable(self.url, f"no answer within {self._within_s:g} s") from None
        raise AssertionError("the last attempt has no pause behind it")

    def _read(self, request: str, response: httpx.Response, *, hidden: bool, is_repeated: bool) -> SempAnswer:
        answer = read_answer(self.url, response.content)
        status = response.status_code
        if answer is not None and answer.failure is not None:
            failure = answer.failure
            # A broker may quote what it was sent, in any notation, so the password could not be found and masked.
            description = "not shown, as the request had a password" if hidden else failure.description
            kind = _KINDS.get(failure.code, SempRefused)
            raise kind(request, status, failure.code, failure.status, description, is_repeated=is_repeated)
        if status == _UNAUTHORIZED:
            raise SempRefused(request, status, 0, "HTTP 401", f"{self._shown} refused")
        if answer is None or not response.is_success:
            raise SempUnreachable(self.url, f"HTTP {status} without an answer of SEMP to {request}")
        return answer

    def _only(self, answer: SempAnswer) -> SempObject:
        if len(answer.objects) != 1:
            raise SempUnreachable(self.url, f"{len(answer.objects)} objects in an answer that should have one")
        return answer.objects[0]


def _query(**parameters: Sequence[str]) -> str:
    # Commas between two conditions as they are, those of values encoded: what a broker may tell them apart by.
    return "&".join(
        f"{name}={','.join(quote(item, safe='') for item in items)}" for name, items in parameters.items() if items
    )


def _reason_of(error: Exception) -> tuple[str, str | None]:
    """Why there was no answer, and what was expected if that is known."""
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {REQUEST_TIMEOUT_S:g} s", None
    reason = str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is refused: {cause.verify_message.rstrip('.')}", _CERTIFICATE
        if isinstance(cause, ssl.SSLError):
            reason = f"no TLS connection: {cause.reason or cause}"
        elif isinstance(cause, OSError) and cause.errno:
            # The HTTP client says no more than that all attempts failed.
            reason = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror or reason
        # Several are those of the addresses of one name.
        cause = cause.exceptions[-1] if isinstance(cause, ExceptionGroup) else cause.__cause__ or cause.__context__
    expected = _API if isinstance(error, httpx.ConnectError | httpx.RemoteProtocolError) else None
    return " ".join(reason.split()).rstrip(".") or type(error).__name__, expected
