"""`lbg check`: checks, without a broker, whether a member could start with these settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lbg_runtime.cli.importing import users_modules
from lbg_runtime.cli.options import Config, Json, MemberCount, MemberId, MemberIndex, complain, print_json
from lbg_runtime.model.errors import ConfigError, HandlerError, UserError

if TYPE_CHECKING:
    from lbg_runtime.config.settings import ClientPathChoice, Settings
    from lbg_runtime.runtime.handlers.registry import Handlers
    from lbg_runtime.runtime.membership import Membership

_NOT_COMPILED = "lbg_runtime is installed without its parts in C: it works, and a message costs about twice as much"


def check(
    config: Config = Path("config.yaml"),
    member_index: MemberIndex = None,
    member_count: MemberCount = None,
    member_id: MemberId = None,
    json: Json = False,
) -> None:
    """Check settings, handlers, group and client. Exit code 2, with one line per problem, if there are any."""
    from lbg_runtime.cli.log import configure_log

    configure_log()
    problems: list[UserError] = []
    summary = _examine(config, member_index, member_count, member_id, problems)
    if json:
        found = [{"where": each.where, "found": each.found, "expected": each.expected} for each in problems]
        print_json({"ok": not problems, "problems": found, **summary})
    else:
        for problem in problems:
            complain(problem)
        if not problems:
            print(_as_text(summary))
    raise typer.Exit(2 if problems else 0)


def _examine(
    config: Path, member_index: int | None, member_count: int | None, member_id: str | None, problems: list[UserError]
) -> dict[str, object]:
    """Collect every problem; the returned summary is empty if the settings cannot be read."""
    from lbg_runtime.admin.stored import load_group_settings
    from lbg_runtime.config.broker_names import check_client_name
    from lbg_runtime.config.connection_settings import TransportKind
    from lbg_runtime.config.load import problems_of
    from lbg_runtime.config.trust import trust
    from lbg_runtime.metrics.tracing import open_spans
    from lbg_runtime.runtime.handlers.loading import load_handlers
    from lbg_runtime.runtime.handlers.resources import MemberResources
    from lbg_runtime.runtime.handlers.routes import check_ends, check_states, policies_of
    from lbg_runtime.runtime.membership import membership_of_process
    from lbg_runtime.runtime.session import checked_credentials, embedded_address
    from lbg_runtime.transport.solace.client import CLIENT, load_client

    try:
        settings = load_group_settings(config)
    except ConfigError as error:
        problems += problems_of(error)
        return {}
    membership, handlers, path = None, None, None
    with _noted(problems):
        if settings.connection.transport is TransportKind.EMBEDDED:
            embedded_address(settings.connection.host[0])
    with _noted(problems):
        try:
            path, _, _ = load_client(settings.transport.client_path, carries_traces=settings.carries_traces)
        except ImportError as error:
            raise ConfigError("solace-pubsubplus", str(error), CLIENT) from error
    with _noted(problems):
        checked_credentials(settings.connection)
        if (sidecar := settings.sidecar) is not None and (sidecar.application or "").startswith("https://"):
            trust(sidecar.tls, "sidecar.tls")
    with _noted(problems):
        membership = membership_of_process(settings, member_index, member_count, member_id)
        check_client_name(settings.group.name, membership.member, settings.connection.client_name)
    with _noted(problems):
        with users_modules():
            handlers = load_handlers(settings.handlers)
        if not handlers and settings.sidecar is None:
            raise HandlerError("handlers", "none", "at least one function with @handlers.handler(...)")
        check_ends(policies_of(handlers, settings.failure), settings)
        if not handlers.lifespans:
            # What a lifespan yields is known only once it runs; that there are none is known now.
            check_states(handlers, MemberResources())
    with _noted(problems):
        open_spans(settings, "lbg check")
    return _summary(settings, path, membership, handlers)


@contextmanager
def _noted(problems: list[UserError]) -> Iterator[None]:
    """A mistake that is found while the context lasts is one of the problems, and what comes after it is examined."""
    try:
        yield
    except UserError as error:
        problems.append(error)


def _summary(
    settings: "Settings",
    path: "ClientPathChoice | None",
    membership: "Membership | None",
    handlers: "Handlers | None",
) -> dict[str, object]:
    import os

    from lbg_runtime.runtime.app import shape_warnings
    from lbg_runtime.runtime.handlers.registry import mqtt_warnings
    from lbg_runtime.transport.solace.fast import compiled

    is_compiled = compiled.INTAKE is not None
    group = settings.group
    summary: dict[str, object] = {
        "group": {
            "name": group.name,
            "hash_prefix": group.hash_prefix,
            "hash_count": group.hash_count,
            "queue_count": group.queue_count,
            "hash_function": group.hash_function.value,
        },
        "connection": {
            "transport": settings.connection.transport.value,
            "host": list(settings.connection.host),
            "path": None if path is None else path.value,
            "compiled": is_compiled,
        },
    }
    if membership is not None:
        name, own = str(membership.member), f"-{os.getpid()}"
        # A name made from the process id differs in every process.
        name = name.removesuffix(own) + "-PID" if name.endswith(own) else name
        member: dict[str, object] = {"name": name, "mode": settings.membership.mode.value}
        if (place := membership.place) is not None:
            at_home = [q for q in range(group.queue_count) if place.on(q).rank == 0]
            member |= {"index": place.index, "count": place.count, "primary_queues": at_home}
        summary["member"] = member
        summary["warnings"] = [
            *shape_warnings(settings, membership),
            *([] if is_compiled else [_NOT_COMPILED]),
            *_prefixed(group.hash_prefix, handlers),
            *mqtt_warnings(handlers or ()),
            *_sidecar_remarks(settings),
        ]
    if (sidecar := settings.sidecar) is not None:
        summary["sidecar"] = {
            "application": sidecar.application,
            "listen": None if sidecar.listen is None else str(sidecar.listen),
            "subscriptions": [each.topic for each in sidecar.subscriptions],
        }
    if handlers is not None:
        summary["handlers"] = [{"subscription": each.subscription, "where": each.where} for each in handlers]
        summary["hooks"] = [{"hook": each.kind.value, "where": each.where} for each in handlers.hooks]
    return summary


def _sidecar_remarks(settings: "Settings") -> list[str]:
    if settings.sidecar is None:
        return []
    from lbg_runtime.sidecar.subscriptions import configured, mqtt_remarks

    return mqtt_remarks(configured(settings.sidecar.subscriptions))


def _prefixed(hash_prefix: str, handlers: "Handlers | None") -> list[str]:
    """Warnings about topics that look like those on the broker: no error, as publishers may have such topics."""
    return [
        f"{each.where} takes {each.subscription!r}, which begins with the group's hash prefix: handlers take original"
        " topics, without prefix and shard"
        for each in handlers or ()
        if each.subscription.partition("/")[0] == hash_prefix
    ]


def _as_text(summary: dict[str, object]) -> str:
    lines = []
    for section, facts in summary.items():
        if isinstance(facts, dict):
            lines.append(f"{section}: " + ", ".join(f"{name} {_value(value)}" for name, value in facts.items()))
        elif isinstance(facts, list):
            lines += [
                f"{section.removesuffix('s')}: " + (each if isinstance(each, str) else " ".join(each.values()))
                for each in facts
            ]
    return "\n".join(lines)


def _value(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)
