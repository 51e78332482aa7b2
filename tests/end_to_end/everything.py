"""Everything at once, with real processes: groups of every kind on one broker and one stream of messages, disturbed.

    python -m tests.end_to_end.everything --minutes 5 --seed 7 --rebind cycle

Five groups get all messages of one publisher. `striped` is brought to more and fewer queues, and one of its members is
two processes; `parked` has keys that fail, are parked and replayed; `partitioned` shares a partitioned queue (in these,
each message has an effect under a guard, the last one's in PostgreSQL, and publishes in a transaction); `served` has
applications, one for each way in which events reach them; `landed` lands. With `--rebind cycle` the members of all but
`striped` and `partitioned` are counted, and cycle; otherwise those of `parked` are counted.

Each member and application has a thread that deals blows to it, drawn from the seed and its name, beside all others; so
have the publisher, whose every life has a ledger, the broker, which comes back at the other of two hosts, the database,
the queues of `striped`, the keys of `parked`, and those who only look: the live page, `lbg validate --live`, `lbg group
status`, `lbg why`. In the end each published message must have been handled in each group, those of a key in order, its
effect once, its transaction whole.
What a life of the publisher that was killed had on its way may have been published or not, but for all groups alike.
The journals are judged by the rule of `lbg bench soak`: what a member that was cut off, silent or stopped cannot have
known is no mistake. Exit code 1, and the folder stays, where something is wrong.
"""

import argparse
import json
import logging
import random
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import httpx

from lbg_runtime.cli.live.run_folder import run_folder
from lbg_runtime.publisher.load import numbered_keys
from tests.addresses import OWN_HOST, own_ports
from tests.end_to_end.everything_groups import (
    GROUPS,
    HANDLING,
    KEYS,
    PARTITIONED,
    QUEUES,
    effects_in,
    handled_places,
    left_in_queues,
    parts_in,
    set_up,
    set_up_observers,
    set_up_publisher,
)
from tests.end_to_end.everything_judge import (
    lend_ledgers,
    published_by,
    wrong_by_journals,
    wrong_once,
    wrong_parts,
    wrong_places,
)
from tests.end_to_end.everything_players import MemberPlayer, Player, PublisherPlayer
from tests.end_to_end.everything_stage import Stage
from tests.patience import PATIENCE_S
from tests.warm import LBG, Copy, Warm, warm_process

LEAST_QUEUES, MOST_QUEUES = 2, 8

REPLAYED = "key: parked, and replayed"
MORE, FEWER = "more", "fewer"
LOOKED = "looks at the groups and at the page"

POISONED_S = (1.0, 8.0)
LOOK_S = (0.1, 2.0)
LONG_PATIENCE_S = 3 * PATIENCE_S
"""For what takes several steps, of processes that are hit meanwhile."""
SHOWN = 10


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


