"""Who looks at a group uses the official client as the settings of the group say, as its members do."""

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from lbg_runtime.cli.group.commands import _try_login
from lbg_runtime.cli.validate import _follow
from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import ClientPathChoice, Settings
from lbg_runtime.runtime import session
from lbg_runtime.runtime.observer import observing
from lbg_runtime.runtime.parking.view import viewing_parked
from lbg_runtime.validator.live import LiveValidator

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 4, "queue_count": 2}


class Opened(Exception):
    """A session was to be opened, which this test does not."""


async def _entered(looking: AbstractAsyncContextManager[Any]) -> None:
    async with looking:
        pass


LOOKS: dict[str, tuple[str, Callable[[Settings], Any]]] = {
    "status, why, dashboard": ("lbg_runtime.runtime.observer", lambda settings: _entered(observing(settings))),
    "parked": ("lbg_runtime.runtime.parking.view", lambda settings: _entered(viewing_parked(settings))),
    "the members' login": ("lbg_runtime.runtime.session", _try_login),
    "validate --live": (
        "lbg_runtime.runtime.session",
        lambda settings: _follow(LiveValidator(), settings, "notes", None, findings_to_stderr=False),
    ),
}


@pytest.mark.parametrize("look", LOOKS)
async def test_who_looks_at_a_group_takes_the_client_path_of_its_settings(
    monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    taken: list[object] = []
    form = inspect.signature(session.open_session)

    def open_session(*given: object, **named: object) -> AbstractAsyncContextManager[Any]:
        taken.append(form.bind(*given, **named).arguments.get("client_path"))
        raise Opened

    where, begin = LOOKS[look]
    monkeypatch.setattr(f"{where}.open_session", open_session)
    settings = parse_settings({"group": GROUP, "transport": {"client_path": "public"}}, "test", {})
    with pytest.raises(Opened):
        await begin(settings)
    assert taken == [ClientPathChoice.PUBLIC]
