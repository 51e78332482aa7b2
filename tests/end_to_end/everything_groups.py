"""The groups of `everything`: their settings, what they need beforehand, and who plays in them."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
from psycopg_pool import AsyncConnectionPool
from solace.messaging.messaging_service import MessagingService
from solace.messaging.resources.queue import Queue

from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.guard.postgres import PostgresGuard
from tests.addresses import OWN_HOST, own_ports
from tests.end_to_end.everything_judge import Place, landed_places, places_of
from tests.end_to_end.everything_players import MemberPlayer, ObserverPlayer, Player, PublisherPlayer, TwinsPlayer
from tests.end_to_end.everything_stage import Stage
from tests.patience import PATIENCE_MS, PATIENCE_S
from tests.processes import whole_lines
from tests.warm import LBG

HERE = Path(__file__).parent

QUEUES, KEYS = 4, 100
SHAPE = {"hash_prefix": "everything", "hash_count": 24, "queue_count": QUEUES}
PARTITIONED = "partitioned"
"""The group on a partitioned queue, whose effects are in PostgreSQL."""
HANDLING = ("striped", "parked", PARTITIONED)
WAYS = ("single", "bulk", "pull")
GROUPS = (*HANDLING, "served", "landed")

_HANDOFF_S = 60
"""Longer than any attempts that wait for the database."""
_MARKS = "CREATE TABLE effect (id {} PRIMARY KEY, place TEXT, number INTEGER)"
_MADE = "SELECT place, number FROM effect ORDER BY id"


def set_up(stage: Stage, rebind: str) -> list[Player]:
    """The groups, and who plays in them."""

    def member(group: str, name: int | str, *words: object, lacks: Callable[[], bool] = lambda: False) -> MemberPlayer:
        if not _is_counted(group, rebind):
            which: tuple[object, ...] = ("--member-id", f"member-{name}")
        else:
            which = ("--member-index", name)
        return MemberPlayer(stage, group, f"member-{name}", *words, *which, lacks=lacks)

    for group in GROUPS:
        (stage.folder / group / "journals").mkdir(parents=True)
        _configure(stage, group, rebind)
        if group == PARTITIONED:
            _make_partitioned_queue(stage)
        else:
            stage.lbg(group, "group", "create")
    for group in HANDLING:
        shutil.copy(HERE / "everything_handlers.py", stage.folder / group)
        (stage.folder / group / "poisoned").touch()
        _make_room_for_effects(stage, group)
        _ready_for_transactions(stage, group)
    players: list[Player] = [TwinsPlayer(stage, "striped", "twins", "run", "--member-id", "twins")]
    players += [member("striped", name, "run") for name in range(2)]
    players += [member("parked", name, "run") for name in range(2)]
    players += [member(PARTITIONED, name, "run", lacks=lambda: stage.database_was_hit) for name in range(2)]
    players += [member("landed", name, "land", "--dir", "log", "--flush-ms", "10") for name in range(2)]
    application = (HERE / "everything_application.py").read_text()
    for name, (way, port) in enumerate(zip(WAYS, own_ports(len(WAYS)), strict=True)):
        address = f"{OWN_HOST}:{port}"
        place = {"listen": address} if way == "pull" else {"application": f"http://{address}", "listen": "off"}
        _configure(stage, "served", rebind, f"{way}.yaml", sidecar={**place, "health": {"interval": "1s"}})
        serving = Player(stage, "served", way, application, way, address)
        players += [serving, member("served", name, "run", "--config", f"{way}.yaml", lacks=partial(_was_hit, serving))]
    return players


def _was_hit(player: Player) -> bool:
    return player.was_hit


def set_up_observers(stage: Stage, page: str) -> list[Player]:
    """The live page of one group, at this address, and who judges another by its journals."""
    shows = ObserverPlayer(stage, "striped", "page", "dashboard", "--listen", page)
    judges = Player(stage, "parked", "judge", LBG, "validate", "--live", "journals")
    judges.what = shows.what
    return [shows, judges]


def set_up_publisher(stage: Stage, rate: int) -> PublisherPlayer:
    """Who publishes for all groups, so many messages a second."""
    load = ("--topic", "orders/new", "--rate", rate, "--keys", KEYS, "--ledger", stage.folder / "ledgers")
    return PublisherPlayer(stage, "striped", "publisher", "publish", *load)


def handled_places(stage: Stage, group: str) -> list[Place]:
    """What was handled to an end by now, copies too; of the group that lands, what can be read."""
    folder = stage.folder / group
    return landed_places(folder / "log") if group == "landed" else places_of(whole_lines(folder / "handled"))


def effects_in(stage: Stage, group: str) -> list[Place]:
    """The effects of a group that handles, in the order in which they were made."""
    if group == PARTITIONED:
        with psycopg.connect(stage.database.conninfo) as connection:
            return connection.execute(_MADE).fetchall()
    with closing(sqlite3.connect(stage.folder / group / "effects.sqlite")) as connection:
        return connection.execute(_MADE).fetchall()


def parts_in(stage: Stage, group: str) -> list[str]:
    """The payloads of what its handlers have published, in the order of their queue, from which nobody else takes."""
    properties = {
        "solace.messaging.transport.host": ",".join(stage.hosts),
        "solace.messaging.service.vpn-name": "default",
        "solace.messaging.authentication.scheme.basic.username": "reader",
        "solace.messaging.authentication.scheme.basic.password": "",
    }
    name = _parts(group)
    count = manage(stage, "GET", "monitor", f"queues/{quote(name, safe='')}")["collections"]["msgs"]["count"]
    service = MessagingService.builder().from_properties(properties).build("reader").connect()
    receiver = service.create_persistent_message_receiver_builder().build(Queue.durable_exclusive_queue(name)).start()
    found = []
    for number in range(count):
        message = receiver.receive_message(PATIENCE_MS)
        if message is None:
            raise AssertionError(f"not within {PATIENCE_S} s: message {number + 1} of {count} of {name}")
        found.append(bytes(message.get_payload_as_bytes()).decode())
        receiver.ack(message)
    receiver.terminate(0)
    service.disconnect()
    return found


def left_in_queues(stage: Stage) -> dict[str, int]:
    """How many messages each queue of the groups holds that is not empty, parking queues apart: fences stay there."""
    told = manage(stage, "GET", "monitor", "queues?count=100")
    names, counts = (of["queueName"] for of in told["data"]), (of["msgs"]["count"] for of in told["collections"])
    others = (_parts(""), PARKING_PREFIX)
    return {name: count for name, count in zip(names, counts, strict=True) if count and not name.startswith(others)}


def manage(stage: Stage, verb: str, api: str, what: str, body: object = None) -> Any:
    """Ask something of the broker's administration, or have it done."""
    url = f"http://{stage.semp}/SEMP/v2/{api}/msgVpns/default/{what}"
    options: dict[str, Any] = {"auth": ("admin", "admin"), "timeout": PATIENCE_S, "trust_env": False}
    return httpx.request(verb, url, json=body, **options).raise_for_status().json()


