"""Replay logs and replays: the engine has the logs, so nothing of them is kept here."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast

from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.replay.log import NS_PER_S, FromBeginning, FromTime, ReplayStart
from lbg_runtime.broker.engine.settings import BYTES_PER_MEGABYTE, ReplayLogSettings
from lbg_runtime.broker.semp.collection import only
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.message_ids import after_message
from lbg_runtime.broker.semp.schema import Json, Number, Row
from lbg_runtime.broker.semp.target import Key, Keys
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.semp_code import SempCode

_TIME = 2**31 - 1
"""The greatest time in seconds that the API has room for."""


def log_row(settings: ReplayLogSettings) -> Row:
    return {
        "egressEnabled": settings.egress_enabled,
        "ingressEnabled": settings.ingress_enabled,
        "maxSpoolUsage": settings.max_bytes // BYTES_PER_MEGABYTE,
        "topicFilterEnabled": False,
    }


def log_settings_of(engine: Engine, vpn: str, name: str) -> ReplayLogSettings | None:
    """The settings of a VPN's replay log with this name; None if it has none, or one with another name."""
    log = engine.replays.log(vpn)
    return None if log is None or log.settings.name != name else log.settings


class ReplayLogs:
    """The replay log of each VPN, which has one or none."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def keys(self, above: Keys) -> Iterable[Key]:
        (vpn,) = only(above, 1)
        log = self._engine.replays.log(vpn)
        return () if log is None else ((log.settings.name,),)

    def read(self, keys: Keys) -> Row | None:
        vpn, name = only(keys, 2)
        settings = log_settings_of(self._engine, vpn, name)
        return None if settings is None else log_row(settings)

    def create(self, keys: Keys, row: Row) -> None:
        vpn, name = only(keys, 2)
        if (other := self._engine.replays.log(vpn)) is not None:
            reason = f"message VPN {vpn} has the replay log {other.settings.name}, and can have one"
            raise SempFault(SempCode.NOT_ALLOWED, reason)
        self._keep(vpn, ReplayLogSettings(name, 0), row)

    def change(self, keys: Keys, before: Row, row: Row) -> None:  # noqa: ARG002  # the engine's own settings say more
        vpn, name = only(keys, 2)
        settings = log_settings_of(self._engine, vpn, name)
        if settings is not None:
            self._keep(vpn, settings, row)

    def delete(self, keys: Keys) -> None:
        vpn, _ = only(keys, 2)
        self._engine.replays.keep_log(vpn, None)

    def _keep(self, vpn: str, settings: ReplayLogSettings, row: Row) -> None:
        if row["topicFilterEnabled"]:
            raise SempFault(SempCode.NOT_SUPPORTED, "topicFilterEnabled: replay logs of this broker take every topic")
        size = cast(int, row["maxSpoolUsage"])
        # A size in bytes that the row cannot express stays, unless the row gives another one.
        if size != log_row(settings)["maxSpoolUsage"]:
            settings = replace(settings, max_bytes=size * BYTES_PER_MEGABYTE)
        self._engine.replays.keep_log(
            vpn,
            replace(
                settings,
                egress_enabled=cast(bool, row["egressEnabled"]),
                ingress_enabled=cast(bool, row["ingressEnabled"]),
            ),
        )


# -- actions


def start_replay(engine: Engine, names: tuple[str, ...], body: Mapping[str, Json]) -> list[Effect]:
    """Replay to a queue: all of the log, from a time, or after a message."""
    vpn, queue = names
    check_names(body, ("replayLogName", "fromTime", "afterMsg"))
    engine.queue_depth(vpn, QueueName(queue))  # A missing queue is reported before anything else that is wrong.
    name = body.get("replayLogName")
    if name is not None and log_settings_of(engine, vpn, str(name)) is None:
        raise SempFault(SempCode.NOT_FOUND, f"replay log {name} does not exist")
    start: ReplayStart = FromBeginning()
    if "fromTime" in body and "afterMsg" in body:
        raise SempFault(SempCode.INVALID_PARAMETER, "fromTime and afterMsg cannot both say from where")
    if "fromTime" in body:
        start = FromTime(_time(body, "fromTime") * NS_PER_S)
    elif "afterMsg" in body:
        start = after_message("afterMsg", body["afterMsg"])
    try:
        return engine.replays.start(vpn, QueueName(queue), start)
    except BrokerRefusal as refusal:
        raise SempFault(SempCode.NOT_ALLOWED, f"queue {queue}: {refusal.text}") from None


def cancel_replay(engine: Engine, names: tuple[str, ...]) -> list[Effect]:
    """Remove replayed messages that are still on a queue."""
    vpn, queue = names
    return engine.replays.cancel(vpn, QueueName(queue))


def trim_logged_messages(engine: Engine, names: tuple[str, ...], body: Mapping[str, Json]) -> list[Effect]:
    """Remove messages that came before a time from a replay log."""
    vpn, name = names
    check_names(body, ("olderThanTime",))
    if "olderThanTime" not in body:
        raise SempFault(SempCode.MISSING_PARAMETER, "olderThanTime is needed")
    if log_settings_of(engine, vpn, name) is None:
        raise SempFault(SempCode.NOT_FOUND, f"replay log {name} does not exist")
    engine.replays.trim(vpn, _time(body, "olderThanTime") * NS_PER_S)
    return []


def _time(body: Mapping[str, Json], name: str) -> int:
    Number(name, 0, 0, _TIME).check(body[name])
    return cast(int, body[name])


def check_names(body: Mapping[str, Json], known: tuple[str, ...]) -> None:
    """Raise `SempFault` for an attribute that an action does not have."""
    for name in body:
        if name not in known:
            raise SempFault(SempCode.INVALID_PARAMETER, f"this action has no attribute {name!r}")
