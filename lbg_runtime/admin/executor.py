"""Carries out the steps of a plan, one by one."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from lbg_runtime.admin.objects import KEY_NAMES, SYNTAX, TOPIC_RULES
from lbg_runtime.admin.plan import Change, Create, Delete, Step
from lbg_runtime.model.errors import SempMissing, SempRefused
from lbg_runtime.model.semp_code import SempCode
from lbg_runtime.semp.client import SempClient

PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Between the attempts of a step that something else on the broker still blocks."""

OnStep = Callable[[Step], None]
"""Called with every step before it is carried out."""

_STILL_USED = frozenset({SempCode.NOT_ALLOWED, SempCode.CONFIGDB_OBJECT_DEPENDENCY})


class Executor:
    """Works on one VPN. A step that is done is in force; raises `SempError` for one that cannot be done.

    Deleting what is already gone succeeds. A deletion that is refused because something still uses the object is tried
    again for 6 s: a broker lets go of clients and flows a moment after it has said so.
    """

    def __init__(self, client: SempClient, vpn: str) -> None:
        self._client = client
        self._vpn = vpn

    async def do(self, step: Step) -> None:
        for pause_s in PAUSES_S:
            try:
                return await self._try(step)
            except SempRefused as refused:
                if refused.code not in _STILL_USED:
                    raise
            await asyncio.sleep(pause_s)
        return await self._try(step)

    async def do_unless_gone(self, step: Step) -> None:
        """The same for a step whose object may be gone by now: then there is nothing to do."""
        with suppress(SempMissing):
            await self.do(step)

    async def take_back(self, steps: Iterable[Step]) -> None:
        """Undo what these steps have changed, in the objects that still exist."""
        for step in steps:
            if isinstance(step, Change):
                await self.do_unless_gone(Change(step.ref, step.before, step.attributes))

    async def _try(self, step: Step) -> None:
        match step:
            case Create(ref, attributes):
                key = KEY_NAMES[ref.kind]
                names = {key: ref.name, f"{key}Syntax": SYNTAX} if ref.kind in TOPIC_RULES else {key: ref.name}
                await self._client.create(ref.collection(self._vpn), {**names, **attributes})
            case Change(ref, attributes):
                await self._client.update(ref.path(self._vpn), attributes)
            case Delete(ref):
                await self._client.delete(ref.path(self._vpn))
