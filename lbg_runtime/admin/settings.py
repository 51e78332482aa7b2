"""The group that settings describe, for whoever makes it. Pure."""

from collections.abc import Container, Iterable

from lbg_runtime.admin.account import semp_missing
from lbg_runtime.admin.roles import Login, Topics
from lbg_runtime.admin.spec import GroupSpec
from lbg_runtime.config.semp_settings import AccountSettings
from lbg_runtime.config.settings import GroupBackend, GroupSource, Provision, RebindMode, Settings
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.failure import QUEUE_ADDRESS_PREFIX, Then
from lbg_runtime.model.ids import QueueName


def spec_of(settings: Settings, of_handlers: Iterable[Then] = ()) -> GroupSpec:
    """The group that the settings describe, with the queues that `failure.then` and the ends `of_handlers` need.

    Raises `ConfigError` if `semp` is not set, or if the settings cannot make a group.
    """
    if settings.semp is None:
        raise semp_missing()
    if settings.group.source is not GroupSource.FILE:
        raise ConfigError("group.from", settings.group.source.value, "file: who makes a group says how it is cut")
    group, connection = settings.group, settings.connection
    ends = {settings.failure.then, *of_handlers}
    if group.backend is not GroupBackend.EXCLUSIVE:
        expected = "exclusive: a partitioned queue is made by hand, as docs/patterns.md says"
        raise ConfigError("group.backend", group.backend.value, expected)
    return GroupSpec(
        shape=group.shape(),
        hash_function=group.hash_function,
        key=str(group.key),
        username=connection.username,
        password=connection.password.get_secret_value(),
        queue_spool_mb=settings.semp.queue_spool_mb,
        client_profile=settings.semp.client_profile,
        creates_queues=group.provision is Provision.CREATE_MISSING,
        topics=Topics(
            group.control_topic_name,
            settings.ops.journal.republish_topic,
            (f"{QUEUE_ADDRESS_PREFIX}{settings.dead_message_queue}", *settings.semp.publish_topics),
        ),
        aside=_aside(settings, ends),
        borrowed=_borrowed(settings, ends),
        publisher=_login(settings.semp.publisher),
        conductor=_login(settings.semp.conductor),
        binds=_binds(settings),
    )


def _binds(settings: Settings) -> int:
    """Owner and standbys; if every member binds to every queue, their number is not known here."""
    is_counted = settings.rebind.mode is RebindMode.COOPERATIVE
    return 1 + (settings.rebind.standbys or 0) if is_counted else 1


def _aside(settings: Settings, ends: Container[Then | None]) -> tuple[QueueName, ...]:
    """The queues of the group's own that these ends need."""
    group, queues = settings.group.shape(), list[QueueName]()
    if Then.PARK in ends:
        queues += (parking_queue(group.name, index) for index in range(group.queue_count))
    if Then.ERROR_QUEUE in ends and _has_own_errors(settings):
        queues.append(settings.error_queue)
    return tuple(queues)


def _borrowed(settings: Settings, ends: Container[Then | None]) -> tuple[QueueName, ...]:
    """The queues of others that these ends need."""
    queues = list[QueueName]()
    if Then.ERROR_QUEUE in ends and not _has_own_errors(settings):
        queues.append(settings.error_queue)
    if Then.DMQ in ends:
        queues.append(settings.dead_message_queue)
    return tuple(queues)


def _has_own_errors(settings: Settings) -> bool:
    """An error queue with another name than its topic belongs to others."""
    return settings.error_queue == settings.error_topic


def _login(account: AccountSettings | None) -> Login | None:
    return None if account is None else Login(account.username, account.password.get_secret_value())
