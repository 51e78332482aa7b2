"""`about`: which API this is, and what the requester may do."""

from collections.abc import Mapping
from functools import partial

from lbg_runtime.broker.engine.administration import Administration
from lbg_runtime.broker.semp import reply
from lbg_runtime.broker.semp.access import AccessLevel, Administrator
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.query import Item, Query
from lbg_runtime.broker.semp.reply import Request
from lbg_runtime.broker.semp.schema import Row
from lbg_runtime.broker.semp.target import decode, encode_key
from lbg_runtime.model.semp_code import SempCode

SEMP_VERSION = "10.26"
"""The version of the names, limits and defaults in `objects.py`."""

PLATFORM = "lbg"

_BELOW: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("about",): ("api", "user"),
    ("about", "api"): (),
    ("about", "user"): ("msgVpns",),
}


class About:
    """Answers `about` in each of the three APIs."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    def handle(self, request: Request, administrator: Administrator) -> Row:
        """Answer a request below `about`; raises `SempFault`."""
        if request.method != "GET":
            raise SempFault(SempCode.NOT_SUPPORTED, f"{request.method} is not for about")
        query = Query.parse(request.query)
        if request.segments[:3] == ("about", "user", "msgVpns"):
            return self._vpns(request, administrator, query)
        if request.segments not in _BELOW:
            raise SempFault(SempCode.PARSE_ERROR, f"there is nothing at {'/'.join(request.segments)}")
        row: Row = {}
        if request.segments[1:] == ("api",):
            row = {"platform": PLATFORM, "sempVersion": SEMP_VERSION}
        elif request.segments[1:] == ("user",):
            level = administrator.level.value
            row = {"username": administrator.username, "globalAccessLevel": level, "sessionActive": False}
        return reply.one(request, Item(request.segments, row, _BELOW[request.segments]), query)

    def _vpns(self, request: Request, administrator: Administrator, query: Query) -> Row:
        levels = {vpn: administrator.level_in(vpn) for vpn in self._administration.vpn_names()}
        items = {
            vpn: Item(("about", "user", "msgVpns", encode_key((vpn,))), {"msgVpnName": vpn, "accessLevel": level.value})
            for vpn, level in levels.items()
            if level is not AccessLevel.NONE
        }
        if len(request.segments) == 3:
            listed = ((each.path, partial(items.__getitem__, vpn)) for vpn, each in items.items())
            return reply.many(request, query.page_of(listed), query)
        name = decode(request.segments[3])
        if name not in items or len(request.segments) > 4:
            raise SempFault(SempCode.NOT_FOUND, f"message VPN {name} does not exist for {administrator.username}")
        return reply.one(request, items[name], query)
