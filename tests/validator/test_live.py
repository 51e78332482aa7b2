"""The article's validation client: order errors and owner changes from notes, one at a time."""

import orjson
import pytest

from lbg_runtime.validator.live import LiveValidator, SequenceError, SequenceErrorKind, ShardMove


def note(
    seq: int | None,
    *,
    key: str = "k",
    member: str = "m1",
    redelivered: bool = False,
    shard: int = 5,
    queue: str = "g/1",
) -> bytes:
    fields = {"member": member, "queue": queue, "shard": shard, "key": key, "seq": seq, "publisher": "p"}
    return orjson.dumps({**fields, "topic": "orders/created", "redelivered": redelivered})


def fed(*notes: bytes, max_keys: int = 100) -> tuple[LiveValidator, list[str]]:
    validator = LiveValidator(max_keys)
    return validator, [str(finding) for payload in notes for finding in validator.feed(payload)]


def test_numbers_that_follow_each_other_are_no_finding() -> None:
    validator, findings = fed(note(1), note(2), note(7, key="other"), note(3), note(8, key="other"))

    assert findings == []
    assert validator.notes == 5


def test_a_listener_that_comes_late_takes_the_first_number_as_it_is() -> None:
    assert fed(note(480), note(481))[1] == []


def test_a_redelivered_number_is_told_with_what_was_expected() -> None:
    validator, findings = fed(note(11), note(10, redelivered=True))

    assert findings == [
        "sequence error: key k expected 12 got 10 (publisher p, member m1, topic orders/created, redelivered)"
    ]
    assert validator.sequence_errors[SequenceErrorKind.REPEAT_FLAGGED] == 1


def test_a_row_of_redelivered_numbers_is_told_once_and_what_follows_is_in_order() -> None:
    again = [note(seq, redelivered=True) for seq in (10, 11, 12)]

    validator, findings = fed(note(11), note(12), *again, note(13))

    assert len(findings) == 1
    assert sum(validator.sequence_errors.values()) == 1


def test_an_unflagged_repeat_behind_a_flagged_one_is_told_as_such_once() -> None:
    validator, _ = fed(*map(note, range(1, 6)), note(2, redelivered=True), note(3), note(4))

    assert validator.sequence_errors[SequenceErrorKind.REPEAT_FLAGGED] == 1
    assert validator.sequence_errors[SequenceErrorKind.REPEAT_UNFLAGGED] == 1


def test_after_a_repeat_the_next_new_number_is_no_gap() -> None:
    assert len(fed(note(11), note(12), note(10, redelivered=True), note(13))[1]) == 1


def test_a_number_after_a_higher_one_that_is_no_redelivery_is_out_of_order() -> None:
    validator, findings = fed(note(1), note(3), note(2))

    assert findings == [
        "sequence error: key k expected 2 got 3 (publisher p, member m1, topic orders/created)",
        "sequence error: key k expected 4 got 2 (publisher p, member m1, topic orders/created)",
    ]
    assert validator.sequence_errors[SequenceErrorKind.GAP] == 1
    assert validator.sequence_errors[SequenceErrorKind.REPEAT_UNFLAGGED] == 1


def test_what_was_missed_in_an_interruption_is_no_gap_but_a_number_that_goes_back_is_an_error() -> None:
    validator, _ = fed(note(1), note(1, key="other"))
    validator.interrupt()

    findings = [finding for seq in (4, 3, 6) for finding in validator.feed(note(seq))]

    assert [(type(each), getattr(each, "kind", None)) for each in findings] == [
        (SequenceError, SequenceErrorKind.REPEAT_UNFLAGGED),
        (SequenceError, SequenceErrorKind.GAP),
    ]
    assert validator.feed(note(3, key="other")) == []
    assert validator.summary()["interruptions"] == 1


def test_a_shard_that_changes_its_member_is_told() -> None:
    validator = LiveValidator()
    validator.feed(note(1, member="a"))

    (move,) = validator.feed(note(2, member="b"))

    assert isinstance(move, ShardMove)
    assert str(move) == "shard 5 was a, now b (topic orders/created)"
    assert validator.moves == 1
    assert validator.feed(note(3, member="b")) == []


