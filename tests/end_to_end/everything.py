"""Everything at once, with real processes: groups of every kind on one broker and one stream of messages, disturbed.

    python -m tests.end_to_end.everything --minutes 5 --seed 7 --rebind cycle

Four groups get all messages of one publisher. `striped` is brought to more and fewer queues, and one of its members is
two processes; `parked` has keys that fail, are parked and replayed (in both, each message has an effect under a guard,
and publishes in a transaction); `served` has applications, one for each way in which events reach them; `landed` lands.
With `--rebind cycle` the members of the last three are counted, and cycle; otherwise those of `parked` are counted.

Each member and application has a thread that deals blows to it, drawn from the seed and its name, beside all others; so
have the broker, the queues of `striped` and the keys of `parked`. In the end each published message must have been
handled in each group, those of a key in order, its effect once, its transaction whole. The journals are judged by the
rule of `lbg bench soak`: what a member that was cut off, silent or stopped cannot have known is no mistake. Exit code
1, and the folder stays, where something is wrong.
"""

import argparse
import json
import logging
import random
import shutil
import signal
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from solace.messaging.messaging_service import MessagingService
from solace.messaging.resources.queue import Queue

from lbg_runtime.cli.bench.landing_trial import Follower
from lbg_runtime.cli.live.run_folder import run_folder
from lbg_runtime.publisher.load import numbered_keys
from tests.addresses import OWN_HOST, own_ports
from tests.end_to_end.everything_judge import (
    published_by,
    wrong_by_journals,
    wrong_effects,
    wrong_parts,
    wrong_places,
    wrong_rows,
)
from tests.end_to_end.everything_stage import MemberPlayer, Player, Stage, TwinsPlayer
from tests.patience import PATIENCE_MS, PATIENCE_S
from tests.processes import whole_lines
from tests.warm import LBG, Copy, Warm, warm_process

HERE = Path(__file__).parent

LEAST_QUEUES, QUEUES, MOST_QUEUES, KEYS = 2, 4, 8, 100
SHAPE = {"hash_prefix": "everything", "hash_count": 24, "queue_count": QUEUES}
HANDLING = ("striped", "parked")
WAYS = ("single", "bulk", "pull")
GROUPS = (*HANDLING, "served", "landed")

REPLAYED = "key: parked, and replayed"
MORE, FEWER = "more", "fewer"

POISONED_S = (1.0, 8.0)
LONG_PATIENCE_S = 3 * PATIENCE_S
"""For what takes several steps, of processes that are hit meanwhile."""
SHOWN = 10


# -- the groups


def set_up(stage: Stage, rebind: str) -> list[Player]:
    """The groups, and who plays in them."""

    def member(group: str, name: int | str, *words: object, application: Player | None = None) -> MemberPlayer:
        if not _is_counted(group, rebind):
            which: tuple[object, ...] = ("--member-id", f"member-{name}")
        else:
            which = ("--member-index", name)
        return MemberPlayer(stage, group, f"member-{name}", *words, *which, application=application)

    for group in GROUPS:
        (stage.folder / group / "journals").mkdir(parents=True)
        _configure(stage, group, rebind)
        stage.lbg(group, "group", "create")
    for group in HANDLING:
        shutil.copy(HERE / "everything_handlers.py", stage.folder / group)
        (stage.folder / group / "poisoned").touch()
        with closing(sqlite3.connect(stage.folder / group / "effects.sqlite")) as database:
            database.execute("CREATE TABLE effect (key TEXT, number INTEGER)")
        _ready_for_transactions(stage, group)
    players: list[Player] = [TwinsPlayer(stage, "striped", "twins", "run", "--member-id", "twins")]
    players += [member("striped", name, "run") for name in range(2)]
    players += [member("parked", name, "run") for name in range(2)]
    players += [member("landed", name, "land", "--dir", "log", "--flush-ms", "10") for name in range(2)]
    application = (HERE / "everything_application.py").read_text()
    for name, (way, port) in enumerate(zip(WAYS, own_ports(len(WAYS)), strict=True)):
        address = f"{OWN_HOST}:{port}"
        place = {"listen": address} if way == "pull" else {"application": f"http://{address}", "listen": "off"}
        _configure(stage, "served", rebind, f"{way}.yaml", sidecar={**place, "health": {"interval": "1s"}})
        serving = Player(stage, "served", way, application, way, address)
        players += [serving, member("served", name, "run", "--config", f"{way}.yaml", application=serving)]
    return players


