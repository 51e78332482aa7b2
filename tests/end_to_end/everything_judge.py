"""What is wrong after a run of `everything`: by what handlers wrote down, and by the journals."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

from lbg_runtime.cli.bench.soak import Course, problems_of
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.record import FILE_SUFFIXES, CloseRecord, ConfirmedRecord
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.validator import findings
from lbg_runtime.validator.judge import validate
from tests.end_to_end.everything_handlers import PARTS
from tests.processes import whole_lines

Place = tuple[str, int]
"""Life of the publisher and key, as `life/key`, and the number of the message there."""

Published = Mapping[str, int]
"""How many messages of each life and key there are, the lives in their order; they have the numbers from 1 on."""

LEDGER = FILE_SUFFIXES["ledger"]


def published_by(ledgers: Path, seen: Iterable[Place]) -> Published:
    """What ledgers say; of a life that did not learn the fate of all its messages, those seen count as well.

    `seen`: what any group has handled, so that each has to have handled it. Raises `ValueError` where a ledger has a
    hole, or a message was refused.
    """
    found: dict[str, int] = {}
    unsure = set()
    for ledger in _in_order(ledgers):
        life = ledger.name.removesuffix(LEDGER)
        records = [*map(json.loads, whole_lines(ledger))]
        for record in records:
            place = f"{life}/{record.get('key')}"
            if record["kind"] == "confirmed":
                if record["first_seq"] != found.get(place, 0) + 1:
                    raise ValueError(f"{ledger}: {record}")
                found[place] = record["last_seq"]
            elif record["kind"] == "unconfirmed":
                unsure.add(life)
                if record["fate"] == "refused":
                    raise ValueError(f"{ledger}: {record}")
        if records[-1]["kind"] != "close":
            unsure.add(life)
    for place, number in seen:
        if place.partition("/")[0] in unsure:
            found[place] = max(number, found.get(place, 0))
    lives = [ledger.name.removesuffix(LEDGER) for ledger in _in_order(ledgers)]
    return dict(sorted(found.items(), key=lambda item: lives.index(item[0].partition("/")[0])))


def lend_ledgers(source: Path, journals: Path, group: str, published: Published) -> None:
    """Put the ledgers, which are of one group, beside the journals of another, which got all those messages, too.

    The life of a publisher that was killed leaves its ledger open, and no run with one is ever valid. It is closed with
    what is known to have been published of it.
    """
    for ledger in _in_order(source):
        header, *records = map(json.loads, whole_lines(ledger))
        life, listed = header["publisher"], dict[str, int]()
        for record in records:
            if record["kind"] == "confirmed":
                listed[record["key"]] = record["last_seq"]
        if not records or records[-1]["kind"] != "close":
            now = header["t_start"]
            for place, last in published.items():
                of, _, key = place.partition("/")
                if of == life and listed.get(key, 0) < last:
                    shard = shard_of(HashFunction(header["hash_function"]), key, header["hash_count"])
                    more = ConfirmedRecord(key, shard, listed.get(key, 0) + 1, last, now, now)
                    records.append(asdict(more))
            records.append(asdict(CloseRecord(1 + len(records), 0, clean=True, t=now)))
        lines = map(json.dumps, [{**header, "group": group}, *records])
        (journals / ledger.name).write_text("".join(f"{line}\n" for line in lines))


def _in_order(ledgers: Path) -> list[Path]:
    """That of the first life first."""
    return sorted(ledgers.glob(f"*{LEDGER}"), key=lambda ledger: json.loads(whole_lines(ledger)[0])["t_start"])


def places_of(lines: Iterable[str]) -> list[Place]:
    """The messages that handlers wrote down, in their order."""
    return [(key, int(number)) for key, number in (line.split()[:2] for line in lines)]


def wrong_places(places: Iterable[Place], published: Published) -> list[str]:
    """Every published message has to be there, and none else; the first of each in the order of its key.

    That order goes on from one life of the publisher to the next.
    """
    wrong = []
    firsts: dict[str, list[int]] = defaultdict(list)
    lives: dict[str, list[str]] = defaultdict(list)
    for place, number in dict.fromkeys(places):
        firsts[place].append(number)
        life, _, key = place.partition("/")
        lives[key].append(life)
    for place in sorted({*firsts, *published}):
        expected = range(1, published.get(place, 0) + 1)
        if missing := sorted(set(expected) - set(firsts[place])):
            wrong.append(f"{place}: {len(missing)} are missing, the first is {missing[0]}")
        elif unknown := sorted(set(firsts[place]) - set(expected)):
            wrong.append(f"{place}: {len(unknown)} were never published, the first is {unknown[0]}")
        elif late := next((n for n, m in zip(firsts[place], expected, strict=True) if n != m), 0):
            wrong.append(f"{place}: {late} came before an earlier one")
    ranks = {life: rank for rank, life in enumerate(dict.fromkeys(place.partition("/")[0] for place in published))}
    for key, came in sorted(lives.items()):
        if not wrong and came != sorted(came, key=ranks.__getitem__):
            wrong.append(f"key {key}: a life of the publisher came before all of an earlier one")
    return wrong


def wrong_once(places: Sequence[Place], published: Published) -> list[str]:
    """Each has to be there exactly once, those of a key in their order."""
    repeated = len(places) - len(set(places))
    return [*wrong_places(places, published), *([f"{repeated} came twice"] if repeated else [])]


def wrong_parts(payloads: Iterable[str], published: Published) -> list[str]:
    """What was published in transactions is there whole, and by its first copies in the order of its key."""
    parts = [payload.rpartition(" ") for payload in payloads]
    wholes = [parts[first : first + PARTS] for first in range(0, len(parts), PARTS)]
    for whole in wholes:
        if [(each[0], each[2]) for each in whole] != [(whole[0][0], str(number)) for number in range(PARTS)]:
            return [f"a transaction is not whole: {whole}"]
    return wrong_places(places_of(whole[0][0] for whole in wholes), published)


def landed_places(folder: Path) -> list[Place]:
    """What can be read of a landing log, queue by queue; nothing before it was begun."""
    if not (folder / "landing.json").exists():
        return []
    log, found = LandingLog(folder), list[Place]()
    for queue in log.queues():
        for batch in log.read_queue(queue, {}, {name: extent.rows for name, extent in log.lanes(queue).items()}):
            ids, numbers = (batch.column(name).to_pylist() for name in ("broker_id", "seq"))
            found += [(one.partition("/")[2], number) for one, number in zip(ids, numbers, strict=True)]
    return found


def wrong_by_journals(journals: Path, cuts: Iterable[tuple[str, int, int]]) -> tuple[list[str], dict[str, object]]:
    """What `lbg validate` finds and the cuts do not explain, as `lbg bench soak` judges it; and what it counts.

    All findings are looked at: one cut of a member that lands has as many as it had in its flushes.
    """
    with patch.object(findings, "WITNESSED_FINDINGS", 1_000_000):
        verdict = validate(read_run(journals))
        problems = problems_of(verdict, Course(cuts=list(cuts)))
    told: dict[str, object] = {
        "verdict": verdict.kind.value,
        "duplicates": verdict.accounts.duplicates,
        "owner_changes": len(verdict.moves),
        "findings_after_a_cut": {law.value: count for law, count in verdict.counts.items() if count},
    }
    return problems, told
