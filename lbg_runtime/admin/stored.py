"""Starting from the settings of a group that are stored on the broker, and noticing when they change."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from lbg_runtime.admin.group_cache import CacheUnfit, GroupCache
from lbg_runtime.admin.spec import MARKER_PREFIX, StoredGroup, read_marker, with_queue_count
from lbg_runtime.config.load import load_settings
from lbg_runtime.config.settings import STORED_IN_SEMP, GroupSettings, GroupSource, Settings, shared_settings
from lbg_runtime.core.chance import RandomSource
from lbg_runtime.model.errors import ConfigError, PublisherClosed, SempError, SempUnreachable, UserError

if TYPE_CHECKING:
    from lbg_runtime.semp.client import SempClient

LOOK_S = 30.0
"""Between two looks at the stored settings, give or take half of it."""

_FAILURES_TO_WARN_OF = 2
"""In a row; once. A single failed look is common, and if all fail, the log need not fill with warnings."""

_log = structlog.get_logger(__name__)


def load_group_settings(path: Path) -> Settings:
    """`load_settings`, with the broker asked if the file says so. Blocks; raises `ConfigError`."""
    return load_settings(path, ask=ask_broker)


def ask_broker(settings: Settings) -> Mapping[str, object]:
    """An `AskBroker`. What is read is kept in `group.cache`, which answers if the broker does not.

    Never answers with the settings of another group, or of one in another VPN, that has the same file.
    """
    name, path = settings.group.name, settings.group.cache
    cache = None if path is None else GroupCache(Path(path), name, settings.connection.vpn)
    try:
        # In a thread, as whoever loads settings may have an event loop already.
        with ThreadPoolExecutor(1) as thread:
            text = thread.submit(asyncio.run, _read_text(settings)).result()
    except SempUnreachable as error:
        found = f"no SEMP answer from {error.url}: {error.reason}"
        if cache is None:
            expected = f"{error.expected or 'a broker that answers'}, or a group.cache of an earlier start"
            raise ConfigError("semp.url", found, expected) from None
        try:
            stored = cache.read()
        except CacheUnfit as unfit:
            expected = f"a broker that answers, or what an earlier start of group {name} has kept"
            raise ConfigError("group.cache", f"{cache.path} {unfit}, and {found}", expected) from None
        _log.warning("group_settings_from_cache", path=str(cache.path), reason=error.reason)
    except SempError as error:
        raise ConfigError("semp", str(error), "an account that may read the VPN") from None
    else:
        if text is None:
            expected = "one that `lbg group create` made"
            raise ConfigError("group.name", f"no group {name} is stored on the broker", expected)
        read = read_marker(name, text)
        if read is None:
            raise ConfigError("group.name", "what is stored of it cannot be read", "settings of this version of lbg")
        stored = read
        if cache is not None:
            # Only settings that can be read: they replace those that an earlier start could read.
            cache.write(text)
    told = stored.as_object()
    return {name: told[name] for name in STORED_IN_SEMP}


async def stored_queue_count(client: "SempClient", settings: Settings) -> int | None:
    """How many queues the group has by the stored settings; None if none of this version are. Raises `SempError`."""
    from lbg_runtime.admin.state import read_group

    stored = await read_group(client, settings.connection.vpn, settings.group.name)
    return None if stored is None else stored.shape.queue_count


async def store_queue_count(client: "SempClient", settings: Settings, queue_count: int) -> None:
    """Write into the stored settings how many queues the group has now; does nothing if none of this version are.

    Otherwise members that start from them would leave the new queues alone. Raises `SempError`.
    """
    from lbg_runtime.admin.state import read_stored

    vpn, name = settings.connection.vpn, settings.group.name
    text = await read_stored(client, vpn, name)
    if text is None or (stored := read_marker(name, text)) is None or stored.shape.queue_count == queue_count:
        return
    path = ("msgVpns", vpn, "jndiQueues", MARKER_PREFIX + name)
    await client.update(path, {"physicalName": with_queue_count(text, queue_count)})


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting of the group that is different on the broker from here.

    It decides which shard a message goes to: nobody may change to the other value while running.
    """

    setting: str
    ours: str
    theirs: str

    def as_error(self) -> UserError:
        """For a publisher, which must not go on with the old value."""
        found = f"{self.ours}, but the group on the broker now has {self.theirs}"
        return UserError(self.setting, found, "a restart, at which every publisher has the new value")