def _is_counted(group: str, rebind: str) -> bool:
    return group == "parked" or (_is_cycling(group, rebind))


def _is_cycling(group: str, rebind: str) -> bool:
    return rebind == "cycle" and group not in ("striped", PARTITIONED)


def _configure(stage: Stage, group: str, rebind: str, file: str = "config.yaml", **more: object) -> None:
    count = len(WAYS) if group == "served" else 2
    settings = {
        "connection": {"transport": "solace", "host": stage.hosts, "username": group},
        "semp": {"url": f"http://{stage.semp}", "password": "admin", "publish_topics": [_parts(group)]},
        "group": {"name": group, **SHAPE, **({"backend": "partitioned"} if group == PARTITIONED else {})},
        "membership": {
            "heartbeat": "300ms",
            "settle": "500ms",
            **({"mode": "static", "count": count} if _is_counted(group, rebind) else {}),
        },
        "rebind": {
            "min_tenure": "1s",
            "drain_timeout": "10s",
            **({"mode": "cycle", "interval": "4s"} if _is_cycling(group, rebind) else {}),
        },
        "failure": {
            "timeout": "5s",
            "backoff": {"initial": "20ms", "maximum": "500ms"},
            **({"attempts": 3, "then": "park"} if group == "parked" else {}),
        },
        "ops": {"journal": {"path": "journals"}},
        **({"dispatch": {"missing_key": "error"}} if group == PARTITIONED else {}),
        **({"handlers": ["everything_handlers"]} if group in HANDLING else {}),
        **more,
    }
    (stage.folder / group / file).write_text(json.dumps(settings))


def _make_partitioned_queue(stage: Stage) -> None:
    made = {"accessType": "non-exclusive", "partitionCount": QUEUES, "partitionRebalanceDelay": 1}
    made |= {"partitionRebalanceMaxHandoffTime": _HANDOFF_S}
    _make_queue(stage, f"{PARTITIONED}/0", f"{SHAPE['hash_prefix']}/*/>", made)


def _make_queue(stage: Stage, name: str, topic: str, more: dict[str, object]) -> None:
    made = {"queueName": name, "permission": "delete", "ingressEnabled": True, "egressEnabled": True, **more}
    manage(stage, "POST", "config", "queues", made)
    manage(stage, "POST", "config", f"queues/{quote(name, safe='')}/subscriptions", {"subscriptionTopic": topic})


def _make_room_for_effects(stage: Stage, group: str) -> None:
    if group == PARTITIONED:
        (stage.folder / group / "database").write_text(stage.database.conninfo)
        with psycopg.connect(stage.database.conninfo) as connection:
            connection.execute(_MARKS.format("BIGSERIAL"))
        asyncio.run(_make_room_for_marks(stage.database.conninfo))
        return
    with closing(sqlite3.connect(stage.folder / group / "effects.sqlite")) as database:
        database.execute(_MARKS.format("INTEGER"))


async def _make_room_for_marks(conninfo: str) -> None:
    # Once: a member may start while the database is away.
    async with AsyncConnectionPool(conninfo, open=False, min_size=1) as pool:
        await PostgresGuard(pool.connection, "everything").create_table()


def _parts(group: str) -> str:
    """Topic, and queue, of what its handlers publish."""
    return f"parts/{group}"


def _ready_for_transactions(stage: Stage, group: str) -> None:
    """Its members may publish in them, and there is a queue for what they do."""
    _make_queue(stage, _parts(group), _parts(group), {})
    profile = "default" if group == PARTITIONED else f"lbg-{group}"
    manage(stage, "PATCH", "config", f"clientProfiles/{profile}", {"allowTransactedSessionsEnabled": True})
