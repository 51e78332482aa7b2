"""The settings of a test's group: the user's own, or small ones, on a broker in memory."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from lbg_runtime.config.load import load_settings, parse_settings
from lbg_runtime.config.settings import GroupBackend, MembershipMode, Provision, Settings
from lbg_runtime.core.roles import CountedPlace
from lbg_runtime.model.errors import HandlerError, UserError
from lbg_runtime.model.ids import MemberId
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.loading import load_handlers
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.membership import Membership, counted_member

Sections = Mapping[str, object]
"""Each of them is a mapping. To mypy, a dictionary of sections that differ in their types is one of objects."""

_SMALL: Mapping[str, Mapping[str, object]] = {
    "group": {"name": "test", "hash_prefix": "test-hash", "hash_count": 16, "queue_count": 4},
    "dispatch": {"runners": 16},
}


def find_handlers(given: Handlers | ModuleType | App) -> Handlers:
    """The handlers that `given` stands for; raises `HandlerError`."""
    if isinstance(given, App):
        return given.handlers
    if isinstance(given, ModuleType):
        return load_handlers([given.__name__])
    if not isinstance(given, Handlers):
        raise HandlerError("handlers", f"a {type(given).__name__}", "a Handlers, the module that has one, or an App")
    if not given:
        raise HandlerError("handlers", "none", "at least one function with @handlers.handler(...)")
    return given


def find_settings(given: Settings | Path | str | Sections | None, app: App | None) -> Settings:
    """The settings that `given` stands for, with queues that members create; raises `ConfigError`."""
    if given is None and app is not None:
        settings = app.settings
    elif given is None or isinstance(given, Mapping):
        told = given or {}
        own = {name: told.get(name, {}) for name in _SMALL}
        # What is no section is left to the parser, which says so.
        small = {name: {**_SMALL[name], **each} for name, each in own.items() if isinstance(each, Mapping)}
        settings = parse_settings({**told, **small}, "settings", {})
    elif isinstance(given, Settings):
        settings = given
    else:
        settings = load_settings(Path(given))
    if settings.group.backend is GroupBackend.PARTITIONED:
        return settings  # The kit creates its queue.
    group = settings.group.model_copy(update={"provision": Provision.CREATE_MISSING})
    return settings.model_copy(update={"group": group})


def find_memberships(settings: Settings, members: int | tuple[str, ...]) -> list[Membership]:
    """The members of the group; raises `UserError`."""
    mode = settings.membership.mode
    if mode is MembershipMode.DISCOVERED:
        names = members if isinstance(members, tuple) else [f"member-{index}" for index in range(members)]
        return [Membership(MemberId(name), None) for name in names]
    if not isinstance(members, int):
        raise UserError("members", f"names, and membership.mode is {mode.value}", "a number: such members are counted")
    return [Membership(counted_member(index), CountedPlace(index, members)) for index in range(members)]