def _is_counted(group: str, rebind: str) -> bool:
    return group == "parked" or (rebind == "cycle" and group != "striped")


def _configure(stage: Stage, group: str, rebind: str, file: str = "config.yaml", **more: object) -> None:
    is_cycling = rebind == "cycle" and group != "striped"
    count = len(WAYS) if group == "served" else 2
    settings = {
        "connection": {"transport": "solace", "host": f"tcp://{stage.smf}", "username": group},
        "semp": {"url": f"http://{stage.semp}", "password": "admin", "publish_topics": [_parts(group)]},
        "group": {"name": group, **SHAPE},
        "membership": {
            "heartbeat": "300ms",
            "settle": "500ms",
            **({"mode": "static", "count": count} if _is_counted(group, rebind) else {}),
        },
        "rebind": {
            "min_tenure": "1s",
            "drain_timeout": "10s",
            **({"mode": "cycle", "interval": "4s"} if is_cycling else {}),
        },
        "failure": {
            "timeout": "5s",
            "backoff": {"initial": "20ms", "maximum": "500ms"},
            **({"attempts": 3, "then": "park"} if group == "parked" else {}),
        },
        "ops": {"journal": {"path": "journals"}},
        **({"handlers": ["everything_handlers"]} if group in HANDLING else {}),
        **more,
    }
    (stage.folder / group / file).write_text(json.dumps(settings))


def _parts(group: str) -> str:
    """Topic, and queue, of what its handlers publish."""
    return f"parts/{group}"


def _ready_for_transactions(stage: Stage, group: str) -> None:
    """Its members may publish in them, and there is a queue for what they do."""
    queue = quote(_parts(group), safe="")
    made = {"queueName": _parts(group), "permission": "delete", "ingressEnabled": True, "egressEnabled": True}
    _manage(stage, "POST", "config", "queues", made)
    _manage(stage, "POST", "config", f"queues/{queue}/subscriptions", {"subscriptionTopic": _parts(group)})
    _manage(stage, "PATCH", "config", f"clientProfiles/lbg-{group}", {"allowTransactedSessionsEnabled": True})


def _manage(stage: Stage, verb: str, api: str, what: str, body: object = None) -> Any:
    url = f"http://{stage.semp}/SEMP/v2/{api}/msgVpns/default/{what}"
    options: dict[str, Any] = {"auth": ("admin", "admin"), "timeout": PATIENCE_S, "trust_env": False}
    return httpx.request(verb, url, json=body, **options).raise_for_status().json()


# -- what is done to groups


def restripe(stage: Stage, seed: int) -> None:
    """More queues and fewer, each at least once; now and then the command is killed, and given again."""
    chance, count, more = random.Random(f"{seed} restripe"), QUEUES, True
    while stage.goes_on(chance, _restriped(FEWER)):
        count = chance.randint(count + 1, MOST_QUEUES) if more else chance.randint(LEAST_QUEUES, count - 1)
        command = _restriping(stage, count)
        if chance.random() < 0.3:
            stage.wait(chance, (0.0, 4.0))
            command.kill()
            stage.count("re-striping: kill")
        while True:
            # Nobody can say how long one takes whose members are hit all the time.
            while command.poll() is None and not stage.over.wait(0.2):
                pass
            stage.until("a re-striping has ended", lambda: command.poll() is not None, LONG_PATIENCE_S)  # noqa: B023
            if command.returncode == 0:
                break
            if command.returncode not in (1, 2 if stage.broker_was_hit else 1, -signal.SIGKILL):
                raise AssertionError(f"lbg group restripe: exit code {command.returncode}")
            # One that hears no member, or that was killed, is to be given again.
            command = _restriping(stage, count)
        stage.count(_restriped(MORE if more else FEWER))
        more = not more


