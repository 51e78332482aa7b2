"""`open_publisher`: how a program in Python publishes to a group, with the settings that its members have."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from lbg_runtime.admin.stored import load_group_settings, stopped_by_changes
from lbg_runtime.config.settings import Settings
from lbg_runtime.metrics.tracing import open_spans
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.identity import new_publisher_id
from lbg_runtime.publisher.opening import publisher_of
from lbg_runtime.runtime.provisioning import provision_new_group
from lbg_runtime.runtime.session import Session, open_session


def open_publisher(
    settings: Settings | Path | str = "config.yaml", *, ledger: Path | str | None = None
) -> AbstractAsyncContextManager[HashedPublisher]:
    """A publisher with a connection of its own, while the context lasts.

        async with open_publisher("config.yaml") as publisher:
            await publisher.publish("orders/created", b"two apples", key="customer-7")

    `settings` are those of the group, or their file. Without `key=`, the key of a message is found by `group.key`.
    `ledger` is a folder for the record of what the broker confirmed, which `lbg validate` reads. With `group.provision:
    create_missing`, the group's queues are there before the first message. At the end of the context, confirms that are
    under way are waited for, as `HashedPublisher.close` says; if some do not come, it ends with a `PublishFailed`.

    If the settings are stored on the broker (`group.from: semp`) and the way in which the group hashes keys is changed
    there, the publisher is closed: to go on would send keys elsewhere than publishers that have started since. The
    context then ends with a `UserError` that names the setting, or with the error that ended the watching.

    Raises `ConfigError` or `UserError`: here for the settings, on entry if the broker cannot be reached, refuses to
    make a queue, or the ledger cannot be written. An outage while queues are made is waited for; a bound is up to the
    caller.
    """
    found = settings if isinstance(settings, Settings) else load_group_settings(Path(settings))
    return _opened(found, None if ledger is None else Path(ledger))


@asynccontextmanager
async def open_publishing_session(settings: Settings, publisher_id: str) -> AsyncIterator[Session]:
    """Connect for one publisher of the group, whose queues are there by then if members may make them.

    Raises `ConfigError` if the broker cannot be reached, or refuses to make a queue. Waits for it as
    `provision_new_group` does.
    """
    path, carries_traces = settings.transport.client_path, settings.carries_traces
    async with open_session(settings.beside_connection, publisher_id, path, carries_traces=carries_traces) as session:
        # The broker confirms even what no queue attracts, and nobody gets that.
        await provision_new_group(session, settings.group)
        yield session


@asynccontextmanager
async def _opened(settings: Settings, ledger: Path | None) -> AsyncIterator[HashedPublisher]:
    group, publisher_id = settings.group, new_publisher_id()
    spans = open_spans(settings, publisher_id)
    async with (
        open_publishing_session(settings, publisher_id) as session,
        publisher_of(group, session, ledger, publisher_id=publisher_id, key_source=group.key, spans=spans) as publisher,
        stopped_by_changes(settings, publisher.refuse_more),
    ):
        yield publisher