def look(stage: Stage, seed: int, page: str) -> None:
    """Ask a group as users do, and have somebody look at the live page, again and again, and at least once."""
    chance = random.Random(f"{seed} look")
    while stage.goes_on(chance, LOOKED):
        group = chance.choice([group for group in GROUPS if group != PARTITIONED])
        # Whatever is hit, or does not talk, may not answer.
        stage.lbg(group, "group", "status", codes=(0, 1, 2, 3))
        stage.lbg(group, "why", chance.choice(numbered_keys(KEYS)), codes=(0, 1, 2, 3))
        with suppress(httpx.HTTPError), httpx.Client(base_url=f"http://{page}", timeout=1, trust_env=False) as viewer:
            viewer.get("/v1/autoscale")
            with viewer.stream("GET", "/v1/feed"):
                stage.wait(chance, LOOK_S)
        stage.count(LOOKED)


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
    """Disturb the groups for so long, or None: until each kind of process was dealt each kind of blow; and judge.

    `pace`: by how much longer than usual all waits are. `wrong` has what was wrong, and where.
    """
    with ExitStack() as stack:
        stage = Stage(folder, warm, stack, pace)
        players = set_up(stage, rebind)
        publisher = set_up_publisher(stage, rate)
        stage.until("each group handles", lambda: all(handled_places(stage, group) for group in GROUPS))
        page = f"{OWN_HOST}:{own_ports(1)[0]}"
        players += [*set_up_observers(stage, page), publisher]
        once = seconds is None
        playing = [stage.thread(f"{one.group}/{one.name}", partial(one.play, seed, once=once)) for one in players]
        striping = stage.thread("re-stripings", partial(restripe, stage, seed))
        others = [
            stage.thread("poisoned keys", partial(poison, stage, seed)),
            stage.thread("broker", partial(stage.kill_broker, seed)),
            stage.thread("database", partial(stage.kill_database, seed)),
            stage.thread("looks", partial(look, stage, seed, page)),
        ]
        if seconds is not None:
            stage.over.wait(seconds)
            stage.over.set()
        stage.join(playing, LONG_PATIENCE_S)
        stage.over.set()
        stage.join(others, LONG_PATIENCE_S)
        # While more comes, a re-striping waits for all that a machine that is too slow for it has not handled yet.
        stage.join([stage.thread("the publisher", publisher.end)], LONG_PATIENCE_S)
        stage.join([striping], LONG_PATIENCE_S)
        if not stage.wrong:
            stage.join([stage.thread("the end", partial(_end, stage, players, publisher))], 3 * LONG_PATIENCE_S)
        told: dict[str, Any] = {"seed": seed, "rebind": rebind, "blows": dict(sorted(stage.blows.items()))}
        if not stage.wrong:
            told |= _judged(stage)
    return {**told, "wrong": stage.wrong}


def _end(stage: Stage, players: Sequence[Player], publisher: PublisherPlayer) -> None:
    left: dict[str, int] = {}

    def insist() -> None:
        for player in players:
            if player is not publisher:
                player.insist()

    def nothing_is_parked() -> bool:
        # What is parked is replayed by members, of which all may have met a broker that was away.
        insist()
        return _replay(stage) == 0

    def all_is_handled() -> bool:
        nonlocal left
        insist()
        left = left_in_queues(stage)
        return not left

    stage.until("nothing is parked", nothing_is_parked, LONG_PATIENCE_S)
    stage.until(lambda: f"all is handled, of which these queues hold some: {left}", all_is_handled, LONG_PATIENCE_S)
    for player in players:
        if isinstance(player, MemberPlayer):
            player.end()


def _judged(stage: Stage) -> dict[str, Any]:
    """Figures of each group; what is wrong with them is noted."""
    told: dict[str, Any] = {}
    # By which a run that is kept can be judged again.
    (stage.folder / "cuts.json").write_text(json.dumps(stage.cuts))
    places = {group: handled_places(stage, group) for group in GROUPS}
    published = published_by(stage.folder / "ledgers", chain(*places.values()))
    for group in GROUPS:
        journals = stage.folder / group / "journals"
        lend_ledgers(stage.folder / "ledgers", journals, group, published)
        wrong, told[group] = wrong_by_journals(journals, stage.cuts[group])
        # What is read of a landing log has no copies.
        is_right = wrong_once if group == "landed" else wrong_places
        wrong += [f"handled: {one}" for one in is_right(places[group], published)]
        if group in HANDLING:
            wrong += [f"effects: {one}" for one in wrong_once(effects_in(stage, group), published)]
            wrong += [f"transactions: {one}" for one in wrong_parts(parts_in(stage, group), published)]
        stage.wrong += [f"{group}: {one}" for one in wrong[:SHOWN]]
    lives = len(dict.fromkeys(place.partition("/")[0] for place in published))
    return {"published": sum(published.values()), "lives_of_the_publisher": lives, **told}


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--rebind", choices=["cooperative", "cycle"], default="cooperative")
    parser.add_argument("--rate", type=int, default=50, help="messages a second")
    asked = parser.parse_args()
    logging.getLogger("solace.messaging").setLevel(logging.CRITICAL)
    # Who is only asked to end has its database ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
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
