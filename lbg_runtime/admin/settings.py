"""The group that settings describe, for whoever makes it. Pure, but for passwords that nobody is to know."""

import secrets
from collections.abc import Container, Iterable

from pydantic import SecretStr

from lbg_runtime.admin.account import semp_missing
from lbg_runtime.admin.roles import Login, Role, Topics
from lbg_runtime.admin.spec import GroupSpec
from lbg_runtime.config.broker_names import check_made_queues
from lbg_runtime.config.settings import GroupBackend, GroupSource, Provision, RebindMode, Settings
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.failure import QUEUE_ADDRESS_PREFIX, Then
from lbg_runtime.model.ids import QueueName


def spec_of(settings: Settings, of_handlers: Iterable[Then] | None = None) -> GroupSpec:
    """The group that the settings describe, with the queues that `failure.then` and the ends `of_handlers` need.

    `of_handlers` is None if these are not known. An account without a password that logs in by certificate or token
    gets a new one, which is kept nowhere: with an empty one its name alone would be enough wherever the broker takes
    passwords, too. Raises `ConfigError` if `semp` is not set, or if the settings cannot make a group.
    """
    if settings.semp is None:
        raise semp_missing()
    if settings.group.source is not GroupSource.FILE:
        raise ConfigError("group.from", settings.group.source.value, "file: who makes a group says how it is cut")
    group, connection = settings.group, settings.connection
    ends = {settings.failure.then, *(of_handlers or ())}
    by_password = connection.client_certificate is None and connection.oauth is None

    def login(username: str, password: SecretStr) -> Login:
        given = password.get_secret_value()
        return Login(username, given if given or by_password else secrets.token_urlsafe(32))

    semp = settings.semp
    accounts = {Role.MEMBER: login(connection.username, connection.password)}
    for role, account in ((Role.PUBLISHER, semp.publisher), (Role.CONDUCTOR, semp.conductor)):
        if account is not None:
            accounts[role] = login(account.username, account.password)
    if group.backend is not GroupBackend.EXCLUSIVE:
        expected = "exclusive: a partitioned queue is made by hand, as docs/patterns.md says"
        raise ConfigError("group.backend", group.backend.value, expected)
    key = str(group.key)
    if not key.isprintable():
        raise ConfigError("group.key", repr(key), "printable characters, as the broker asks of what it stores")
    aside = _aside(settings, ends)
    check_made_queues(group.name, aside)
    return GroupSpec(
        shape=group.shape(),
        hash_function=group.hash_function,
        key=key,
        accounts=accounts,
        queue_spool_mb=semp.queue_spool_mb,
        client_profile=semp.client_profile,
        creates_queues=group.provision is Provision.CREATE_MISSING,
        topics=Topics(
            group.control_topic_name,
            settings.ops.journal.republish_topic,
            (f"{QUEUE_ADDRESS_PREFIX}{settings.dead_message_queue}", *semp.publish_topics),
        ),
        aside=aside,
        is_aside_whole=of_handlers is not None,
        borrowed=_borrowed(settings, ends),
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
