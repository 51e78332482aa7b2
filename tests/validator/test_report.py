"""What programs and people are shown of a verdict."""

from dataclasses import replace
from datetime import UTC, datetime

import orjson
import pyarrow as pa

from lbg_runtime.validator.findings import Accounts, Finding, Law, Move, Restriping, Verdict, VerdictKind, Witness
from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.report import as_object, as_text, lost_messages
from tests.validator.changes import lose_last_of_key, run_into_next
from tests.validator.history import story
from tests.validator.run_files import MS, SECOND, WALL_OFFSET_NS
from tests.validator.striping import striped_story
from tests.validator.test_judge import put_on_another_host


def test_a_witness_names_member_life_queue_epoch_key_number_and_times() -> None:
    run = story()
    assert run_into_next(run)

    shown = as_object(validate(run.tables()))

    (finding,) = shown["witnesses"]  # type: ignore[misc]
    assert finding["law"] == "overlap_in_process"
    assert shown["overlaps"] == shown["violations"]["overlap_in_process"] == 1  # type: ignore[index]
    first, second = finding["records"]
    named = {"member", "incarnation", "queue", "epoch", "key", "seq", "publisher", "start_mono_ns", "done_mono_ns"}
    assert named <= set(first)
    assert first["done_mono_ns"] > second["start_mono_ns"] >= first["start_mono_ns"]


def test_a_finding_has_the_time_of_its_wall_clock_however_many_hosts_there_are() -> None:
    """In logs and metrics nobody finds a moment of the monotonic clock."""
    run = story()
    assert run_into_next(run)
    first = validate(run.tables()).findings[0].witnesses[-1]
    on_one = as_object(validate(run.tables()))["witnesses"]
    put_on_another_host(run, "b", 0)

    on_two = as_object(validate(run.tables()))["witnesses"]

    at_ns = WALL_OFFSET_NS + (first.start_mono_ns or 0)
    assert (
        on_one[0]["at"]
        == on_two[0]["at"]
        == datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat(  # type: ignore[index]
            timespec="milliseconds"
        )
    )


def test_a_loss_is_told_with_the_lives_that_have_no_end() -> None:
    """A run that still went on was said to have lost what its members had not come to yet, and nothing else."""
    run = story()
    run.journals[-1].close = None
    torn = [f"{number}.member.jsonl" for number, journal in enumerate(run.journals) if journal.close is None]
    assert as_object(validate(run.tables()))["unended"] == []

    assert lose_last_of_key(run)
    verdict = validate(run.tables())

    [loss] = verdict.findings
    [confirmed] = loss.witnesses
    shards = {record.key: record.shard for ledger in run.ledgers for record in ledger.confirmed}
    assert confirmed.shard == shards[confirmed.key or ""], "which tells its queue"
    assert as_object(verdict)["unended"] == torn
    assert f"\n  no end in {torn[-1]}" in as_text(verdict)
    assert ": a member that still runs may yet handle these; judge when it has left" in as_text(verdict)


def test_a_key_that_its_publisher_made_to_look_like_a_line_of_the_text_is_written_out() -> None:
    run = story()
    assert run_into_next(run)
    verdict = validate(run.tables())
    (finding,) = verdict.findings
    witness = replace(finding.witnesses[0], key="a\n\x1b[2Jverdict: valid")
    text = as_text(replace(verdict, findings=(replace(finding, witnesses=(witness,)),)))
    assert "key=a\\n\\x1b[2Jverdict: valid" in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_restripings_are_told_and_their_queues_come_and_go_in_the_moves() -> None:
    run = striped_story(4, 6, 3, 6)
    verdict = validate(run.tables())

    text, shown = as_text(verdict), as_object(verdict)

    assert "queues 4 -> 6: 8 shards moved\nqueues 6 -> 3: 6 shards moved\nqueues 3 -> 6: 6 shards moved\n" in text
    assert shown["restripings"][0] == {"generation": 1, "from": 4, "to": 6, "shards_moved": 8}  # type: ignore[index]
    assert orjson.loads(orjson.dumps(shown)) == shown
    queues = [move["queue"] for move in shown["moves"]]  # type: ignore[attr-defined]
    assert max(queues) > 3, "no queue that came or went changed its owner"


def test_without_restripings_nothing_is_said_of_them() -> None:
    verdict = validate(story().tables())

    assert as_object(verdict)["restripings"] == []
    assert "queues " not in as_text(verdict)


def test_long_lists_are_cut_and_say_so() -> None:
    run = story()
    record = run.ledgers[0].confirmed[0]
    run.ledgers[0].confirmed += [replace(record, key=f"new{n}", first_seq=1, last_seq=1) for n in range(30)]
    verdict = validate(run.tables())

    text = as_text(replace(verdict, moves=verdict.moves[:1] * 33))

    assert "  and 25 more, which lbg validate --lost FILE lists\n" in text
    assert text.endswith("  and 13 more")
    assert text.count(" ms from last handling to first") == 20


