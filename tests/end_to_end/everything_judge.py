"""What is wrong after a run of `everything`: by what handlers wrote down, and by the journals."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from unittest.mock import patch

from lbg_runtime.cli.bench.landing_trial import Follower
from lbg_runtime.cli.bench.soak import Course, problems_of
from lbg_runtime.journal.reader import read_run
from lbg_runtime.validator import findings
from lbg_runtime.validator.judge import validate
from tests.end_to_end.everything_handlers import PARTS
from tests.processes import whole_lines

Published = Mapping[str, int]
"""How many messages of each key the broker has confirmed; they have the numbers from 1 on."""

Place = tuple[str, int]
"""Key and number of a message."""

SHOWN = 5


def published_by(journals: Path) -> Published:
    """What the ledgers in a folder say; raises `ValueError` where the fate of a message is unknown."""
    found: dict[str, int] = defaultdict(int)
    for ledger in journals.glob("*.ledger.jsonl"):
        for record in map(json.loads, whole_lines(ledger)):
            if record["kind"] == "confirmed":
                if record["first_seq"] != found[record["key"]] + 1:
                    raise ValueError(f"{ledger}: {record}")
                found[record["key"]] = record["last_seq"]
            elif record["kind"] == "unconfirmed":
                raise ValueError(f"{ledger}: {record}")
    return found


def places_of(lines: Iterable[str]) -> list[Place]:
    """The messages that handlers wrote down, in their order."""
    return [(key, int(number)) for key, number in (line.split()[:2] for line in lines)]


def wrong_places(places: Iterable[Place], published: Published) -> list[str]:
    """Every published message has to be there, and none else; the first of each in the order of its key."""
    wrong = []
    firsts: dict[str, list[int]] = defaultdict(list)
    for key, number in dict.fromkeys(places):
        firsts[key].append(number)
    for key in sorted({*firsts, *published}):
        expected = range(1, published.get(key, 0) + 1)
        if missing := sorted(set(expected) - set(firsts[key])):
            wrong.append(f"{key}: {len(missing)} are missing, the first is {missing[0]}")
        elif unknown := sorted(set(firsts[key]) - set(expected)):
            wrong.append(f"{key}: {len(unknown)} were never published, the first is {unknown[0]}")
        elif late := next((n for n, m in zip(firsts[key], expected, strict=True) if n != m), 0):
            wrong.append(f"{key}: {late} came before an earlier one")
    return wrong


def wrong_effects(database: Path, published: Published) -> list[str]:
    """Each effect that a guard kept has to be there exactly once, those of a key in their order."""
    connection = sqlite3.connect(database)
    try:
        places = connection.execute("SELECT key, number FROM effect ORDER BY rowid").fetchall()
    finally:
        connection.close()
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


def wrong_rows(log: Path, published: Published) -> list[str]:
    """Each message has landed, and is read once and in the order of its key."""
    follower = Follower(log)
    follower.look()
    total = sum(published.values())
    return follower.wrong[:SHOWN] + ([f"{follower.rows} rows of {total} messages"] if follower.rows != total else [])


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
