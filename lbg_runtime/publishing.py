"""`open_publisher`, for Python programs that publish to a group: it uses the same settings as the group's members."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from lbg_runtime.admin.stored import load_group_settings, stopped_by_changes
from lbg_runtime.config.settings import Settings
from lbg_runtime.metrics.tracing import open_spans
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.publisher.opening import new_publisher_id, publisher_of
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
    create_missing`, the group's queues exist before the first message is sent. The end of the context waits for the
    confirms that are under way, as `HashedPublisher.close` does, and raises `PublishFailed` if some do not come.

    If the settings are stored on the broker (`group.from: semp`) and somebody changes there how the group hashes keys,
    the publisher is closed: it would send keys elsewhere than publishers that have started since. The context then ends
    with a `UserError` that names the setting, or with the error that ended the watching.

    Raises `ConfigError` or `UserError`: in this call for the settings; on entry if the broker cannot be reached or
    refuses to make a queue, or the ledger cannot be written. An outage while queues are made is waited for without a
    bound, unless the caller sets one.
    """
    found = settings if isinstance(settings, Settings) else load_group_settings(Path(settings))
    return _opened(found, None if ledger is None else Path(ledger))


@asynccontextmanager
async def open_publishing_session(settings: Settings, publisher_id: str) -> AsyncIterator[Session]:
    """A session for one publisher of the group; if the settings let members make the group's queues, they exist by
    then.

    Raises `ConfigError` if the broker cannot be reached, or refuses to make a queue. An outage meanwhile is waited for,
    as `provision_new_group` says.
    """
    path, carries_traces = settings.transport.client_path, settings.carries_traces
    async with open_session(settings.beside_connection, publisher_id, path, carries_traces=carries_traces) as session:
        # Before the first message: the broker confirms even a message that no queue attracts, and nobody gets it.
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