def _restriped(where: str) -> str:
    return f"re-striping: {where} queues"


def _restriping(stage: Stage, queues: int) -> Copy:
    words = ("group", "restripe", "--queues", queues, "--config", "config.yaml")
    return stage.run(stage.folder / "striped", "restripe", LBG, *words)


def poison(stage: Stage, seed: int) -> None:
    """A key fails for some time, and what was parked of it is replayed, again and again, and at least once."""
    chance, poisoned = random.Random(f"{seed} poison"), stage.folder / "parked" / "poisoned"
    while stage.goes_on(chance, REPLAYED):
        poisoned.write_text(chance.choice(numbered_keys(KEYS)))
        stage.rest(chance, POISONED_S)
        poisoned.write_text("")
        if _replay(stage) > 0:
            stage.count(REPLAYED)


def _replay(stage: Stage) -> int:
    """Have all that is parked replayed; how many keys were, and -1 where that cannot be told just now."""
    code, told = stage.lbg("parked", "parked", "list", "--json", codes=(0, 1, 2))
    parked = len(json.loads(told)["parked"]) if code == 0 else -1
    if parked:
        stage.lbg("parked", "parked", "unpark", "--all", codes=(0, 1, 2))
    return parked


# -- the story


def run(
    folder: Path,
    warm: Warm,
    *,
    seconds: float | None,
    seed: int,
    rebind: str,
    rate: int,
    pace: float = 1.0,
) -> dict[str, Any]:
    """Disturb the groups for so long, or None: until each process was dealt each kind of blow once; and judge them.

    `pace`: by how much longer than usual all waits are. `wrong` has what was wrong, and where.
    """
    with ExitStack() as stack:
        stage = Stage(folder, warm, stack, pace)
        players = set_up(stage, rebind)
        load = ("--topic", "orders/new", "--rate", rate, "--keys", KEYS, "--ledger", "journals")
        publisher = stage.run(folder / "striped", "publisher", LBG, "publish", *load)
        landed = Follower(folder / "landed" / "log")
        stage.until("each group handles", lambda: all(_handled(stage, group, landed) for group in GROUPS))
        once = seconds is None
        playing = [stage.thread(f"{one.group}/{one.name}", partial(one.play, seed, once=once)) for one in players]
        others = [
            stage.thread("striped", partial(restripe, stage, seed)),
            stage.thread("parked", partial(poison, stage, seed)),
            stage.thread("broker", partial(stage.kill_broker, seed)),
        ]
        if seconds is not None:
            stage.over.wait(seconds)
            stage.over.set()
        for thread in playing:
            thread.join()
        stage.over.set()
        for thread in others:
            thread.join()
        if not stage.wrong:
            stage.thread("the end", partial(_end, stage, players, publisher, landed)).join()
        parts = {group: _content(stage, _parts(group)) for group in HANDLING} if not stage.wrong else {}
    told: dict[str, Any] = {"seed": seed, "rebind": rebind, "blows": dict(sorted(stage.blows.items()))}
    if not stage.wrong:
        told |= _judged(stage, parts)
    return {**told, "wrong": stage.wrong}


def _handled(stage: Stage, group: str, landed: Follower) -> int:
    """How many messages were handled, copies apart."""
    if group != "landed":
        return len(set(whole_lines(stage.folder / group / "handled")))
    landed.look()
    return landed.rows


