"""Starting from the settings of a group that are stored on the broker, and noticing when they become others."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from lbg_runtime.admin.spec import MARKER_PREFIX, StoredGroup, read_marker, with_queue_count
from lbg_runtime.config.load import load_settings
from lbg_runtime.config.settings import GroupSettings, GroupSource, Settings
from lbg_runtime.core.chance import RandomSource
from lbg_runtime.model.errors import ConfigError, SempError, SempUnreachable

LOOK_S = 30.0
"""Between two looks at the stored settings, half of it more or less."""

_log = structlog.get_logger(__name__)


def load_group_settings(path: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """`load_settings`, with the broker asked where the file says so. Blocks; raises `ConfigError`."""
    return load_settings(path, environ, ask_broker)


def ask_broker(settings: Settings) -> Mapping[str, object]:
    """An `AskBroker`. What is read is kept in `group.cache`, which answers where the broker does not."""
    name, cache = settings.group.name, settings.group.cache
    path = None if cache is None else Path(cache)
    try:
        # In a thread, as whoever loads settings may have an event loop already.
        with ThreadPoolExecutor(1) as thread:
            text = thread.submit(asyncio.run, _read_text(settings)).result()
    except SempUnreachable as error:
        text = None if path is None else _read_cache(path)
        if path is None or text is None:
            expected = "a broker that answers, or a group.cache of an earlier start"
            raise ConfigError("semp.url", str(error), expected) from None
        _log.warning("group_settings_from_cache", path=str(path), reason=error.reason)
    except SempError as error:
        raise ConfigError("semp", str(error), "an account that may read the VPN") from None
    else:
        if path is not None and text is not None:
            _write_cache(path, text)
    if text is None:
        raise ConfigError("group.name", f"no group {name} is stored on the broker", "one that `lbg group create` made")
    stored = read_marker(MARKER_PREFIX + name, text)
    if stored is None:
        where = "group.name" if path is None else "group.name, group.cache"
        raise ConfigError(where, "what is stored of it cannot be read", "settings of this version of lbg")
    return {
        "hash_prefix": stored.shape.hash_prefix,
        "hash_count": stored.shape.hash_count,
        "queue_count": stored.shape.queue_count,
        "hash_function": stored.hash_function.value,
        "key": stored.key,
    }


async def store_queue_count(settings: Settings, queue_count: int) -> None:
    """Write into the stored settings how many queues the group has now; nothing where none of this version are stored.

    Else members that start from them would leave the queues alone that are new. Raises `SempError`.
    """
    from lbg_runtime.admin.account import open_semp

    name = MARKER_PREFIX + settings.group.name
    text = await _read_text(settings)
    if text is None or (stored := read_marker(name, text)) is None or stored.shape.queue_count == queue_count:
        return
    async with open_semp(settings) as client:
        path = ("msgVpns", settings.connection.vpn, "jndiQueues", name)
        await client.update(path, {"physicalName": with_queue_count(text, queue_count)})


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting of the group that is another on the broker than here."""

    setting: str
    ours: str
    theirs: str
    is_for_good: bool
    """Whether it decides in which shard a message goes: then nobody may go over to the other value at work."""


def differences(group: GroupSettings, stored: StoredGroup | None) -> tuple[Difference, ...]:
    """Where what is stored now is not what was started with."""
    if stored is None:
        return (Difference("group.name", group.name, "no such group, or one that cannot be read", is_for_good=True),)
    shape = stored.shape
    pairs = (
        ("group.hash_prefix", group.hash_prefix, shape.hash_prefix, True),
        ("group.hash_count", group.hash_count, shape.hash_count, True),
        ("group.hash_function", group.hash_function.value, stored.hash_function.value, True),
        ("group.key", str(group.key), stored.key, True),
        # Members hear of a re-striping from the queues themselves, in its place.
        ("group.queue_count", group.queue_count, shape.queue_count, False),
    )
    return tuple(Difference(name, str(ours), str(theirs), good) for name, ours, theirs, good in pairs if ours != theirs)


class StoredGroupWatch:
    """Looks at the stored settings now and then; changes nothing. `run` once, on one event loop."""

    def __init__(
        self,
        group: GroupSettings,
        read: Callable[[], Awaitable[StoredGroup | None]],
        chance: RandomSource,
        on_changed: Callable[[tuple[Difference, ...]], None] = lambda _: None,
    ) -> None:
        """`on_changed` is called with what differs, when that is not what it was before."""
        self.found: tuple[Difference, ...] = ()
        """What differed at the last look that was answered."""
        self._group = group
        self._read = read
        self._chance = chance
        self._on_changed = on_changed

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            # Not all members at once.
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * LOOK_S)
            try:
                found = differences(self._group, await self._read())
            except SempError as error:
                # What was found before still holds, as far as anybody knows.
                _log.info("group_settings_not_read", reason=str(error))
                continue
            if found != self.found:
                self.found = found
                self._tell()
                self._on_changed(found)

    def _tell(self) -> None:
        for each in self.found:
            _log.error("group_settings_changed", setting=each.setting, ours=each.ours, theirs=each.theirs)
        if not self.found:
            _log.info("group_settings_as_before", group=self._group.name)


def watch_of(
    settings: Settings, chance: RandomSource, on_changed: Callable[[tuple[Difference, ...]], None] = lambda _: None
) -> StoredGroupWatch | None:
    """The watch that the settings ask for; None where they do not come from the broker."""
    if settings.group.source is not GroupSource.SEMP:
        return None

    async def read() -> StoredGroup | None:
        text = await _read_text(settings)
        return None if text is None else read_marker(MARKER_PREFIX + settings.group.name, text)

    return StoredGroupWatch(settings.group, read, chance, on_changed)


async def _read_text(settings: Settings) -> str | None:
    # Imported here, because most members have their settings in a file, and no use for an HTTP client.
    from lbg_runtime.admin.account import open_semp
    from lbg_runtime.admin.state import read_stored

    async with open_semp(settings) as client:
        return await read_stored(client, settings.connection.vpn, settings.group.name)


def _read_cache(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _write_cache(path: Path, text: str) -> None:
    """Whole or not at all; where it cannot be written the start goes on."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    except OSError as error:
        _log.warning("group_cache_not_written", path=str(path), reason=error.strerror)
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError as error:
        _log.warning("group_cache_not_written", path=str(path), reason=error.strerror)
        with suppress(OSError):
            Path(name).unlink()
