"""What programs and people are shown of a verdict."""

from dataclasses import replace

import orjson

from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.report import as_object, as_text
from tests.validator.changes import lose_last_of_key, run_into_next
from tests.validator.history import story
from tests.validator.striping import striped_story


def test_the_object_has_the_keys_that_were_promised_and_is_json() -> None:
    shown = as_object(validate(story().tables()))

    promised = {"verdict", "published", "handled_first", "lost", "out_of_order", "overlaps", "duplicates"}
    promised |= {"duplicate_bound", "moves", "fenced", "settled_after_epoch", "reasons", "witnesses"}
    assert promised <= set(shown)
    assert shown["verdict"] == "valid"
    assert set(shown["moves"][0]) == {"queue", "from", "to", "cause", "pause_ms"}  # type: ignore[index]
    assert orjson.loads(orjson.dumps(shown)) == shown


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


def test_the_text_gives_judgement_reasons_and_findings() -> None:
    run = story()
    assert lose_last_of_key(run)
    run.ledgers[0].close = None

    text = as_text(validate(run.tables()))

    assert text.startswith("verdict: invalid\n")
    assert "also not provable:" in text
    assert "the publisher did not close it" in text
    assert "loss: 1\n" in text
    assert "confirmed, never handled to an end" in text
    assert "\n  what lies on a queue, is parked or was dropped by hand counts too: judge when " in text
    assert "owner changes: " in text


def test_a_loss_is_told_with_the_lives_that_have_no_end() -> None:
    """A run that still went on was said to have lost what its members had not come to yet, and nothing else."""
    run = story()
    run.journals[-1].close = None
    torn = [f"{number}.member.jsonl" for number, journal in enumerate(run.journals) if journal.close is None]
    assert as_object(validate(run.tables()))["unended"] == []

    assert lose_last_of_key(run)
    verdict = validate(run.tables())

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


def test_the_text_of_an_unknown_verdict_marks_what_is_not_proven() -> None:
    run = story()
    assert lose_last_of_key(run)
    closed = next(journal for journal in run.journals if journal.close)
    assert closed.close is not None
    closed.close = replace(closed.close, dropped=4)

    text = as_text(validate(run.tables()))

    assert text.startswith("verdict: unknown\n")
    assert "not provable:\n" in text
    assert "loss: 1, not proven" in text


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


def test_lost_messages_that_follow_each_other_are_told_once() -> None:
    run = story()
    record = run.ledgers[0].confirmed[0]
    run.ledgers[0].confirmed.append(replace(record, key="new", first_seq=1, last_seq=30))

    text = as_text(validate(run.tables()))

    assert "loss: 30\n" in text
    assert "/new: 1 to 30 confirmed, never handled to an end\n" in text
    assert " more, which" not in text