def _end(stage: Stage, players: Sequence[Player], publisher: Copy, landed: Follower) -> None:
    publisher.terminate()
    if publisher.wait(PATIENCE_S):
        raise AssertionError(f"the publisher left with exit code {publisher.returncode}")
    total = sum(published_by(stage.folder / "striped" / "journals").values())
    stage.until("nothing is parked", lambda: _replay(stage) == 0, LONG_PATIENCE_S)
    for group in GROUPS:

        def all_is_handled() -> bool:
            for player in players:
                player.insist()
            return _handled(stage, group, landed) >= total  # noqa: B023

        stage.until(f"all {total} messages are handled in {group}", all_is_handled, LONG_PATIENCE_S)
    for player in players:
        if isinstance(player, MemberPlayer):
            player.end()


def _content(stage: Stage, queue: str) -> list[str]:
    """The payloads in a queue that nobody else takes from."""
    properties = {
        "solace.messaging.transport.host": f"tcp://{stage.smf}",
        "solace.messaging.service.vpn-name": "default",
        "solace.messaging.authentication.scheme.basic.username": "reader",
        "solace.messaging.authentication.scheme.basic.password": "",
    }
    count = _manage(stage, "GET", "monitor", f"queues/{quote(queue, safe='')}")["collections"]["msgs"]["count"]
    service = MessagingService.builder().from_properties(properties).build("reader").connect()
    receiver = service.create_persistent_message_receiver_builder().build(Queue.durable_exclusive_queue(queue)).start()
    found = []
    for _ in range(count):
        message = receiver.receive_message(PATIENCE_MS)
        found.append(bytes(message.get_payload_as_bytes()).decode())
        receiver.ack(message)
    receiver.terminate(0)
    service.disconnect()
    return found


def _judged(stage: Stage, parts: dict[str, list[str]]) -> dict[str, Any]:
    """Figures of each group; what is wrong with them is noted."""
    told: dict[str, Any] = {}
    # By which a run that is kept can be judged again.
    (stage.folder / "cuts.json").write_text(json.dumps(stage.cuts))
    published = published_by(stage.folder / "striped" / "journals")
    for group in GROUPS:
        folder = stage.folder / group
        if group != "striped":
            _lend_ledger(stage.folder / "striped" / "journals", folder / "journals", group)
        wrong, told[group] = wrong_by_journals(folder / "journals", stage.cuts[group])
        if group == "landed":
            wrong += [f"landing log: {one}" for one in wrong_rows(folder / "log", published)]
        else:
            places = [(key, int(number)) for key, number in map(str.split, whole_lines(folder / "handled"))]
            wrong += [f"handled: {one}" for one in wrong_places(places, published)]
        if group in HANDLING:
            wrong += [f"effects: {one}" for one in wrong_effects(folder / "effects.sqlite", published)]
            wrong += [f"transactions: {one}" for one in wrong_parts(parts[group], published)]
        stage.wrong += [f"{group}: {one}" for one in wrong[:SHOWN]]
    return {"published": sum(published.values()), **told}


def _lend_ledger(source: Path, journals: Path, group: str) -> None:
    """Files of one group are judged together, and the publisher has the settings of one; its messages reach all."""
    for ledger in source.glob("*.ledger.jsonl"):
        header, _, records = ledger.read_text().partition("\n")
        (journals / ledger.name).write_text(header.replace('"group":"striped"', f'"group":"{group}"') + "\n" + records)


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--rebind", choices=["cooperative", "cycle"], default="cooperative")
    parser.add_argument("--rate", type=int, default=50, help="messages a second")
    asked = parser.parse_args()
    logging.getLogger("solace.messaging").setLevel(logging.CRITICAL)
    print(f"seed {asked.seed}", file=sys.stderr)  # noqa: T201  # also of a run that is ended
    with run_folder("lbg-everything-") as folder, warm_process() as warm:
        told = run(folder.path, warm, seconds=asked.minutes * 60, seed=asked.seed, rebind=asked.rebind, rate=asked.rate)
        folder.is_wanted = bool(told["wrong"])
    print(json.dumps(told, indent=1))  # noqa: T201  # what it is for
    for one in told["wrong"]:
        print(f"wrong: {one}", file=sys.stderr)  # noqa: T201  # what it is for
    sys.exit(1 if told["wrong"] else 0)


if __name__ == "__main__":
    main()