def test_a_restriping_is_told_as_moves_of_shards_and_breaks_no_sequence() -> None:
    validator = LiveValidator()
    before = [note(seq, shard=shard, key=f"k{shard}", member="a") for seq in (1, 2) for shard in (1, 5)]
    # Shard 1 goes to a queue of another member, shard 5 to another queue of the same one; then both come back.
    there = [note(3, key="k1", shard=1, member="b", queue="g/9"), note(3, key="k5", shard=5, member="a", queue="g/5")]
    back = [note(seq, shard=shard, key=f"k{shard}", member="a") for seq in (4, 5) for shard in (1, 5)]

    findings = [finding for payload in [*before, *there, *back] for finding in validator.feed(payload)]

    assert [str(finding) for finding in findings] == [
        "shard 1 was a in g/1, now b in g/9 (topic orders/created)",
        "shard 1 was b in g/9, now a in g/1 (topic orders/created)",
    ]
    assert all(isinstance(finding, ShardMove) for finding in findings)
    assert not any(validator.sequence_errors.values())


def test_what_a_crash_repeats_in_the_old_queue_of_a_shard_is_a_flagged_repeat_and_no_gap_follows() -> None:
    validator, findings = fed(
        note(1, queue="g/1"),
        note(2, queue="g/9", member="m2"),
        note(1, queue="g/1", member="m3", redelivered=True),
        note(3, queue="g/9", member="m2"),
    )

    assert validator.sequence_errors[SequenceErrorKind.REPEAT_FLAGGED] == 1
    assert sum(validator.sequence_errors.values()) == 1
    assert len(findings) == 4


def test_one_note_can_be_both() -> None:
    validator = LiveValidator()
    validator.feed(note(3, member="a"))

    error, move = validator.feed(note(2, member="b", redelivered=True))

    assert isinstance(error, SequenceError)
    assert isinstance(move, ShardMove)


def test_only_so_many_keys_are_remembered_the_ones_seen_last() -> None:
    validator, findings = fed(note(1, key="a"), note(1, key="b"), note(2, key="a"), note(1, key="c"), max_keys=2)

    assert validator.forgotten_keys == 1
    assert findings == []
    assert validator.feed(note(9, key="b")) == []
    assert len(validator.feed(note(9, key="c"))) == 1


def test_notes_without_a_number_are_counted_and_their_shard_is_followed() -> None:
    validator, findings = fed(note(None), note(None, member="m2"))

    assert validator.unnumbered == 2
    assert findings == ["shard 5 was m1, now m2 (topic orders/created)"]


@pytest.mark.parametrize("lacks", [b'"publisher":"p"', b'"key":"k"', b'"seq":2', b'"seq":1'])
def test_a_note_that_lacks_a_part_of_its_number_is_counted_and_followed_by_none(lacks: bytes) -> None:
    notes = (note(1), note(2), note(3))
    validator, findings = fed(*(each.replace(lacks, lacks.partition(b":")[0] + b":null") for each in notes))

    assert validator.unnumbered == sum(lacks in each for each in notes)
    # One alone is missing among those that have numbers, unless it is the first.
    assert len(findings) == (lacks == b'"seq":2')


def test_notes_of_no_shard_are_no_moves() -> None:
    of_none = [note(1, key=member, member=member).replace(b'"shard":5', b'"shard":null') for member in "ab"]

    assert fed(*of_none)[1] == []


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"\xff", b"[]", b"7", b"{}", note(1).replace(b'"k"', b"3"), note(1).replace(b"1,", b'"1",', 1)),
        *(note(1).replace(b'"m1"', b"null"), note(1).replace(b":5,", b":true,")),
        *(note(1).replace(text, b"7") for text in (b'"g/1"', b'"orders/created"', b'"p"')),
    ],
)
def test_what_is_not_a_note_is_counted_and_changes_nothing(payload: bytes) -> None:
    validator, findings = fed(note(1), payload, note(2))

    assert findings == []
    assert (validator.malformed, validator.notes) == (1, 2)


def test_the_summary_has_every_count_under_a_stable_name() -> None:
    validator, _ = fed(note(1), note(3), b"x")

    assert validator.summary() == {
        "notes": 2,
        "shard_moves": 0,
        "sequence_errors_gap": 1,
        "sequence_errors_repeat_flagged": 0,
        "sequence_errors_repeat_unflagged": 0,
        "unnumbered": 0,
        "malformed": 1,
        "forgotten_keys": 0,
        "interruptions": 0,
    }