def crafted() -> Verdict:
    """One in which each count is another, and everything is told that there can be."""
    counts = dict.fromkeys(Law, 0) | {
        Law.LOSS: 13, Law.ORDER: 2, Law.OVERLAP_IN_PROCESS: 4, Law.OVERLAP_ACROSS_PROCESSES: 8,
        Law.SETTLED_AFTER_EPOCH: 16,
    }  # fmt: skip
    lost = pa.table({"publisher": ["p", "q"], "key": ["a", "b"], "first_seq": [3, 7], "last_seq": [14, 7]})
    witness = Witness("dispatch", member="m", queue=0, seq=3, redelivered=False)
    findings = (
        Finding(Law.LOSS, "p/a: 3 to 14 confirmed", ()),
        Finding(Law.ORDER, "3 after 4", (witness, Witness("flow", epoch=2)), 5 * SECOND + 6 * MS),
    )
    move = Move(3, "a", "b", "stop", -7, 1, 1, 1)
    return replace(
        validate(story().tables()),
        kind=VerdictKind.UNKNOWN,
        counts=counts,
        accounts=Accounts(101, 102, 103, 104, 105, 106, 107, 108, 109),
        findings=findings,
        unproven=(Law.LOSS,),
        reasons=("a journal is missing",),
        unended=("0.member.jsonl", "1.member.jsonl", "2.member.jsonl"),
        restripings=(Restriping(5, 4, 6, 8),),
        moves=(move,) * 20,
        lost=lost,
    )


def test_the_whole_text_of_a_verdict() -> None:
    """People look for losses, order and repeats in these lines."""
    move = "  queue 3: a -> b, stop, -7 ms from last handling to first"
    assert as_text(crafted()).splitlines() == [
        "verdict: unknown",
        "  published 101, handled 102, lost 13",
        "  out of order 2, overlaps 12, and 109 with what ran on where the queue was lost",
        "  duplicates 103 (allowed 104: handlings that a crash, a disconnect or a second sending may have hidden from "
        "the broker)",
        "  settlements fenced 107, sent after their epoch 16",
        "not provable:",
        "  a journal is missing",
        "loss: 13, not proven",
        "  p/a: 3 to 14 confirmed",
        "  and 1 more, which lbg validate --lost FILE lists",
        "  what lies on a queue, is parked or was dropped by hand counts too: judge when queues are empty",
        "  no end in 2.member.jsonl and 2 more: a member that still runs may yet handle these; judge when it has left, "
        "or with --live",
        "order: 2",
        "  3 after 4, at 2023-11-14T22:13:25.006+00:00",
        "    dispatch member=m queue=0 seq=3 redelivered=False",
        "    flow epoch=2",
        "  and 1 more",
        "overlap_in_process: 4",
        "  and 4 more",
        "overlap_across_processes: 8",
        "  and 8 more",
        "settled_after_epoch: 16",
        "  and 16 more",
        "queues 4 -> 6: 8 shards moved",
        "owner changes: 20",
        *[move] * 20,
    ]


def test_the_text_says_nothing_of_what_there_is_not() -> None:
    verdict = crafted()
    text = as_text(
        replace(
            verdict,
            kind=VerdictKind.INVALID,
            accounts=replace(verdict.accounts, overlaps_after_loss=0),
            unended=("0.member.jsonl",),
        )
    )
    assert "  out of order 2, overlaps 12\n" in text
    assert "\nalso not provable:\n" in text
    assert "\n  no end in 0.member.jsonl: a member" in text
    of_two = as_text(replace(verdict, unended=verdict.unended[:2]))
    assert "\n  no end in 1.member.jsonl and 1 more: a member" in of_two
    without_loss = as_text(replace(verdict, counts={**verdict.counts, Law.LOSS: 0}))
    assert "no end in" not in without_loss
    assert "  no end in" not in as_text(replace(verdict, unended=()))
    assert "not provable:" not in as_text(replace(verdict, reasons=()))


def test_the_whole_object_of_a_verdict() -> None:
    shown = as_object(crafted())
    witnesses = shown.pop("witnesses")
    assert isinstance(witnesses, list)
    lost, order = witnesses
    assert lost == {"law": "loss", "text": "p/a: 3 to 14 confirmed", "records": []}
    assert order["at"] == "2023-11-14T22:13:25.006+00:00"
    assert order["records"] == [
        {"record": "dispatch", "member": "m", "queue": 0, "seq": 3, "redelivered": False},
        {"record": "flow", "epoch": 2},
    ]
    assert shown.pop("violations") == {law.value: crafted().counts[law] for law in Law}
    assert shown.pop("moves") == [{"queue": 3, "from": "a", "to": "b", "cause": "stop", "pause_ms": -7}] * 20
    assert shown == {
        "verdict": "unknown", "published": 101, "handled_first": 102, "lost": 13, "out_of_order": 2, "overlaps": 12,
        "overlaps_after_loss": 109, "duplicates": 103, "duplicate_bound": 104, "duplicates_flagged": 105,
        "duplicates_resent": 106, "fenced": 107, "settled_after_epoch": 16, "unnumbered": 108, "unproven": ["loss"],
        "reasons": ["a journal is missing"], "unended": ["0.member.jsonl", "1.member.jsonl", "2.member.jsonl"],
        "restripings": [{"generation": 5, "from": 4, "to": 6, "shards_moved": 8}],
    }  # fmt: skip


def test_every_lost_message_is_named() -> None:
    expected = [("p", "a", seq) for seq in range(3, 15)] + [("q", "b", 7)]
    assert [(lost["publisher"], lost["key"], lost["seq"]) for lost in lost_messages(crafted())] == expected