def differences(group: GroupSettings, stored: StoredGroup | None) -> tuple[Difference, ...]:
    """Where the settings stored now that are shared differ from those started with."""
    if stored is None:
        return (Difference("group.name", group.name, "no such group, or one that cannot be read"),)
    theirs = shared_settings(stored.shape, stored.hash_function, stored.key)
    return tuple(
        Difference(name, value, theirs[name]) for name, value in group.shared().items() if value != theirs[name]
    )


class StoredGroupWatch:
    """Looks at the stored settings now and then; changes nothing. Run once, on one event loop, by `watching`."""

    def __init__(
        self,
        group: GroupSettings,
        read: Callable[[], Awaitable[StoredGroup | None]],
        chance: RandomSource,
        on_changed: Callable[[tuple[Difference, ...]], None] = lambda _: None,
    ) -> None:
        """`on_changed` is called with the differences, when they are not what they were before."""
        self.found: tuple[Difference, ...] = ()
        """What differed at the last look that was answered."""
        self._group = group
        self._read = read
        self._chance = chance
        self._on_changed = on_changed

    async def run(self) -> None:
        """Look until cancelled. A failed look ends nothing, whether the broker, a file or the account is the cause."""
        failures = 0
        while True:
            # Not all members at once.
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * LOOK_S)
            try:
                found = differences(self._group, await self._read())
            # Each look opens the administrator's session again, and reads semp.tls.trust_store for it.
            except (SempError, ConfigError) as error:
                # What was found before still holds, as far as anybody knows.
                failures += 1
                say = _log.warning if failures == _FAILURES_TO_WARN_OF else _log.info
                say("group_settings_not_read", reason=str(error), looks=failures)
                continue
            failures = 0
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
    """The watch that the settings ask for; None if they do not come from the broker."""
    if settings.group.source is not GroupSource.SEMP:
        return None

    async def read() -> StoredGroup | None:
        text = await _read_text(settings)
        return None if text is None else read_marker(settings.group.name, text)

    return StoredGroupWatch(settings.group, read, chance, on_changed)


@asynccontextmanager
async def watching(watch: StoredGroupWatch, on_failed: Callable[[Exception], None]) -> AsyncIterator[None]:
    """Have it look while the context lasts; `on_failed` is called with an unforeseen error, which ends its looks."""

    async def look() -> None:
        try:
            await watch.run()
        except Exception as error:  # noqa: BLE001 - what it means is for whoever relies on the looks to say
            on_failed(error)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait([looking])


@asynccontextmanager
async def stopped_by_changes(settings: Settings, stop: Callable[[], object]) -> AsyncIterator[None]:
    """For publishers: call `stop` when a setting that decides where keys go is changed on the broker.

    With the old value, keys would go elsewhere than those of publishers that have started since. An error that ends the
    watching stops the publishing as well. In both cases the context ends with an error that says so, also in place of
    a `PublisherClosed`. Does nothing if the settings do not come from the broker.
    """
    causes: list[Exception] = []

    def stop_for(cause: Exception) -> None:
        causes.append(cause)
        stop()

    def on_changed(found: tuple[Difference, ...]) -> None:
        for each in found:
            stop_for(each.as_error())

    watch = watch_of(settings, random.Random(), on_changed)
    refused: Exception | None = None
    async with nullcontext() if watch is None else watching(watch, stop_for):
        try:
            yield
        except (PublisherClosed, ExceptionGroup) as error:
            # Tasks of a group that all publish end as a group.
            others = error.split(PublisherClosed)[1] if isinstance(error, ExceptionGroup) else None
            if not causes or others is not None:
                raise
            refused = error
    if causes:
        raise causes[0] from refused


async def _read_text(settings: Settings) -> str | None:
    # Imported here, because most members have their settings in a file, and no use for an HTTP client.
    from lbg_runtime.admin.account import open_semp
    from lbg_runtime.admin.state import read_stored

    async with open_semp(settings) as client:
        return await read_stored(client, settings.connection.vpn, settings.group.name)
